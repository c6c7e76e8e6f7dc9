"""Decides whether the event loop or the writer thread fsyncs a batch.

Handing a batch to the writer thread and back costs two thread switches, and the two threads share one interpreter: as
much time as a fast disk takes for an fsync. So the loop writes and fsyncs the batch of an iteration at its end, while
the disk is faster than that; requests that arrive meanwhile share the next fsync. With a slower disk, or a larger
batch, the thread does it, and the loop works in parallel.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

# Mean fsync above which the thread writes. At 0.65 ms, 16 to 64 client threads fared alike either way; at 1.25 ms up to
# a fifth worse with the loop. One client thread always fared better with the loop.
INLINE_FSYNC_S_MAX: Final = 0.001
INLINE_BYTES_MAX: Final = 256 * 1024  # writing them takes as long as waking a thread
_LAST_SHARE: Final = 1 / 8  # weight of the last fsync: one of 10 ms takes twenty fast ones to outweigh


class LoopHooks(NamedTuple):
    """Hooks into the event loop whose thread appends to the journal."""

    call_soon: Callable[
        [Callable[[], None]], object
    ]  # call it once this iteration's requests are handled, as call_soon does
    progress: Callable[[], None]  # the work for which `on_progress` wakes the loop; on the loop's thread


class FsyncLatency:
    """Recent mean duration of an fsync. The writer observes each; a disk counts as slow until it was measured."""

    def __init__(self) -> None:
        self.mean_s = 2 * INLINE_FSYNC_S_MAX

    def observe(self, seconds: float) -> None:
        self.mean_s += (seconds - self.mean_s) * _LAST_SHARE

    @property
    def is_low(self) -> bool:
        return self.mean_s < INLINE_FSYNC_S_MAX
