"""The broker's time: the wall clock, believed as far as a clock that nobody sets confirms it.

Records carry this time, and retention by age goes by it. A wall clock may be set, or be wrong for a moment. So it is
followed while it moves as the steady clock does, and a step is believed once it has held for CONFIRM_MS. Until then
time goes on as before. What a step adds is no age: it never makes an older record older.
"""

import logging
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from zk.lease import now

log = logging.getLogger(__name__)

STEP_MS: Final = 60_000  # a difference to the steady clock that is followed at once: slewing, leap seconds, small steps
MOMENT_MS: Final = 100  # between two looks at the steady clock, while the wall clock does nothing odd
CONFIRM_MS: Final = 600_000  # twice as long as ntpd watches a step before it makes one


class Change(Enum):
    """Change that a reading makes."""

    SUSPECTED = "the wall clock stepped, and is not believed yet"
    WITHDRAWN = "the wall clock is back where it was"
    BELIEVED = "the step has held, and is believed"


class Step(NamedTuple):
    """A step forward: records of *before_ms* at the latest are as old as *by_ms* later."""

    before_ms: int
    by_ms: int


class BelievedTime:
    """The rule. Pure: it is told readings of both clocks, in milliseconds."""

    def __init__(self, wall_ms: int, steady_ms: int) -> None:
        self.now_ms = wall_ms  # never goes back
        self.step_ms = 0  # from the believed time to the suspected one, or of the step that was believed last
        self._offset = self._anchor = wall_ms - steady_ms  # what is believed; and where it was of late
        self._anchor_until = steady_ms + CONFIRM_MS
        self._suspected: int | None = None
        self._suspected_since = 0
        self._present_ms = wall_ms  # as now_ms, but it goes back, and is never ahead of the wall clock
        self.steps: tuple[Step, ...] = ()  # forward, that were believed; replaced, never changed
        self._steady = steady_ms
        # The time that a start finds passed since the newest record is believed as a step is, for ages alone.
        self._known_ms: int | None = None  # the newest record's, until the rest is confirmed
        self._known_at = 0

    def begin_after(self, newest_ms: int) -> bool:
        """The journal was found with a newest record of *newest_ms*, 0 if it has none. False: the wall clock has still
        to confirm that as much time has passed since."""
        if 0 < newest_ms < self._present_ms - STEP_MS:
            self._known_ms, self._known_at = newest_ms, self._steady
        self.now_ms = max(self.now_ms, newest_ms)
        return self._known_ms is None

    def read(self, wall_ms: int, steady_ms: int) -> Change | None:
        """Take a reading; afterwards `now_ms` is the time."""
        change: Change | None = None
        offset = wall_ms - steady_ms
        if abs(offset - self._anchor) <= STEP_MS:
            if self._suspected is not None:
                self._suspected, change = None, Change.WITHDRAWN
            self._offset = offset
            if steady_ms >= self._anchor_until:
                self._anchor, self._anchor_until = offset, steady_ms + CONFIRM_MS
        elif self._suspected is None or abs(offset - self._suspected) > STEP_MS:
            self._suspected, self._suspected_since, change = offset, steady_ms, Change.SUSPECTED
            self.step_ms = offset - self._offset
        elif steady_ms - self._suspected_since >= CONFIRM_MS:
            self._believe(offset, steady_ms)
            change = Change.BELIEVED
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
            self.steps = (*self.steps, Step(self.now_ms, self.step_ms))
        self._offset = self._anchor = offset
        self._anchor_until = steady_ms + CONFIRM_MS
        self._suspected = None

    def age_ms(self, time_ms: int) -> int:
        """Least age of a record of *time_ms*: what no clock denies; negative for the future."""
        present_ms = self._present_ms
        if self._known_ms is not None:
            present_ms = min(present_ms, self._known_ms + self._steady - self._known_at)
        return present_ms - time_ms - sum(step.by_ms for step in self.steps if time_ms <= step.before_ms)


def steady_clock_ms() -> int:
    """Milliseconds on a clock that nobody sets."""
    return int(now() * 1000)


class Clock:
    """One broker's BelievedTime, with both clocks, and the log. Loop thread only."""

    def __init__(self, wall_ms: Callable[[], int], steady_ms: Callable[[], int] = steady_clock_ms) -> None:
        self._wall_ms = wall_ms
        self.steady_ms = steady_ms
        self._believed = BelievedTime(wall_ms(), steady_ms())
        # Between these the wall clock needs no confirming: it stands where it did a moment ago.
        self._from_ms = self._until_ms = 0

    def now_ms(self) -> int:
        """The time, in Unix milliseconds. Call it every few seconds at least, or a step waits to be noticed."""
        wall_ms = self._wall_ms()
        if self._from_ms <= wall_ms < self._until_ms:
            self._from_ms = wall_ms
            return wall_ms
        return self._read(wall_ms)

    def _read(self, wall_ms: int) -> int:
        believed = self._believed
        if (change := believed.read(wall_ms, self.steady_ms())) is not None:
            _tell(change, believed.step_ms)
        now_ms = max(believed.now_ms, self._from_ms)
        self._from_ms, self._until_ms = now_ms, wall_ms + MOMENT_MS if now_ms == wall_ms else 0
        return now_ms

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps forward that were believed: whoever keeps them gives them to `begin_after` at the next start."""
        return self._believed.steps

    def begin_after(self, newest_ms: int, steps: tuple[Step, ...] = ()) -> None:
        """Begin after the newest record, as BelievedTime does; *steps* were believed in earlier lives."""
        self._believed.steps = steps
        now_ms = self._read(self._wall_ms())
        if not self._believed.begin_after(newest_ms):
            log.warning(
                "newest record is old by_s=%d: the broker was down or idle, or the clock is wrong; nothing is deleted "
                "by age until the clock has held for %d s",
                *((now_ms - newest_ms) // 1000, CONFIRM_MS // 1000),
            )

    def age_ms(self, time_ms: int) -> int:
        """Least age of a record of *time_ms*, by a new reading of both clocks."""
        self._read(self._wall_ms())
        return self._believed.age_ms(time_ms)


def _tell(change: Change, step_ms: int) -> None:
    by_s = step_ms / 1000
    match change:
        case Change.SUSPECTED:
            log.warning(
                "wall clock stepped by_s=%.0f: not believed until it has held for %d s; time goes on without it",
                *(by_s, CONFIRM_MS // 1000),
            )
        case Change.WITHDRAWN:
            log.warning("wall clock is back after a step of by_s=%.0f that was not believed", by_s)
        case Change.BELIEVED:
            ahead = "" if step_ms > 0 else ": records keep the latest time until the clock has passed it"
            log.warning("wall clock step believed by_s=%.0f%s; nothing ages by it", by_s, ahead)
