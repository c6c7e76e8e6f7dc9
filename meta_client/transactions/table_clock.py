"""Tells whether a database's clock may be believed: rows of rollbacks are deleted by it, and must outlive every
transaction that could still insert their keys.

Set forward and back again while a transaction stands between PREPARE and its row, it would have the barrier deleted.
"""

from typing import Final

STEP_S: Final = 60.0  # what a clock that is being put right may drift
CONFIRM_S: Final = 600.0  # as long as a broker watches a step of its own before it believes it


class TableClock:
    """A database's clock, held against the steady clock of this process. One thread or task at a time."""

    def __init__(self) -> None:
        self._offset_s: float | None = None
        self._since_s = 0.0

    def is_confirmed(self, clock_s: float, steady_s: float) -> bool:
        """Take a reading of both. True: they have gone together for CONFIRM_S."""
        offset_s = clock_s - steady_s
        if self._offset_s is None or abs(offset_s - self._offset_s) > STEP_S:
            self._offset_s, self._since_s = offset_s, steady_s
        return steady_s - self._since_s >= CONFIRM_S
