"""The broker's time: the wall clock, as far as the monotonic clock confirms it.

Records carry this time, and retention by age uses it. A wall clock may be set, or be wrong for a moment: it is followed
while it moves like the monotonic clock, and a step is accepted once it has held for CONFIRM_MS. Until then time goes on
as before. A step adds no age: it never makes an older record older.
"""

import logging
import time
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from journal.state.wall_clock import TIME_MS_END
from zk.session.lease import now

log = logging.getLogger(__name__)

STEP_MS: Final = 60_000  # a difference to the steady clock that is followed at once: slewing, leap seconds, small steps
MOMENT_MS: Final = 100  # between two readings of the steady clock, while the wall clock is regular
CONFIRM_MS: Final = 600_000  # twice as long as ntpd watches a step before it makes one


class ClockChange(Enum):
    """Change of the believed time that a reading makes."""

    SUSPECTED = "the wall clock stepped, and is not believed yet"
    WITHDRAWN = "the wall clock is back where it was"
    BELIEVED = "the step has held, and is believed"


class ClockStep(NamedTuple):
    """A step forward: records up to *before_ms* count as younger by *by_ms*."""

    before_ms: int
    by_ms: int


class BelievedTime:
    """The rule that accepts or ignores a wall clock's steps. Pure: takes readings of both clocks, in milliseconds."""

    def __init__(self, wall_ms: int, steady_ms: int) -> None:
        self.now_ms = wall_ms  # never decreases
        self.step_ms = 0  # size of the suspected step, or of the last one believed
        self._offset = self._anchor = wall_ms - steady_ms  # believed offset, and a recent one
        self._anchor_until = steady_ms + CONFIRM_MS
        self._suspected: int | None = None
        self._suspected_since = 0
        self._present_ms = wall_ms  # as now_ms, but may decrease, and is never ahead of the wall clock
        self.steps: tuple[ClockStep, ...] = ()  # believed steps forward; replaced, never mutated
        self._steady = steady_ms
        # For ages alone, the time passed since the newest record has to be confirmed, as a step has.
        self._known_ms: int | None = None  # the newest record's, until the rest is confirmed
        self._known_at = 0

    def begin_after(self, newest_ms: int) -> bool:
        """Start after a newest record of *newest_ms*, 0: none. False: the time passed since still has to be
        confirmed.
        """
        if 0 < newest_ms < self._present_ms - STEP_MS:
            self._known_ms, self._known_at = newest_ms, self._steady
        self.now_ms = max(self.now_ms, newest_ms)
        return self._known_ms is None

    def read(self, wall_ms: int, steady_ms: int) -> ClockChange | None:
        """Take a reading; afterwards `now_ms` is the time."""
        change: ClockChange | None = None
        offset = wall_ms - steady_ms
        if abs(offset - self._anchor) <= STEP_MS:
            if self._suspected is not None:
                self._suspected, change = None, ClockChange.WITHDRAWN
            self._offset = offset
            if steady_ms >= self._anchor_until:
                self._anchor, self._anchor_until = offset, steady_ms + CONFIRM_MS
        elif self._suspected is None or abs(offset - self._suspected) > STEP_MS:
            self._suspected, self._suspected_since, change = offset, steady_ms, ClockChange.SUSPECTED
            self.step_ms = offset - self._offset
        elif steady_ms - self._suspected_since >= CONFIRM_MS and wall_ms < TIME_MS_END:
            self._believe(offset, steady_ms)
            change = ClockChange.BELIEVED
        self._steady = steady_ms
        believed_ms = self._offset + steady_ms
        self._present_ms = min(believed_ms, wall_ms)
        if believed_ms > self.now_ms:
            self.now_ms = believed_ms
        if self._known_ms is not None and steady_ms - self._known_at >= CONFIRM_MS and self._suspected is None:
            self._known_ms = None
        return change

    def _believe(self, offset: int, steady_ms: int) -> None:
        self.step_ms = offset - self._offset
        if self.step_ms > 0:
            self.steps = (*self.steps, ClockStep(self.now_ms, self.step_ms))
        self._offset = self._anchor = offset
        self._anchor_until = steady_ms + CONFIRM_MS
        self._suspected = None

    def age_ms(self, time_ms: int) -> int:
        """Return the least age of a record of *time_ms* that both clocks agree on; negative for the future."""
        present_ms = self._present_ms
        if self._known_ms is not None:
            present_ms = min(present_ms, self._known_ms + self._steady - self._known_at)
        return present_ms - time_ms - sum(step.by_ms for step in self.steps if time_ms <= step.before_ms)


def steady_clock_ms() -> int:
    return int(now() * 1000)


class Clock:
    """One broker's BelievedTime, with both clocks, and the log. Loop thread only."""

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, steady_ms: Callable[[], int] = steady_clock_ms
    ) -> None:
        self._wall_ns = wall_ns
        self.steady_ms = steady_ms
        self._believed = BelievedTime(wall_ns() // 1_000_000, steady_ms())
        # Between these the wall clock needs no second reading: it is close to the last one.
        self._from_ms = self._until_ms = 0

    def now_ms(self) -> int:
        """Return the time, in Unix milliseconds. Call it at least every few seconds, or a step goes unnoticed."""
        wall_ms = self._wall_ns() // 1_000_000
        if self._from_ms <= wall_ms < self._until_ms:
            self._from_ms = wall_ms
            return wall_ms
        return self._read(wall_ms)

    def _read(self, wall_ms: int) -> int:
        believed = self._believed
        if (change := believed.read(wall_ms, self.steady_ms())) is not None:
            _log(change, believed.step_ms)
        now_ms = max(believed.now_ms, self._from_ms)
        self._from_ms, self._until_ms = now_ms, wall_ms + MOMENT_MS if now_ms == wall_ms else 0
        return now_ms

    @property
    def steps(self) -> tuple[ClockStep, ...]:
        """Accepted steps forward. Keep them, and pass them to `begin_after` at the next start."""
        return self._believed.steps

    def begin_after(self, newest_ms: int, steps: tuple[ClockStep, ...] = ()) -> None:
        """Start after the newest record, as BelievedTime does; *steps* were accepted in earlier runs."""
        self._believed.steps = steps
        now_ms = self._read(self._wall_ns() // 1_000_000)
        if not self._believed.begin_after(newest_ms):
            log.warning(
                "newest record is old by_s=%d: the broker was down or idle, or the clock is wrong; nothing is deleted "
                "by age until the clock has held for %d s",
                *((now_ms - newest_ms) // 1000, CONFIRM_MS // 1000),
            )

    def age_ms(self, time_ms: int) -> int:
        """Return the least age of a record of *time_ms*, by a new reading of both clocks."""
        self._read(self._wall_ns() // 1_000_000)
        return self._believed.age_ms(time_ms)


def _log(change: ClockChange, step_ms: int) -> None:
    by_s = step_ms / 1000
    match change:
        case ClockChange.SUSPECTED:
            log.warning(
                "wall clock stepped by_s=%.0f: not believed until it has held for %d s; time goes on without it",
                *(by_s, CONFIRM_MS // 1000),
            )
        case ClockChange.WITHDRAWN:
            log.warning("wall clock is back after a step of by_s=%.0f that was not believed", by_s)
        case ClockChange.BELIEVED:
            ahead = "" if step_ms > 0 else ": records keep the latest time until the clock has passed it"
            log.warning("wall clock step believed by_s=%.0f%s; nothing ages by it", by_s, ahead)
