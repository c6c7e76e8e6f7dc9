"""Batches by partition: order, numbers, linger time and retries. Pure: the caller has the clock, and sends.

One queue per partition. Its batches are sent in the order of their numbers, a few at a time; a retry takes its old
place, so that it never overtakes.
"""

import bisect
import heapq
import itertools
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from meta_client.metadata.topology import TopicView
from meta_client.net.transport import Transport
from meta_client.producer.batch import ProducerBatch
from meta_client.producer.outgoing import RoundRobin
from zk.tree.nodes import Partition

IN_FLIGHT_MAX: Final = 4  # batches per queue; a broker remembers the last eight (PROTOCOL.md)
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
UNREACHABLE_S: Final = 1.0  # messages without a wanted partition avoid a broker for so long after a failed connect

BatchKey = tuple[str, Partition | None]  # topic, and the partition if the caller named one


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
class PartitionQueue:
    """Sealed, unsettled batches of one partition, by number."""

    broker_id: int
    waiting: list[ProducerBatch] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)  # numbers of those taken and not yet submitted
    on_wire: int = 0  # submitted, and neither settled nor requeued
    connection: Transport | None = None  # of those on the wire; None without any
    is_draining: bool = False  # send nothing until those on the wire are answered
    next_number: int = 0
    backoff_until: float = 0.0  # monotonic; 0: no back-off

    @property
    def in_flight(self) -> int:
        return len(self.taken) + self.on_wire

    @property
    def is_sendable(self) -> bool:
        return bool(self.waiting) and self.in_flight < IN_FLIGHT_MAX and not self.is_draining and not self.backoff_until


