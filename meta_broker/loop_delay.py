"""Measures how late the event loop runs what is due: its longest delay."""

import asyncio
from collections import deque

INTERVAL_S = 0.01  # between two looks: what keeps the loop for less may not be seen
WINDOW_S = 60


class LoopDelay:
    """Measures its own loop, from `begin` on. Loop thread only.

    A look is a timer: how much later than asked it runs, others held the loop, the interpreter or the processor.
    """

    def __init__(self) -> None:
        self.max_ms = 0.0  # since it began
        self._seconds: deque[tuple[int, float]] = deque()  # the longest of each second of the window, if there was one
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._look_later()

    def end(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()

    def window_max_ms(self) -> float:
        """The longest of the last WINDOW_S seconds."""
        self._forget()
        return max((longest for _, longest in self._seconds), default=0.0)

    def note(self, delay_ms: float) -> None:
        """One look ran so late."""
        assert self._loop is not None
        second = int(self._loop.time())
        if self._seconds and self._seconds[-1][0] == second:
            delay_ms = max(delay_ms, self._seconds.pop()[1])
        self._seconds.append((second, delay_ms))
        self.max_ms = max(self.max_ms, delay_ms)
        self._forget()

    def _look(self) -> None:
        assert self._loop is not None
        if (delay_s := self._loop.time() - self._due) >= 0.001:
            self.note(delay_s * 1000)
        self._look_later()

    def _look_later(self) -> None:
        assert self._loop is not None
        self._due = self._loop.time() + INTERVAL_S
        self._timer = self._loop.call_at(self._due, self._look)

    def _forget(self) -> None:
        assert self._loop is not None
        oldest = self._loop.time() - WINDOW_S
        while self._seconds and self._seconds[0][0] < oldest - 1:
            self._seconds.popleft()
