"""Measures the longest delay of the event loop's callbacks."""

import asyncio
import time
from collections import deque
from typing import Final

from journal.wal.histogram import Histogram, HistogramSnapshot

INTERVAL_S: Final = 0.01  # between two samples: shorter delays may be missed
IDLE_INTERVAL_S: Final = 0.05  # while the loop has next to nothing to do: samples were most of an idle broker's work
IDLE_SHARE: Final = 0.05  # of a core, at most
WINDOW_S: Final = 60


class LoopDelay:
    """Measures the delay of its event loop, from `start` on. Loop thread only.

    Samples with a timer: it fires late if something else held the loop, the interpreter lock or the processor.
    """

    def __init__(self) -> None:
        self.max_ms = 0.0  # since it began
        self.sampled_at = 0.0  # on the loop's clock; read by any thread
        self._delays = Histogram()  # of all samples, in seconds
        self._seconds: deque[tuple[int, float]] = deque()  # longest delay of each second in the window
        self._loop: asyncio.AbstractEventLoop  # from `start` on
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._interval_s = INTERVAL_S
        self._worked_s = 0.0  # processor time of the loop's thread at the last sample

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.sampled_at = loop.time()
        self._sample_later()

    def stop(self) -> None:
        """Stop measuring. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()

    def window_max_ms(self) -> float:
        """Return the longest delay of the last WINDOW_S seconds."""
        self._drop_old()
        return max((longest for _, longest in self._seconds), default=0.0)

    def delays(self) -> HistogramSnapshot:
        """Return the delays in seconds, one a sample. Any thread."""
        return self._delays.snapshot()

    def record(self, delay_ms: float) -> None:
        second = int(self._loop.time())
        if self._seconds and self._seconds[-1][0] == second:
            delay_ms = max(delay_ms, self._seconds.pop()[1])
        self._seconds.append((second, delay_ms))
        self.max_ms = max(self.max_ms, delay_ms)
        self._drop_old()

    def _sample(self) -> None:
        self.sampled_at = self._loop.time()
        delay_s = self.sampled_at - self._due
        self._delays.observe(max(delay_s, 0.0))
        if delay_s >= 0.001:
            self.record(delay_s * 1000)
        self._sample_later()

    def _sample_later(self) -> None:
        before, self._worked_s = self._worked_s, time.thread_time()
        is_idle = self._worked_s - before < self._interval_s * IDLE_SHARE
        self._interval_s = IDLE_INTERVAL_S if is_idle else INTERVAL_S
        self._due = self._loop.time() + self._interval_s
        self._timer = self._loop.call_at(self._due, self._sample)

    def _drop_old(self) -> None:
        oldest = self._loop.time() - WINDOW_S
        while self._seconds and self._seconds[0][0] < oldest - 1:
            self._seconds.popleft()
