"""Which transactions this process is working on, and which rollbacks it still owes.

Recovery may run at any time beside living transactions: what is in flight it must leave alone. A rollback that
could not be delivered (a broker that is down) is owed: the next occasion delivers it.
"""

import threading
from dataclasses import dataclass

from journal.xid import Xid


@dataclass(frozen=True, slots=True)
class Debt:
    """A rollback that *where* has not heard of."""

    xid: Xid
    where: str


class Flight:
    """Any thread; one lock, held for moments."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_flight: set[Xid] = set()
        self._debts: set[Debt] = set()

    def take_off(self, xid: Xid) -> None:
        with self._lock:
            self._in_flight.add(xid)

    def land(self, xid: Xid) -> None:
        """Its thread does nothing more about *xid*. Idempotent."""
        with self._lock:
            self._in_flight.discard(xid)

    def owe(self, xid: Xid, where: str) -> None:
        with self._lock:
            self._debts.add(Debt(xid, where))

    def pay(self, debt: Debt) -> None:
        with self._lock:
            self._debts.discard(debt)

    def debts(self) -> frozenset[Debt]:
        with self._lock:
            return frozenset(self._debts)

    def in_flight(self) -> frozenset[Xid]:
        with self._lock:
            return frozenset(self._in_flight)
