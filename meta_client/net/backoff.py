"""Back-off before connecting again to a broker (spec 1.7). Pure: the caller has the clock."""

BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 2.0  # the pace of genuine clients
QUOTA_FIRST_S = 0.05
QUOTA_MAX_S = 1.0


def backoff_after_s(failures: int) -> float:
    """Return the seconds to wait after *failures* failed attempts in a row: none before the first retry."""
    doublings = min(failures - 2, 10)  # past the maximum; a broker may be away for days
    return 0.0 if failures < 2 else min(BACKOFF_FIRST_S * 2.0**doublings, BACKOFF_MAX_S)


def quota_backoff_s(refusals: int) -> float:
    """Return the seconds to wait after a quota has refused something *refusals* times in a row."""
    return min(QUOTA_FIRST_S * 2.0 ** min(refusals - 1, 10), QUOTA_MAX_S)


class Backoff:
    """Connection attempts to one broker. One thread at a time; times are in seconds, of any one clock."""

    __slots__ = ("_retry_at", "failures")

    def __init__(self) -> None:
        self.failures = 0  # in a row
        self._retry_at = 0.0

    def lost(self, now: float, *, was_refused: bool) -> None:
        """Record that an established connection broke; *was_refused*: the broker is at its connection limit."""
        self._set_failures(self.failures + 1 if was_refused else 0, now)  # a broker at its limit accepts, then refuses

    def failed(self, now: float) -> None:
        """Record a failed attempt."""
        self._set_failures(self.failures + 1, now)

    def backoff_s(self, now: float) -> float:
        """Return the seconds until the next attempt is due."""
        return max(0.0, self._retry_at - now)

    def _set_failures(self, failures: int, now: float) -> None:
        self.failures = failures
        self._retry_at = now + backoff_after_s(failures)
