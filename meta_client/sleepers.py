"""Threads that sleep until something is here, and are woken in turn: each wakes the next one once it runs itself.

One interpreter runs one thread at a time. Were all those whose answers come together woken together, they would fight
for it: each of them is switched to, finds it taken, and sleeps again. In turn, one runs while one other waits for it.

What decides is a lock that is never let go: who calls a sleeper, and the sleeper that ends its sleep by itself (its
time is over, or an exception ends it), both try to take it, and whoever comes second knows what the first one did. So
a sleeper that was called wakes the next one however its sleep ended, and one that was not is passed over.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

LOOK_S: Final = 1.0  # how long to trust in being called: an interrupt (^C) may hit whoever was about to do it


class Awaited(Protocol):
    """What threads sleep for. Who brings it sets `is_done` first, and has `wake` look for sleepers afterwards, once."""

    @property
    def is_done(self) -> bool: ...

    @property
    def sleepers(self) -> list["Sleeper"]: ...


class Sleeper:
    """One thread, asleep."""

    __slots__ = ("_bed", "_decided", "_line")

    _line: "deque[Sleeper]"  # those behind it, from when it is called

    def __init__(self) -> None:
        self._bed = threading.Lock()  # held until it is called: the cheapest event there is
        self._bed.acquire()
        self._decided = threading.Lock()

    def sleep(self, timeout_s: float) -> bool:
        """Wait until it is called, for *timeout_s* at most; whether it was."""
        return self._bed.acquire(timeout=timeout_s)

    def leave(self) -> None:
        """Be called no more; or, if it was called, wake the next one. Once, when the sleep is over."""
        if not self._decided.acquire(blocking=False):
            _wake_next(self._line)

    def call(self, line: "deque[Sleeper]") -> bool:
        """Wake it, and leave the rest of *line* to it; False if it has left."""
        self._line = line
        if not self._decided.acquire(blocking=False):
            return False
        self._bed.release()
        return True


def sleep_until(awaited: Awaited, deadline: float) -> None:
    """Return once *awaited* is done, or *deadline* (monotonic) has passed. Any thread."""
    if awaited.is_done:
        return
    sleeper = Sleeper()
    try:
        awaited.sleepers.append(sleeper)
        # Looked at behind the append, as who brings it looks for sleepers behind having set it: one sees the other.
        while (left_s := deadline - time.monotonic()) > 0 and not awaited.is_done:
            if sleeper.sleep(min(left_s, LOOK_S)):
                return
    finally:
        sleeper.leave()  # it stays in the list, which lives no longer than what is slept for once or twice


def wake(brought: Iterable[Awaited]) -> None:
    """Wake whoever sleeps for these, in turn. Returns when the first one is called; never waits."""
    line: deque[Sleeper] = deque()
    for awaited in brought:
        line.extend(awaited.sleepers)  # copied at once: one that leaves meanwhile must not hide its neighbour
    _wake_next(line)


def _wake_next(line: deque[Sleeper]) -> None:
    """Call the first in *line* that has not left. One thread at a time: who made the line, then who was called."""
    while line:
        if line.popleft().call(line):
            return
