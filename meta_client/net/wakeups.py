"""Wakes threads that wait for replies in turn: each wakes the next one once it runs.

One interpreter runs one thread at a time. Threads woken together would compete for it: each is switched to, finds it
taken, and waits again. In turn, one thread runs while one other waits for the interpreter.

A lock that is taken once decides the race between the waking thread and a waiter that ends its wait by itself (time-out
or exception): both try to take it, and the second one learns that it lost. So a woken waiter always wakes the next one,
however its wait ended, and a waiter that has left is skipped.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

LOOK_S: Final = 1.0  # interval of checks: an interrupt (^C) may stop the thread that was to wake us


class Waitable(Protocol):
    """An object that threads wait for. Set `is_done` first, then call `wake` once."""

    @property
    def is_done(self) -> bool: ...

    @property
    def waiters(self) -> list["Waiter"]: ...


class Waiter:
    """One waiting thread."""

    __slots__ = ("_decided", "_next_waiters", "_wakeup")

    _next_waiters: "deque[Waiter]"  # those behind it, set when it is woken

    def __init__(self) -> None:
        self._wakeup = threading.Lock()  # held until it is woken: the cheapest event there is
        self._wakeup.acquire()
        self._decided = threading.Lock()

    def wait(self, timeout_s: float) -> bool:
        """Wait to be woken, for *timeout_s* at most; return True if woken."""
        return self._wakeup.acquire(timeout=timeout_s)

    def stop_waiting(self) -> None:
        """End the wait; if already woken, wake the next waiter. Call once."""
        if not self._decided.acquire(blocking=False):
            _wake_next(self._next_waiters)

    def wake_up(self, waiters_left: "deque[Waiter]") -> bool:
        """Wake this waiter and pass *waiters_left* on to it; False if it has left."""
        self._next_waiters = waiters_left
        if not self._decided.acquire(blocking=False):
            return False
        self._wakeup.release()
        return True


def wait_done(awaited: Waitable, deadline: float) -> None:
    """Wait until *awaited* is done or *deadline* (monotonic) has passed. Any thread."""
    if awaited.is_done:
        return
    waiter = Waiter()
    try:
        awaited.waiters.append(waiter)
        # Checked after the append, as the waker sets is_done before it looks for waiters: one sees the other.
        while (left_s := deadline - time.monotonic()) > 0 and not awaited.is_done:
            if waiter.wait(min(left_s, LOOK_S)):
                return
    finally:
        waiter.stop_waiting()  # it stays in the list, which lives only as long as the reply


def wake(brought: Iterable[Waitable]) -> None:
    """Wake the waiters of *brought* in turn. Returns once the first one is woken; never blocks."""
    waiters_left: deque[Waiter] = deque()
    for awaited in brought:
        waiters_left.extend(awaited.waiters)  # a copy: one that leaves meanwhile must not hide its neighbour
    _wake_next(waiters_left)


def _wake_next(waiters_left: deque[Waiter]) -> None:
    """Wake the first of *waiters_left* that has not left. One thread at a time: the caller of `wake`, then each woken
    waiter."""
    while waiters_left:
        if waiters_left.popleft().wake_up(waiters_left):
            return
