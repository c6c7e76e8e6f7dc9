"""Holds the producers for a kill: a transaction at a step, or all of them at a number of invoices."""

import threading
from collections.abc import Callable

from journal.records.xid import Xid
from meta_client.coordinator import Step


class Traps:
    """A coordinator's observer. Any thread. *on_trapped* is called on the held thread, before it waits."""

    def __init__(self, on_trapped: Callable[[Step, Xid], None]) -> None:
        self._on_trapped = on_trapped
        self._lock = threading.Lock()  # guards the two fields below
        self._armed: set[Step] = set()
        self._release = threading.Event()

    def arm(self, steps: set[Step]) -> None:
        """Hold the next transaction that reaches each of *steps*."""
        with self._lock:
            self._armed |= steps
            self._release = threading.Event()

    def release(self) -> None:
        """Disarm, and release all held transactions."""
        with self._lock:
            self._armed.clear()
            self._release.set()

    def observe(self, step: Step, xid: Xid) -> None:
        """Wait if the trap for *step* is armed. The coordinator calls it after each step."""
        if not self._armed:  # without the lock: rarely armed, and a trap may miss a transaction that races with it
            return
        with self._lock:
            if step not in self._armed:
                return
            self._armed.discard(step)
            release = self._release
        self._on_trapped(step, xid)
        release.wait()


class Gate:
    """Lets a number of callers through; others wait until it is raised. Any thread."""

    def __init__(self, limit: int) -> None:
        self._changed = threading.Condition()  # guards the two fields below
        self._limit = limit
        self._passed = 0

    def pass_through(self) -> None:
        """Wait for a place below the limit, and take it."""
        with self._changed:
            self._changed.wait_for(lambda: self._passed < self._limit)
            self._passed += 1

    def raise_to(self, limit: int) -> None:
        with self._changed:
            self._limit = limit
            self._changed.notify_all()
