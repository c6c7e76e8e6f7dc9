"""Heartbeat schedule of a connection (spec 1.6). Pure: the caller has the clock."""

from enum import Enum

IDLE_S = 10.0  # genuine clients beat after this long without a byte in either direction
ANSWER_S = 5.0
FAILURES_MAX = 3  # in a row


class Beat(Enum):
    """Next action of a connection."""

    WAIT = "nothing"
    SEND = "send a heartbeat"
    GIVE_UP = "close the connection"


class HeartBeat:
    """Heartbeat state of one connection. Owned by its reader thread; times are in seconds, of any one clock."""

    def __init__(self) -> None:
        self._sent_at: float | None = None  # of the request whose reply is due
        self._failures = 0

    def wait_s(self, active_at: float, now: float) -> float:
        """Return the seconds until an action is due if no byte moves. *active_at*: time of the last byte."""
        due_at = active_at + IDLE_S if self._sent_at is None else self._sent_at + ANSWER_S
        return max(0.0, due_at - now)

    def check(self, active_at: float, now: float) -> Beat:
        """Return the action that is due. A SEND counts as sent."""
        if self._sent_at is not None:
            if now < self._sent_at + ANSWER_S:
                return Beat.WAIT
            self._sent_at = None
            return self._failed()
        if now < active_at + IDLE_S:
            return Beat.WAIT
        self._sent_at = now
        return Beat.SEND

    def answered(self, *, good: bool) -> Beat:
        """Record a reply. A good one resets the count of failures."""
        self._sent_at = None
        if good:
            self._failures = 0
            return Beat.WAIT
        return self._failed()

    def _failed(self) -> Beat:
        self._failures += 1
        return Beat.GIVE_UP if self._failures >= FAILURES_MAX else Beat.WAIT
