"""Fetches that wait at brokers: one a partition, no thread each.

Whoever takes a flight off the list decides what becomes of its request: the answer that arrives, the patience that
ends, or the partition that is withdrawn. So each comes back once at most.
"""

import threading
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from meta_client.calls import checked_data
from meta_client.consumer.fetch_request import FetchRequest
from meta_client.consumer.plan import TopicPartition
from meta_client.errors import ReplyTimeout
from meta_client.pending_reply import PendingReply
from meta_client.protocol.requests import Fetch
from meta_client.protocol.responses import Data
from meta_client.transport import Transport

EARLY = 0.5  # an empty answer after less than this part of the wait asked for is no wait


class _Flight(NamedTuple):
    request: FetchRequest
    connection: Transport
    launched_at: float
    wait_s: float


class Landing(NamedTuple):
    """What came of a flight: an answer that is there, or none in time."""

    reply: PendingReply | None
    waited_s: float
    wait_s: float  # as asked for

    def data(self, what: str) -> Data:
        """The answer. Raises as checked_data, and ConnectionLost, ReplyTimeout."""
        if self.reply is None:
            raise ReplyTimeout(f"{what}: no answer within {self.waited_s:.1f} s, though the broker sends heart-beats")
        return checked_data(self.reply.wait(0), what)

    @property
    def is_early(self) -> bool:
        """Whether the broker hardly waited: an empty answer is then no reason to ask again at once."""
        return self.waited_s < self.wait_s * EARLY


class Flights:
    """All that one consumer has waiting at brokers. Any thread."""

    def __init__(self, landed: Callable[[FetchRequest], None]) -> None:
        """*landed* hears of each request that is back; `take` has what it brought. Mostly on a reader thread."""
        self._on_landed = landed
        self._lock = threading.Lock()  # guards the next two
        self._flying: dict[int, _Flight] = {}  # by opaque
        self._landings: dict[FetchRequest, Landing] = {}

    def launch(self, request: FetchRequest, connection: Transport, fetch: Fetch) -> None:
        """Send *fetch*; from here on *request* is not the caller's any more. Raises as Connection.submit."""
        with self._lock:
            # Before it is sent: the answer may be faster than this thread.
            self._flying[fetch.opaque] = _Flight(request, connection, time.monotonic(), fetch.wait_ms / 1000)
        try:
            connection.submit(fetch, self._arrived)
        except BaseException:
            with self._lock:
                self._flying.pop(fetch.opaque, None)
            raise

    def take(self, request: FetchRequest) -> Landing | None:
        """What *request* brought back, once."""
        with self._lock:
            return self._landings.pop(request, None)

    def cancel(self, keys: Collection[TopicPartition]) -> list[FetchRequest]:
        """Forget everything of these partitions; an answer that still comes is dropped. The requests that were under
        way are the caller's now."""
        with self._lock:
            gone = [(opaque, flight) for opaque, flight in self._flying.items() if flight.request.key in keys]
            for opaque, _ in gone:
                del self._flying[opaque]
            for request in [request for request in self._landings if request.key in keys]:
                del self._landings[request]
        for opaque, flight in gone:
            flight.connection.abandon(opaque)
        return [flight.request for _, flight in gone]

    def give_up(self, patience_s: float) -> None:
        """Land whatever has no answer *patience_s* after its wait should have ended."""
        now = time.monotonic()
        with self._lock:
            late = [
                opaque
                for opaque, flight in self._flying.items()
                if flight.launched_at + flight.wait_s + patience_s <= now
            ]
        for opaque in late:
            self._land(opaque, None)

    def _arrived(self, reply: PendingReply) -> None:
        self._land(reply.opaque, reply)

    def _land(self, opaque: int, reply: PendingReply | None) -> None:
        with self._lock:
            if (flight := self._flying.pop(opaque, None)) is None:
                return
            waited_s = time.monotonic() - flight.launched_at
            self._landings[flight.request] = Landing(reply, waited_s, flight.wait_s)
        if reply is None:
            flight.connection.abandon(opaque)
        self._on_landed(flight.request)
