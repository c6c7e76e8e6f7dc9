"""Until when a session surely lives, judged from this side alone. Pure but for its clock.

A server keeps a session for its timeout after the last request it received of it, and received none earlier than it was
sent. So whatever was answered proves that the session lives until its *sending* plus the timeout, even if the answer is
read late, by a process that was stopped in between. Nobody tells a process that it was stopped: it has to look.
"""

import threading
import time
from typing import Final

# What ZooKeeper's own clients take as their read timeout: they look for another server then, with a third left.
LEASE_PART: Final = 2 / 3
ASK_PART: Final = 1 / 6  # how often to ask when nothing else is: the lease outlives three lost answers


def now() -> float:
    """Seconds on a clock that goes on while the process is stopped, and the whole machine suspended where it can."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Lease:
    """The proof that one session lives. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards writing of all below
        self._timeout_s = 0.0
        self._answered_at = 0.0  # when the last request that was answered had been sent
        self._valid_until = 0.0

    @property
    def timeout_s(self) -> float:
        """The session's timeout as its server granted it, which may be less than was asked for; 0 before that."""
        return self._timeout_s

    def granted(self, sent_at: float, timeout_s: float) -> None:
        """A server said, asked at *sent_at*, that the session is there, and has *timeout_s*."""
        with self._lock:
            self._timeout_s = timeout_s
            self._answered_at = sent_at
            self._valid_until = sent_at + timeout_s * LEASE_PART

    def renew(self, sent_at: float) -> None:
        """A request that was sent at *sent_at* was answered."""
        with self._lock:
            if sent_at > self._answered_at:
                self._answered_at = sent_at
                self._valid_until = sent_at + self._timeout_s * LEASE_PART

    def is_valid(self) -> bool:
        """Whether the session's ephemeral nodes are there for sure, now and for a third of its timeout."""
        return now() < self._valid_until
