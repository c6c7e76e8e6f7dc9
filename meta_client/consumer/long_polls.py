"""Long polls: fetches that wait at brokers, one per partition, without a thread each.

Removing a poll from the table decides the outcome of its request: answer, timeout or withdrawal of its partition. So
each request comes back once at most.
"""

import threading
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from meta_client.consumer.fetch_request import FetchRequest
from meta_client.consumer.plan import TopicPartition
from meta_client.errors import ReplyTimeout
from meta_client.net.calls import checked_data
from meta_client.net.pending_reply import PendingReply
from meta_client.net.transport import Transport
from meta_client.protocol.requests import Fetch
from meta_client.protocol.responses import Data

EARLY = 0.5  # an empty answer after less than this part of the wait is early


class _LongPoll(NamedTuple):
    request: FetchRequest
    connection: Transport
    started_at: float
    wait_s: float


class LongPollResult(NamedTuple):
    """Outcome of a long poll: an answer, or a timeout."""

    reply: PendingReply | None
    waited_s: float
    wait_s: float  # as requested

    def data(self, what: str) -> Data:
        """Return the answer. Raises as checked_data, and ConnectionLost, ReplyTimeout."""
        if self.reply is None:
            raise ReplyTimeout(f"{what}: no answer within {self.waited_s:.1f} s, though the broker sends heart-beats")
        return checked_data(self.reply.wait(0), what)

    @property
    def is_early(self) -> bool:
        """True if the broker answered early: an empty answer is then no reason to poll again at once."""
        return self.waited_s < self.wait_s * EARLY


class LongPolls:
    """All long polls of one consumer. Any thread."""

    def __init__(self, on_finished: Callable[[FetchRequest], None]) -> None:
        """*on_finished* is called, usually on a reader thread, with each request that is back; see `take_result`."""
        self._on_finished = on_finished
        self._lock = threading.Lock()  # guards the next two
        self._polls: dict[int, _LongPoll] = {}  # by opaque
        self._results: dict[FetchRequest, LongPollResult] = {}

    def start(self, request: FetchRequest, connection: Transport, fetch: Fetch) -> None:
        """Send *fetch*; *request* is no longer the caller's. Raises as Connection.submit."""
        with self._lock:
            # Before it is sent: the answer may arrive before submit() returns.
            self._polls[fetch.opaque] = _LongPoll(request, connection, time.monotonic(), fetch.wait_ms / 1000)
        try:
            connection.submit(fetch, self._arrived)
        except BaseException:
            with self._lock:
                self._polls.pop(fetch.opaque, None)
            raise

    def take_result(self, request: FetchRequest) -> LongPollResult | None:
        """Remove and return the result of *request*; None if there is none."""
        with self._lock:
            return self._results.pop(request, None)

    def cancel(self, keys: Collection[TopicPartition]) -> list[FetchRequest]:
        """Drop polls and results of these partitions; late answers are ignored. Returns the requests in flight, which
        are the caller's."""
        with self._lock:
            gone = [(opaque, poll) for opaque, poll in self._polls.items() if poll.request.key in keys]
            for opaque, _ in gone:
                del self._polls[opaque]
            for request in [request for request in self._results if request.key in keys]:
                del self._results[request]
        for opaque, poll in gone:
            poll.connection.abandon(opaque)
        return [poll.request for _, poll in gone]

    def expire_overdue(self, patience_s: float) -> None:
        """Finish polls without an answer *patience_s* after their wait should have ended."""
        now = time.monotonic()
        with self._lock:
            late = [opaque for opaque, poll in self._polls.items() if poll.started_at + poll.wait_s + patience_s <= now]
        for opaque in late:
            self._finish(opaque, None)

    def _arrived(self, reply: PendingReply) -> None:
        self._finish(reply.opaque, reply)

    def _finish(self, opaque: int, reply: PendingReply | None) -> None:
        with self._lock:
            if (poll := self._polls.pop(opaque, None)) is None:
                return
            waited_s = time.monotonic() - poll.started_at
            self._results[poll.request] = LongPollResult(reply, waited_s, poll.wait_s)
        if reply is None:
            poll.connection.abandon(opaque)
        self._on_finished(poll.request)
