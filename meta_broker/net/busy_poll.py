"""Polls for the next request before the loop sleeps, while that pays.

A client that waits for each reply before its next request, a thread with its sends or branches, sends that within some
tens of microseconds; putting the loop to sleep and waking it costs both sides as much. The loop polls for at most 200
us after a reply, on its own core, and only while that finds requests: after each fruitless poll it skips exponentially
more replies. Seastar's reactors do so, too.
"""

import time
from collections.abc import Callable
from typing import Final

POLL_S: Final = 0.0002
SKIPPED_MAX: Final = 255  # replies between two polls, at most


class BusyPoll:
    """Busy polling of one loop; its thread only."""

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """*call_soon* is the loop's, which does not sleep before the call. *clock*: seconds."""
        self._call_soon = call_soon
        self._clock = clock
        self._is_polling = False
        self._has_request = False
        self._until = 0.0
        self._replies_to_skip = 0  # after the last fruitless poll
        self._replies_skipped = 0

    def on_reply(self) -> None:
        """Start polling after a reply, or skip it."""
        if self._is_polling:
            self._until = self._clock() + POLL_S
            return
        if self._replies_skipped < self._replies_to_skip:
            self._replies_skipped += 1
            return
        self._is_polling, self._has_request, self._replies_skipped = True, False, 0
        self._until = self._clock() + POLL_S
        self._call_soon(self._poll)

    def on_request(self) -> None:
        self._has_request = True

    def _poll(self) -> None:
        if self._has_request:
            self._is_polling, self._replies_to_skip = False, 0
        elif self._clock() < self._until:
            self._call_soon(self._poll)  # after the loop has polled its sockets
        else:
            self._is_polling = False
            self._replies_to_skip = min(2 * self._replies_to_skip + 1, SKIPPED_MAX)
