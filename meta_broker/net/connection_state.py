"""States of a client's connection: one table, walked by one function. Pure.

A state says what may still come; a block stops the handling of requests for a while, and only in a state that handles.
"""

from collections.abc import Mapping
from typing import Final

from journal.records.state_table import IdentityEnum


class ConnectionState(IdentityEnum):
    """State of a connection."""

    NEW = "no transport yet"
    OPEN = "requests are read and handled"
    LAST = "nothing more is read; once what was received is handled, it drains"
    DRAINING = "nothing more is handled; once nothing is in flight, it closes"
    CLOSED = "the transport is lost, or belongs to another protocol"


class ConnectionEvent(IdentityEnum):
    """Event that may change the state of a connection."""

    ACCEPTED = "the server took it"
    INPUT_INVALID = "the peer sent what can never be a request"
    QUIT = "the peer or the server ends it"
    GONE = "the transport was lost, or handed over"


class Block(IdentityEnum):
    """Reason to handle no request until it is gone."""

    REPLY = "the current request must be answered before the next one is handled"
    PEER = "the peer does not read its replies"
    QUOTA = "the next request waits until what was used before is paid for"


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
