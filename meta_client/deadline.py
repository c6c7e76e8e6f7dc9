"""One time limit for an operation of several steps."""

import time


class Deadline:
    """A point in time that every step of one operation shares. Immutable."""

    __slots__ = ("_at", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._at = time.monotonic() + timeout_s

    def remaining_s(self) -> float:
        """Seconds left, 0 once it has passed."""
        return max(0.0, self._at - time.monotonic())
