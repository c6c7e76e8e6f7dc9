"""Looking for the next request a little longer before the loop sleeps, while that pays.

Who waits for each answer before it asks again, one thread with its sends or branches, asks within some tens of
microseconds. To put the loop to sleep in between and wake it up costs both sides as much: a loop that looks on is
there. It looks for 200 us at most after an answer, on its own core, and only while that finds something: when it did
not, it leaves out ever more answers before it looks again. Seastar's reactors do so, too.
"""

import time
from collections.abc import Callable
from typing import Final

LOOK_S: Final = 0.0002
LEFT_OUT_MAX: Final = 255  # answers, before another look: 0.8 us each then


class Lookout:
    """One per loop; its thread only."""

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """*call_soon* is the loop's: what it calls next, and then does not sleep before. *clock*: seconds."""
        self._call_soon = call_soon
        self._clock = clock
        self._is_looking = False
        self._has_come = False
        self._until = 0.0
        self._to_leave_out = 0  # answers, after a look that found nothing
        self._left_out = 0

    def answered(self) -> None:
        """Answers have left: whoever waited for them may ask again."""
        if self._is_looking:
            self._until = self._clock() + LOOK_S
            return
        if self._left_out < self._to_leave_out:
            self._left_out += 1
            return
        self._is_looking, self._has_come, self._left_out = True, False, 0
        self._until = self._clock() + LOOK_S
        self._call_soon(self._look)

    def came(self) -> None:
        """A request has come."""
        self._has_come = True

    def _look(self) -> None:
        if self._has_come:
            self._is_looking, self._to_leave_out = False, 0
        elif self._clock() < self._until:
            self._call_soon(self._look)  # after the sockets were looked at
        else:
            self._is_looking = False
            self._to_leave_out = min(2 * self._to_leave_out + 1, LEFT_OUT_MAX)
