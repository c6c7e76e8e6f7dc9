"""Which transactions this process is working on, and which rollbacks are pending.

Recovery may run at any time beside living transactions: what is in flight it must leave alone. A rollback that could
not be delivered (a broker that is down), or whose answer says nothing (a PREPARE may still be on its way), is pending.
"""

import threading
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass

from journal.xid import Xid

# A PREPARE whose connection broke may be executed this much later; a branch that nobody lists until then is none.
LATE_PREPARE_S = 30.0


@dataclass(frozen=True, slots=True)
class Debt:
    """A rollback that *where* has not confirmed."""

    xid: Xid
    where: str


class Flight:
    """Any thread; one lock, held for moments."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_flight: set[Xid] = set()
        self._watching: dict[int, set[Xid]] = {}  # by identity; each collects what is in flight while it is here
        self._debts: dict[Debt, float] = {}  # since when

    def take_off(self, xid: Xid) -> None:
        with self._lock:
            self._in_flight.add(xid)
            for seen in self._watching.values():
                seen.add(xid)

    def land(self, xid: Xid) -> None:
        """Its thread does nothing more about *xid*. Idempotent."""
        with self._lock:
            self._in_flight.discard(xid)

    def is_in_flight(self, xid: Xid) -> bool:
        """True while a thread or task works on *xid*."""
        with self._lock:
            return xid in self._in_flight

    @contextmanager
    def watched(self) -> Iterator[Set[Xid]]:
        """A set that holds every transaction which is in flight at any moment of the block; it grows meanwhile.

        What it does not hold has landed before the block, or was begun by another process: what participants list of
        it, or do not list, is said of something that has come to rest.
        """
        with self._lock:
            seen = set(self._in_flight)
            self._watching[id(seen)] = seen
        try:
            yield seen
        finally:
            with self._lock:
                del self._watching[id(seen)]

    def owe(self, xid: Xid, where: str) -> None:
        with self._lock:
            self._debts.setdefault(Debt(xid, where), time.monotonic())

    def pay(self, debt: Debt) -> None:
        with self._lock:
            self._debts.pop(debt, None)

    def debts(self) -> frozenset[Debt]:
        with self._lock:
            return frozenset(self._debts)

    def is_certain(self, debt: Debt) -> bool:
        """Whether *debt* is so old that a branch which is not listed can't appear any more."""
        with self._lock:
            return time.monotonic() - self._debts.get(debt, 0.0) > LATE_PREPARE_S