class PartitionQueues:
    """Open batches by topic, and sealed ones by partition. One thread at a time: the sender holds its lock.

    The cost of every method except `drain` is independent of the number of queues.
    """

    def __init__(self, config: BatchingConfig) -> None:
        self._config = config
        # Batches that gather messages, or are full. In the order of opening, which is that of their due times.
        self.open: dict[BatchKey, ProducerBatch] = {}
        self._queues: dict[tuple[str, Partition], PartitionQueue] = {}
        self._sendable: dict[PartitionQueue, None] = {}
        self._backing_off: list[tuple[float, int, PartitionQueue]] = []  # a heap
        self._backoffs = 0
        self._choices: dict[str, RoundRobin] = {}
        self._sealed = 0  # sealed, unsettled batches
        self._unreachable: dict[int, float] = {}  # by broker id: avoid it until then

    def open_batch(self, view: TopicView, wanted: Partition | None, now: float) -> ProducerBatch:
        """Seal the open batch, if any, and open a new one for *view*'s topic: in *wanted*, or in a chosen partition,
        preferably of a broker that was reachable.

        Raises NoPartition; nothing is changed then.
        """
        key = (view.topic, wanted)
        partition = self._choice(view).choose_allowing_down(view, wanted, self._avoided(now))
        if key in self.open:
            self.seal(key)
        config = self._config
        due, deadline = now + config.linger_s, now + config.delivery_timeout_s
        batch = ProducerBatch(view.topic, partition, config.batch_bytes, due, deadline, is_movable=wanted is None)
        self.open[key] = batch
        return batch

    def _choice(self, view: TopicView) -> RoundRobin:
        return self._choices.setdefault(view.topic, RoundRobin())

    def seal_due(self, now: float) -> None:
        """Seal the batches whose linger time is over."""
        for key in list(itertools.takewhile(lambda key: self.open[key].due <= now, self.open)):
            self.seal(key)

    def seal_all(self) -> None:
        for key in list(self.open):
            self.seal(key)

    def seal(self, key: BatchKey) -> None:
        """Close the open batch of *key* to messages, number it and queue it."""
        batch = self.open.pop(key)
        self._sealed += 1
        self._enqueue(batch)

    def _enqueue(self, batch: ProducerBatch) -> None:
        """Append to its partition's queue, with the next number."""
        if (queue := self._queues.get((batch.topic, batch.partition))) is None:
            queue = self._queues[batch.topic, batch.partition] = PartitionQueue(batch.partition.broker_id)
        batch.number = queue.next_number
        queue.next_number += 1
        queue.waiting.append(batch)
        self._update_sendable(queue)

    def take_ready(self, now: float, brokers: Collection[int] | None = None) -> list[ProducerBatch]:
        """Take the batches to send now (to *brokers* only, if given), in order. Each counts as in flight until
        `mark_settled`, `requeue`, or a `mark_submitted` that returns False."""
        while self._backing_off and self._backing_off[0][0] <= now:
            _, _, queue = heapq.heappop(self._backing_off)
            if queue.backoff_until <= now:
                queue.backoff_until = 0.0
                self._update_sendable(queue)
        ready: list[ProducerBatch] = []
        for queue in list(self._sendable):
            if brokers is None or queue.broker_id in brokers:
                count = min(IN_FLIGHT_MAX - queue.in_flight, len(queue.waiting))
                ready += queue.waiting[:count]
                queue.taken.update(map(_number, queue.waiting[:count]))
                del queue.waiting[:count]
                del self._sendable[queue]
        return ready

    @property
    def has_sendable(self) -> bool:
        """True if `take_ready` would return batches. Any thread may ask without the lock."""
        return bool(self._sendable)

    def mark_submitted(self, batch: ProducerBatch, connection: Transport, *, alone: bool = False) -> bool:
        """Mark a taken *batch* as in flight on *connection*; False if it has to wait, and it is queued again.

        It must not overtake a retry, nor batches in flight on another connection; with *alone* none in flight at all,
        as the broker may execute requests out of order.
        """
        queue = self._queue_of(batch)
        queue.taken.remove(batch.number)
        is_draining = queue.on_wire > 0 and (alone or queue.connection is not connection)
        earlier = [*queue.taken, *map(_number, queue.waiting[:1])]
        if is_draining or any(number < batch.number for number in earlier):
            queue.is_draining = is_draining
            bisect.insort(queue.waiting, batch, key=_number)
            self._update_sendable(queue)
            return False
        queue.on_wire += 1
        queue.connection = batch.connection = connection
        return True

    def mark_settled(self, batch: ProducerBatch) -> None:
        """Remove *batch*, which was in flight and is settled."""
        queue = self._queue_of(batch)
        queue.backoff_until = 0.0
        self._sealed -= 1
        self._release(queue, batch)

    def requeue(self, batch: ProducerBatch, now: float) -> None:
        """Queue *batch*, which was in flight, to be sent again after a back-off that grows with its failures."""
        queue = self._queue_of(batch)
        queue.backoff_until = now + min(RETRY_FIRST_S * 2.0 ** min(batch.failures - 1, 10), RETRY_MAX_S)
        self._backoffs += 1
        heapq.heappush(self._backing_off, (queue.backoff_until, self._backoffs, queue))
        self.requeue_now(batch)

    def requeue_now(self, batch: ProducerBatch) -> None:
        """Queue *batch*, which was in flight and goes singly, to send its next message at once."""
        queue = self._queue_of(batch)
        bisect.insort(queue.waiting, batch, key=_number)
        self._release(queue, batch)

    def maybe_move(self, batch: ProducerBatch, view: TopicView | None, now: float) -> bool:
        """Move a taken *batch* whose broker could not be reached to another broker, and with it all movable batches
        queued behind it; False if it can't move."""
        self._unreachable[batch.partition.broker_id] = now + UNREACHABLE_S
        avoided = self._avoided(now)
        if view is None:
            return False
        if not batch.is_movable or batch.attempts or all(p.broker_id in avoided for p in view.available):
            return False
        queue = self._queue_of(batch)
        moving = [batch, *(other for other in queue.waiting if other.is_movable and not other.attempts)]
        queue.waiting = [other for other in queue.waiting if not other.is_movable or other.attempts]
        self._release(queue, batch)
        for other in moving:
            other.partition = self._choice(view).choose_allowing_down(view, None, avoided)
            self._enqueue(other)
        return True

    def _avoided(self, now: float) -> Collection[int]:
        """Return the brokers that could not be reached a moment ago."""
        if self._unreachable:
            self._unreachable = {broker_id: until for broker_id, until in self._unreachable.items() if until > now}
        return self._unreachable

    def has_pending(self, topic: str, partition: Partition) -> bool:
        """Return True if messages for *partition* are gathered by name, queued or in flight."""
        queue = self._queues.get((topic, partition))
        return (topic, partition) in self.open or (queue is not None and bool(queue.waiting or queue.in_flight))

    def _release(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        if batch.connection is not None:
            batch.connection = None
            queue.on_wire -= 1
        else:
            queue.taken.remove(batch.number)
        if not queue.on_wire:
            queue.is_draining, queue.connection = False, None
        self._update_sendable(queue)

    def _update_sendable(self, queue: PartitionQueue) -> None:
        if queue.is_sendable:
            self._sendable[queue] = None
        else:
            self._sendable.pop(queue, None)

    def _queue_of(self, batch: ProducerBatch) -> PartitionQueue:
        return self._queues[batch.topic, batch.partition]

    def next_due(self) -> float | None:
        """Return the time when the next linger or back-off ends; None if there is none."""
        oldest = next(iter(self.open.values()), None)
        rest = self._backing_off[0][0] if self._backing_off else None
        if oldest is None or rest is None:
            return rest if oldest is None else oldest.due
        return min(oldest.due, rest)

    def drain(self) -> list[ProducerBatch]:
        """Take everything open or queued, sendable or not, to be settled by the caller."""
        self.seal_all()
        self._sendable.clear()
        everything: list[ProducerBatch] = []
        for queue in self._queues.values():
            queue.taken.update(map(_number, queue.waiting))
            everything += queue.waiting
            queue.waiting = []
        return everything

    @property
    def is_empty(self) -> bool:
        """True if nothing is open, queued or in flight."""
        return not self.open and not self._sealed


def _number(batch: ProducerBatch) -> int:
    return batch.number
