"""Sealed batches by partition and broker: whose turn it is. Pure: the caller has the clock, and sends.

A partition's batches are sent in the order of their numbers, a few at a time, over one connection; a retry takes its
old place, so that it never overtakes. Batches whose broker is not connected wait for that.
"""

import bisect
import heapq
import math
from dataclasses import dataclass, field
from typing import Final

from meta_client.net.transport import Transport
from meta_client.producer.batch import ProducerBatch
from zk.tree.nodes import Partition

IN_FLIGHT_MAX: Final = 4  # batches per queue; a broker remembers the last eight (PROTOCOL.md)
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingConfig:
    """Batching and retries of `send_async`.

    A batch of *batch_bytes* is sent at once, a smaller one after *linger_s*. A message is given up after
    *delivery_timeout_s*. *buffer_bytes_max* limits the bytes of unsettled messages: above it, send_async blocks, or
    raises BufferFull if *raise_when_full*.
    """

    batch_bytes: int = 256 * 1024
    linger_s: float = 0.002
    delivery_timeout_s: float = 30.0
    buffer_bytes_max: int = 32 * 1024 * 1024
    raise_when_full: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.batch_bytes <= 4 * 1024 * 1024:
            raise ValueError(f"batch_bytes {self.batch_bytes} is not from 1 to 4 MiB")
        if self.linger_s < 0 or self.delivery_timeout_s <= 0:
            raise ValueError(f"linger_s {self.linger_s} or delivery_timeout_s {self.delivery_timeout_s} is negative")
        if self.buffer_bytes_max < self.batch_bytes:
            raise ValueError(f"buffer_bytes_max {self.buffer_bytes_max} < batch_bytes {self.batch_bytes}")


@dataclass(slots=True, eq=False)
class BrokerLink:
    """The connection to one broker, and the queues whose first batch may go over it."""

    broker_id: int
    ready: dict["PartitionQueue", None] = field(default_factory=dict, repr=False)
    connection: Transport | None = None  # the last one, unless it is known to be broken
    takes_batches: bool = False  # the broker has `mput`
    is_connecting: bool = False
    answered_at: float = 0.0  # time of the last answer
    answered_of: float = 0.0  # time at which its request was sent
    failures: int = 0  # attempts to connect that failed, in a row
    backoff_until: float = 0.0  # monotonic; 0: no back-off


@dataclass(slots=True, eq=False)
class PartitionQueue:
    link: BrokerLink
    waiting: list[ProducerBatch] = field(default_factory=list)  # by number
    in_flight: int = 0
    connection: Transport | None = None  # of those in flight; None without any
    is_exclusive: bool = False  # the one in flight is sent singly
    next_number: int = 0
    backoff_until: float = 0.0  # monotonic; 0: no back-off

    @property
    def is_ready(self) -> bool:
        """True if the first waiting batch may be sent, once its broker is connected.

        Not beside others on another connection, which it could overtake; nor beside one that is sent singly: more of
        that follow, and a broker without `mput` executes requests in any order.
        """
        if not self.waiting or self.backoff_until:
            return False
        if not self.in_flight:
            return True
        takes_more = self.link.takes_batches and not self.is_exclusive and self.in_flight < IN_FLIGHT_MAX
        return takes_more and self.connection is self.link.connection


