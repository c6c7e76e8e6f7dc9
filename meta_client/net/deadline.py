"""Time limits of operations and of transactions at their broker."""

import time
from threading import TIMEOUT_MAX

from meta_client.protocol.errors import LocalProtocolError
from meta_client.protocol.integers import INT32_MAX


def check_timeout(timeout_s: float) -> float:
    """Return *timeout_s*. Raises ValueError for a negative one, or for NaN, which no wait would end by."""
    if not timeout_s >= 0:
        raise ValueError(f"timeout_s is {timeout_s}: give seconds, 0 or more")
    return timeout_s


class Deadline:
    """Point in time shared by all steps of one operation. Immutable."""

    __slots__ = ("_at", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = check_timeout(timeout_s)
        self._at = time.monotonic() + min(timeout_s, TIMEOUT_MAX)  # infinity, too, is a time that locks take

    def remaining_s(self) -> float:
        """Return the seconds left, 0 once it has passed."""
        return max(0.0, self._at - time.monotonic())


def time_limit(timeout_s: float) -> int | None:
    """Return *timeout_s* in whole seconds, rounded up; None (no limit) for 0.

    Raises LocalProtocolError for a limit that no broker takes.
    """
    if not 0 <= timeout_s <= INT32_MAX:
        raise LocalProtocolError(f"timeout_s is {timeout_s}: give seconds, 0 for none, {INT32_MAX} at most")
    return -int(-timeout_s // 1) or None
