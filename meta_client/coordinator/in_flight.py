"""Transactions in progress in this process, and pending rollbacks.

Recovery may run beside live transactions, and must leave those in flight alone. A rollback is pending if it could not
be delivered (the broker is down), or if its answer proves nothing (a PREPARE may still arrive).
"""

import threading
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass

from journal.records.xid import Xid

# Maximum delay of a PREPARE whose connection broke; a branch that is not listed until then does not exist.
LATE_PREPARE_S = 30.0


@dataclass(frozen=True, slots=True)
class PendingRollback:
    """A rollback that a resource has not confirmed."""

    xid: Xid
    resource_id: str


class InFlight:
    """Transactions in flight, and pending rollbacks. Any thread; one lock, held for moments."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_flight: set[Xid] = set()
        self._watchers: dict[int, set[Xid]] = {}  # by identity; each collects transactions while registered
        self._pending_rollbacks: dict[PendingRollback, float] = {}  # since when

    def add(self, xid: Xid) -> None:
        with self._lock:
            self._in_flight.add(xid)
            for seen in self._watchers.values():
                seen.add(xid)

    def remove(self, xid: Xid) -> None:
        """End tracking of *xid*. Idempotent."""
        with self._lock:
            self._in_flight.discard(xid)

    def is_in_flight(self, xid: Xid) -> bool:
        """True while a thread or task works on *xid*."""
        with self._lock:
            return xid in self._in_flight

    @contextmanager
    def watch(self) -> Iterator[Set[Xid]]:
        """Yield a growing set of every transaction that is in flight at any moment of the block.

        A transaction not in it ended before the block, or belongs to another process, so participants' lists are final
        for it.
        """
        with self._lock:
            seen = set(self._in_flight)
            self._watchers[id(seen)] = seen
        try:
            yield seen
        finally:
            with self._lock:
                del self._watchers[id(seen)]

    def add_rollback(self, xid: Xid, resource_id: str) -> None:
        with self._lock:
            self._pending_rollbacks.setdefault(PendingRollback(xid, resource_id), time.monotonic())

    def remove_rollback(self, rollback: PendingRollback) -> None:
        with self._lock:
            self._pending_rollbacks.pop(rollback, None)

    def pending_rollbacks(self) -> frozenset[PendingRollback]:
        with self._lock:
            return frozenset(self._pending_rollbacks)

    def __len__(self) -> int:
        """Number of transactions in flight."""
        return len(self._in_flight)

    def rollback_ages_s(self) -> list[float]:
        """Return the time since each pending rollback."""
        with self._lock:
            now = time.monotonic()
            return [now - since for since in self._pending_rollbacks.values()]

    def is_past_late_prepare(self, rollback: PendingRollback) -> bool:
        """True if *rollback* is so old that an unlisted branch can't appear any more."""
        with self._lock:
            return time.monotonic() - self._pending_rollbacks.get(rollback, 0.0) > LATE_PREPARE_S