class PartitionQueues:
    """Sealed, unsettled batches. One thread at a time.

    The cost of every method except `drain` is independent of the number of queues that are not ready.
    """

    def __init__(self) -> None:
        self.sendable: dict[BrokerLink, None] = {}  # connected, with ready queues
        self.unconnected: dict[BrokerLink, None] = {}  # with ready queues, to be connected now
        self._queues: dict[tuple[str, Partition], PartitionQueue] = {}
        self._links: dict[int, BrokerLink] = {}
        self._backing_off: list[tuple[float, int, PartitionQueue | BrokerLink]] = []  # a heap
        self._backoffs = 0

    # -- batches: enqueued, taken, then started, stopped, and put back or dropped -----------------------------------

    def enqueue(self, batch: ProducerBatch) -> None:
        """Number *batch* and append it to its partition's queue."""
        if (queue := self._queues.get((batch.topic, batch.partition))) is None:
            queue = self._queues[batch.topic, batch.partition] = PartitionQueue(self.link(batch.partition.broker_id))
        batch.number = queue.next_number
        queue.next_number += 1
        queue.waiting.append(batch)
        self._update(queue)

    def maybe_take(self) -> tuple[ProducerBatch, BrokerLink] | None:
        """Take a batch that may be sent now, over its broker's connection; the caller starts it, or drops it."""
        for link in self.sendable:
            for queue in link.ready:
                batch = queue.waiting.pop(0)
                self._update(queue)
                return batch, link
        return None

    def start(self, batch: ProducerBatch) -> Transport:
        """Mark *batch*, just taken, as in flight; return its connection."""
        queue = self._queue_of(batch)
        connection = queue.link.connection
        assert connection is not None
        queue.in_flight += 1
        queue.is_exclusive = batch.sends_singly
        queue.connection = batch.connection = connection
        self._update(queue)
        return connection

    def stop(self, batch: ProducerBatch, *, is_lost: bool) -> None:
        """Mark *batch* as in flight no more; *is_lost*: its connection broke."""
        queue = self._queue_of(batch)
        if is_lost and queue.link.connection is batch.connection:
            queue.link.connection = None
            for other in list(queue.link.ready):
                self._update(other)
        queue.in_flight -= 1
        batch.connection = None
        if not queue.in_flight:
            queue.connection, queue.is_exclusive = None, False
        self._update(queue)

    def put_back(self, batch: ProducerBatch) -> None:
        """Queue *batch* again, in its old place."""
        queue = self._queue_of(batch)
        bisect.insort(queue.waiting, batch, key=_number)
        self._update(queue)

    def back_off(self, batch: ProducerBatch, now: float) -> None:
        """Send nothing of *batch*'s queue for a while, which grows with its failures."""
        queue = self._queue_of(batch)
        queue.backoff_until = self._back_off(queue, batch.failures, now)
        self._update(queue)

    def end_backoff(self, batch: ProducerBatch) -> None:
        """End the back-off of *batch*'s queue: an answer came."""
        queue = self._queue_of(batch)
        queue.backoff_until = 0.0
        self._update(queue)

    def drain(self, link: BrokerLink | None = None) -> list[ProducerBatch]:
        """Take every waiting batch; with *link*, of its ready queues."""
        found: list[ProducerBatch] = []
        for queue in list(self._queues.values() if link is None else link.ready):
            found += queue.waiting
            queue.waiting = []
            self._update(queue)
        return found

    def has(self, topic: str, partition: Partition) -> bool:
        """Return True if batches of the partition wait or are in flight."""
        queue = self._queues.get((topic, partition))
        return queue is not None and bool(queue.waiting or queue.in_flight)

    # -- brokers ---------------------------------------------------------------------------------------------------

    def link(self, broker_id: int) -> BrokerLink:
        if (link := self._links.get(broker_id)) is None:
            link = self._links[broker_id] = BrokerLink(broker_id)
        return link

    def answered(self, batch: ProducerBatch, now: float) -> None:
        link = self._queue_of(batch).link
        link.answered_at, link.answered_of = now, batch.sent_at

    def awaited_since(self, batch: ProducerBatch) -> float:
        """Return since when the answer to *batch*, which is in flight, is the next one. A broker answers in order: one
        that answers what was sent before, be it slowly because of a quota, has not come to *batch* yet."""
        link = self._queue_of(batch).link
        return max(batch.sent_at, link.answered_at) if link.answered_of <= batch.sent_at else batch.sent_at

    def maybe_connect(self) -> tuple[int, tuple[str, ...]] | None:
        """Take the id of a broker to connect to, and the topics that need it."""
        for link in self.unconnected:
            link.is_connecting = True
            self._update_link(link)
            return link.broker_id, tuple({queue.waiting[0].topic: None for queue in link.ready})
        return None

    def connected(self, link: BrokerLink, connection: Transport, *, takes_batches: bool) -> None:
        link.is_connecting, link.failures, link.backoff_until = False, 0, 0.0
        link.connection, link.takes_batches = connection, takes_batches
        self._update_link(link)

    def not_connected(self, link: BrokerLink, now: float) -> None:
        """Note a failed attempt to connect: the next one follows a back-off."""
        link.is_connecting = False
        link.failures += 1
        link.backoff_until = self._back_off(link, link.failures, now)
        self._update_link(link)

    # -- time ------------------------------------------------------------------------------------------------------

    def end_backoffs(self, now: float) -> None:
        """End the back-offs that are over."""
        while self._backing_off and self._backing_off[0][0] <= now:
            _, _, resting = heapq.heappop(self._backing_off)
            if resting.backoff_until <= now:
                resting.backoff_until = 0.0
                if isinstance(resting, PartitionQueue):
                    self._update(resting)
                else:
                    self._update_link(resting)

    @property
    def next_due(self) -> float:
        """Time when the next back-off ends; infinite if there is none."""
        return self._backing_off[0][0] if self._backing_off else math.inf

    def _back_off(self, resting: PartitionQueue | BrokerLink, failures: int, now: float) -> float:
        until = now + min(RETRY_FIRST_S * 2.0 ** min(failures - 1, 10), RETRY_MAX_S)
        self._backoffs += 1
        heapq.heappush(self._backing_off, (until, self._backoffs, resting))
        return until

    def _update(self, queue: PartitionQueue) -> None:
        if queue.is_ready:
            queue.link.ready[queue] = None
        else:
            queue.link.ready.pop(queue, None)
        self._update_link(queue.link)

    def _update_link(self, link: BrokerLink) -> None:
        is_connected = link.connection is not None
        may_connect = not (is_connected or link.is_connecting or link.backoff_until)
        for links, belongs in ((self.sendable, is_connected), (self.unconnected, may_connect)):
            if belongs and link.ready:
                links[link] = None
            else:
                links.pop(link, None)

    def _queue_of(self, batch: ProducerBatch) -> PartitionQueue:
        return self._queues[batch.topic, batch.partition]


def _number(batch: ProducerBatch) -> int:
    return batch.number
