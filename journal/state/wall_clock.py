"""Wall clock that stamps records.

Message ids hold 41 bits of it, and are never before a record's time: a record beyond their end would leave no id for
later messages.
"""

import time
from typing import Final

from journal.errors import ClockWrong

TIME_MS_END: Final = 3_502_918_916_055  # in 2081


def wall_clock_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def check_clock(time_ms: int) -> None:
    """Check that records may carry *time_ms*. Raises ClockWrong."""
    if time_ms >= TIME_MS_END:
        raise ClockWrong(
            f"the clock says {time.strftime('%Y-%m-%d', time.gmtime(time_ms / 1000))}, and message ids end in 2081: "
            f"set it; nothing was written"
        )
