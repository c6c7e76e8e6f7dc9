"""State of a client's connection: one table, walked by one function, and all that bounds its requests. Pure.

A state says what may still come; a block, or a counter at its limit, stops the handling of requests for a while, and
only in a state that handles.
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


class Due(Enum):
    """Call of the loop that is on its way: it is not asked for twice."""

    FLUSH = "`flush`, at the end of this turn of the loop"
    TURN = "`take_turn`, in one of the next turns"
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


class ConnectionStatus:
    """State, blocks, due calls and counters of one connection."""

    __slots__ = ("_in_flight_max", "_pending_bytes_max", "blocks", "due", "in_flight", "pending_bytes", "state")

    def __init__(self, in_flight_max: int, pending_bytes_max: int) -> None:
        self.state = ConnectionState.NEW
        self.blocks: set[Block] = set()
        self.due: set[Due] = set()
        self.in_flight = 0  # requests handled and not answered, except waiting fetches
        self.pending_bytes = 0  # of replies held for the high watermark
        self._in_flight_max = in_flight_max
        self._pending_bytes_max = pending_bytes_max

    def on(self, event: ConnectionEvent) -> None:
        """Walk the table."""
        self.state = next_state(self.state, event)

    def ask_for(self, call: Due) -> bool:
        """Note *call* as due; return whether it was not."""
        if call in self.due:
            return False
        self.due.add(call)
        return True

    def may_handle(self) -> bool:
        """Return whether the next request may be handled."""
        return (
            self.state in HANDLES
            and not self.blocks
            and self.in_flight < self._in_flight_max
            and self.pending_bytes <= self._pending_bytes_max
        )

    def has_drained(self) -> bool:
        """Return whether nothing is left to answer after the end: the transport can be closed."""
        return self.state is ConnectionState.DRAINING and not self.in_flight
