"""Shares the turns of the event loop among clients: each turn serves requests for a bounded time, fairly by peer.

A connection whose requests are few is served when they arrive. Once a turn has served for TURN_S, connections queue; so
does one that has more than REQUESTS_PER_TURN requests. The queue has a share of each turn of its own, and goes round by
peer, not by connection: a peer that opens many delays itself.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, Protocol

TURN_S: Final = 0.003  # of a turn for what arrives, and as much for what waits
REQUESTS_PER_TURN: Final = 128  # of one connection when they arrive: a receive buffer holds thousands of short ones
REQUESTS_PER_VISIT: Final = 32  # of one connection that waits

PeerKey = tuple[str | None, str]  # principal and address


class TurnTaker(Protocol):
    """A connection, as the queue sees it."""

    @property
    def peer_key(self) -> PeerKey:
        """Peer whose share it uses."""

    def take_turn(self) -> None:
        """Handle some requests; `Turns.wait` again if there are more."""


class Turns:
    """The turns of one loop. Loop thread only."""

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """*call_soon* is the loop's, which calls in the next turn, before what that turn receives."""
        self._call_soon = call_soon
        self._clock = clock
        self._until: float | None = None  # end of this turn's share; None: it has not begun
        self._waiting: OrderedDict[PeerKey, deque[TurnTaker]] = OrderedDict()
        self._is_due = False

    def is_over(self) -> bool:
        """Return whether this turn has served what arrives for long enough."""
        now = self._clock()
        if self._until is None:
            self._until = now + TURN_S
            self._begin_later()
        return now >= self._until

    def wait(self, connection: TurnTaker) -> None:
        """Call *connection*'s `take_turn` in one of the next turns. Call it once until then."""
        self._waiting.setdefault(connection.peer_key, deque()).append(connection)
        self._begin_later()

    def _begin_later(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._call_soon(self._begin)

    def _begin(self) -> None:
        """Begin a turn: first what waits already, then what arrives."""
        until = self._clock() + TURN_S
        while self._waiting:
            key, connections = next(iter(self._waiting.items()))
            connection = connections.popleft()
            if connections:
                self._waiting.move_to_end(key)
            else:
                del self._waiting[key]
            connection.take_turn()
            if self._clock() >= until:
                break
        self._is_due, self._until = False, None
        if self._waiting:
            self._begin_later()
