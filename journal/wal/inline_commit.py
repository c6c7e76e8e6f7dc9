"""Decides whether the event loop or the writer thread fsyncs a batch.

Handing a batch to the writer thread and back costs two thread switches, and the two threads share one interpreter: as
much time as a fast disk takes for an fsync. So the loop writes and fsyncs the batch of an iteration at its end, while
the disk is faster than that; requests that arrive meanwhile share the next fsync. With a slower disk, a larger batch,
or a disk that has stalled, the thread does it, and the loop works in parallel.
"""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

# Mean fsync above which the thread writes. At 0.65 ms, 16 to 64 client threads fared alike either way; at 1.25 ms up to
# a fifth worse with the loop. One client thread always fared better with the loop.
INLINE_FSYNC_S_MAX: Final = 0.001
INLINE_BYTES_MAX: Final = 256 * 1024  # writing them takes as long as waking a thread
# One fsync as long as this, and the thread writes until the disk has had none for CALM_S: while the loop waits for an
# fsync, readers wait too. Shared disks stall a few times a minute, for 50 to 250 ms.
STALL_S: Final = 0.02
CALM_S: Final = 300.0
_LAST_SHARE: Final = 1 / 8  # weight of the last fsync: one of 10 ms takes twenty fast ones to outweigh


class LoopHooks(NamedTuple):
    """Hooks into the event loop whose thread appends to the journal."""

    call_soon: Callable[
        [Callable[[], None]], object
    ]  # call it once this iteration's requests are handled, as call_soon does
    progress: Callable[[], None]  # the work for which `on_progress` wakes the loop; on the loop's thread


class FsyncLatency:
    """Recent mean duration of an fsync, and the last stall. The writer observes each; a disk counts as slow until it
    was measured."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.mean_s = 2 * INLINE_FSYNC_S_MAX
        self._clock = clock
        self._calm_at = 0.0  # when the last stall is CALM_S ago

    def observe(self, seconds: float) -> None:
        self.mean_s += (seconds - self.mean_s) * _LAST_SHARE
        if seconds >= STALL_S:
            self._calm_at = self._clock() + CALM_S

    @property
    def is_low(self) -> bool:
        return self.mean_s < INLINE_FSYNC_S_MAX and self._clock() >= self._calm_at
