"""The turns of the event loop that owns a journal, as its writer sees them; and when the loop writes by itself.

To hand a batch to the writer thread and to hear of it costs two wakings, and the two threads then share one
interpreter: together that is as much time as a quick disk takes for an fsync. So what a turn has appended is written
and fsynced at its end, on the loop, while the disk is quicker than that; what arrives meanwhile is the next turn's, and
shares one fsync. With a slower disk, or a larger batch, the thread does it, and the loop works beside it.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

# An fsync's time, of late. With 0.65 ms, 16 to 64 threads were served alike by both ways, with 1.25 worse by up to a
# fifth by the loop, and one thread always better. A large batch takes longer on any disk, and so does the loop's work.
QUICK_S: Final = 0.001
BYTES_MAX: Final = 256 * 1024  # to write them takes as long as to wake a thread
_WEIGHT: Final = 1 / 8  # of the last fsync: after a hiccup of 10 ms, twenty good ones


class Turns(NamedTuple):
    """What an event loop does for the journal that its thread appends to."""

    defer: Callable[[Callable[[], None]], object]  # call it when this turn's requests are handled, as call_soon does
    progress: Callable[[], None]  # what `on_progress` has to wake the loop for; on the loop's thread


class DiskPace:
    """How long an fsync takes, of late. Whoever writes notes it; no disk is quick before it was measured."""

    def __init__(self) -> None:
        self.mean_s = 2 * QUICK_S

    def note(self, seconds: float) -> None:
        self.mean_s += (seconds - self.mean_s) * _WEIGHT

    @property
    def is_quick(self) -> bool:
        return self.mean_s < QUICK_S
