"""How long to let a broker rest that could not be connected to (spec 1.7). Pure: the caller has the clock."""

BACK_OFF_FIRST_S = 0.1
BACK_OFF_MAX_S = 2.0  # the pace of genuine clients


def back_off_s(failures: int) -> float:
    """How long to let a broker rest after so many failed attempts in a row: the first retry is free."""
    doublings = min(failures - 2, 10)  # past the maximum; a broker may be away for days
    return 0.0 if failures < 2 else min(BACK_OFF_FIRST_S * 2.0**doublings, BACK_OFF_MAX_S)


class BackOff:
    """The attempts to connect to one broker. One thread at a time; times are in seconds, of any one clock."""

    __slots__ = ("_retry_at", "failures")

    def __init__(self) -> None:
        self.failures = 0  # in a row
        self._retry_at = 0.0

    def lost(self, now: float, *, was_refused: bool) -> None:
        """A connection that was made broke; *was_refused*, because the broker has too many."""
        self._note(self.failures + 1 if was_refused else 0, now)  # connecting is not all that can fail

    def failed(self, now: float) -> None:
        """An attempt failed."""
        self._note(self.failures + 1, now)

    def rest_s(self, now: float) -> float:
        """How long the next attempt has to wait."""
        return max(0.0, self._retry_at - now)

    def _note(self, failures: int, now: float) -> None:
        self.failures = failures
        self._retry_at = now + back_off_s(failures)
