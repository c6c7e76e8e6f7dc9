"""Histogram of numbers observed on a hot path: two additions and a search in some sixteen bounds, half a microsecond.

Exported beside the hot path: `snapshot` may be called on any thread. One thread observes at a time.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

# Seconds: from a request in memory to a disk that hangs.
SECONDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
BYTES: Final = tuple(float(1 << power) for power in range(8, 24, 2))  # 256 bytes to 4 MiB


class HistogramSnapshot(NamedTuple):
    """Numbers observed so far: how many lie at or below each of *bounds* and above the one before; the last of
    *counts* lies above them all."""

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float


class Histogram:
    """Counts what is observed by *bounds*, which ascend."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def snapshot(self) -> HistogramSnapshot:
        """Return what was observed; the sum may lack, or have, one observation more. Any thread."""
        return HistogramSnapshot(self._bounds, tuple(self._counts), self._sum)
