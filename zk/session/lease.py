"""The lease of a session: the time until which it certainly lives, judged locally. Pure except for its clock.

A server keeps a session for its timeout after the last request it received, and receives none before it was sent. So a
reply proves that the session lives until the request was *sent* plus the timeout, even if a process that was stopped
reads the reply late. A process is not notified that it was stopped: it must check the lease.
"""

import functools
import threading
import time
from collections.abc import Callable
from typing import Final

# The read timeout of ZooKeeper's own clients, which leaves a third of the session to find another server.
LEASE_FRACTION: Final = 2 / 3
PING_FRACTION: Final = 1 / 6  # interval of pings on an idle connection: the lease outlives three lost replies


# Seconds of a clock that runs on while the process is stopped and, if possible, the machine suspended.
now: Final[Callable[[], float]] = (
    functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)


class Lease:
    """The lease of one session. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards writing of all below
        self._timeout_s = 0.0
        self._answered_at = 0.0  # when the last request that was answered had been sent
        self._valid_until = 0.0

    @property
    def timeout_s(self) -> float:
        """Session timeout granted by the server, which may be less than requested; 0 before that."""
        return self._timeout_s

    def granted(self, sent_at: float, timeout_s: float) -> None:
        """Begin the lease: the server granted *timeout_s* in reply to a request sent at *sent_at*."""
        with self._lock:
            self._timeout_s = timeout_s
            self._answered_at = sent_at
            self._valid_until = sent_at + timeout_s * LEASE_FRACTION

    def renew(self, sent_at: float) -> None:
        """Extend the lease: a request sent at *sent_at* was answered."""
        with self._lock:
            if self._valid_until and sent_at > self._answered_at:
                self._answered_at = sent_at
                self._valid_until = sent_at + self._timeout_s * LEASE_FRACTION

    def end(self) -> None:
        """End the lease until another one is granted: the session is closed, or a server said that it expired. Other
        servers may keep it for its timeout."""
        with self._lock:
            self._valid_until = 0.0

    def is_over(self) -> bool:
        """Return True if every server that ran meanwhile has ended the session."""
        return now() >= self._answered_at + self._timeout_s

    def is_valid(self) -> bool:
        """Return True if the session's ephemeral nodes certainly exist, now and for a third of its timeout."""
        return now() < self._valid_until
