"""States of a client's connection: one table, walked by one function. Pure.

A state says what may still come; a block stops the handling of requests for a while, and only in a state that handles.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class ConnectionState(Enum):
    """State of a connection."""

    NEW = "no transport yet"
    OPEN = "requests are read and handled"
    LAST = "nothing more is read; once what was received is handled, it drains"
    DRAINING = "nothing more is handled; once nothing is in flight, it closes"
    CLOSED = "the transport is lost, or belongs to another protocol"
    __hash__ = object.__hash__  # for fast look-ups: an enumeration's own hash is a Python call


class ConnectionEvent(Enum):
    """Event that may change the state of a connection."""

    ACCEPTED = "the server took it"
    INPUT_INVALID = "the peer sent what can never be a request"
    QUIT = "the peer or the server ends it"
    GONE = "the transport was lost, or handed over"
    __hash__ = object.__hash__


class Block(Enum):
    """Reason to handle no request until it is gone."""

    REPLY = "the current request must be answered before the next one is handled"
    PEER = "the peer does not read its replies"
    QUOTA = "the next request waits until what was used before is paid for"
    __hash__ = object.__hash__


S = ConnectionState
E = ConnectionEvent

NEXT: Final[Mapping[S, Mapping[E, S]]] = {
    S.NEW: {E.ACCEPTED: S.OPEN, E.GONE: S.CLOSED},  # gone: the server refused it
    S.OPEN: {E.INPUT_INVALID: S.LAST, E.QUIT: S.DRAINING, E.GONE: S.CLOSED},
    S.LAST: {E.INPUT_INVALID: S.LAST, E.QUIT: S.DRAINING, E.GONE: S.CLOSED},
    S.DRAINING: {E.INPUT_INVALID: S.DRAINING, E.GONE: S.CLOSED},
    S.CLOSED: {},
}

HANDLES: Final = frozenset({S.OPEN, S.LAST})


def next_state(state: ConnectionState, event: ConnectionEvent) -> ConnectionState:
    """Return the state after *event*. A pair that the table lacks is a mistake of this program."""
    after = NEXT[state].get(event)
    assert after is not None, f"{event.name} while {state.name}"
    return after
