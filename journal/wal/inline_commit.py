"""Decides whether the event loop or the writer thread fsyncs a batch.

Handing a batch to the writer thread and back costs two thread switches, and the two threads share one interpreter: as
much time as a fast disk takes for an fsync. So a busy loop writes and fsyncs the batch of an iteration at its end,
while the disk is faster than that; requests that arrive meanwhile share the next fsync. With a slower disk, a larger
batch, or time to spare, the thread does it, and the loop works in parallel.
"""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

# Mean fsync above which the thread writes. At 0.65 ms, 16 to 64 client threads fared alike either way; at 1.25 ms up to
# a fifth worse with the loop. One client thread always fared better with the loop.
INLINE_FSYNC_S_MAX: Final = 0.001
INLINE_BYTES_MAX: Final = 256 * 1024  # writing them takes as long as waking a thread
# Records a second, in the second before, from which the loop writes. Any disk stalls, shared ones for 50 to 250 ms a
# few times a minute: an fsync on the loop then keeps readers waiting, too. That is worth it for a busy broker alone:
# from 16 threads on, the loop makes a third to two thirds more than the thread.
BUSY_RECORDS_S: Final = 1_000
_LAST_SHARE: Final = 1 / 8  # weight of the last fsync: one of 10 ms takes twenty fast ones to outweigh


class LoopHooks(NamedTuple):
    """Hooks into the event loop whose thread appends to the journal."""

    call_soon: Callable[
        [Callable[[], None]], object
    ]  # call it once this iteration's requests are handled, as call_soon does
    progress: Callable[[], None]  # the work for which `on_progress` wakes the loop; on the loop's thread


class InlinePolicy:
    """Decides by the disk and the load. The writer observes each fsync; a disk counts as slow until it was measured."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._fsync_s = 2 * INLINE_FSYNC_S_MAX  # recent mean
        self._records = 0  # since `_counted_at`
        self._counted_at = clock()
        self._is_busy = False

    def observe_fsync(self, seconds: float) -> None:
        self._fsync_s += (seconds - self._fsync_s) * _LAST_SHARE

    def allows(self, records: int) -> bool:
        """Return True if the loop may fsync the batch of this iteration, with *records* records. Owner's thread."""
        now = self._clock()
        self._records += records
        if (elapsed := now - self._counted_at) >= 1.0:
            self._is_busy = self._records >= BUSY_RECORDS_S * elapsed
            self._records, self._counted_at = 0, now
        return self._is_busy and self._fsync_s < INLINE_FSYNC_S_MAX
