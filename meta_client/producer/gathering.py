"""Gathering: messages join the open batch of their topic, or of the partition that their caller named. Pure."""

from collections.abc import Callable
from typing import Generic, TypeVar, cast

from meta_client import core
from meta_client.errors import BufferFull, ClientClosed, Destination
from meta_client.metadata.topology import TopicView
from meta_client.producer.batch import ProducerBatch
from meta_client.producer.interfaces import QuickAdd
from meta_client.producer.message_run import MessageRun, RunPart
from meta_client.producer.partition_choice import PartitionChoice
from meta_client.producer.partition_queues import BatchingConfig, PartitionQueues
from meta_client.protocol.limits import BATCH_MESSAGES_MAX
from meta_client.protocol.messages import DATA_BYTES_MAX, HEADER_BYTES
from zk.tree.nodes import Partition

H = TypeVar("H")
BatchKey = tuple[str, Partition | None]  # topic, and the partition if the caller named one


class Gathering(Generic[H]):
    """The part of a sending engine that takes messages. One thread at a time."""

    def __init__(self, config: BatchingConfig, handle: Callable[[ProducerBatch, int], H]) -> None:
        self._config = config
        self._handle = handle
        self._batch_bytes, self._bytes_max = config.batch_bytes, config.buffer_bytes_max
        self.bytes = 0  # of unsettled messages
        # Batches that gather messages. In the order of opening, which is that of their due times.
        self._views: dict[str, TopicView] = {}  # the last of each topic
        self._open: dict[BatchKey, ProducerBatch] = {}
        self._queues = PartitionQueues()
        self._sealed: dict[ProducerBatch, None] = {}  # waiting or in flight, in the order of their sealing
        self._choice = PartitionChoice()
        self._is_closing = False
        self.has_full = False  # a batch was filled; the driver resets it

    def maybe_add(self, topic: str, wanted: Partition | None, flag: int, body: bytes) -> H | None:
        """Add one message to the open batch; None, without effect, if it does not fit, or must wait."""
        size = HEADER_BYTES + len(body)
        total = self.bytes + size
        key = (topic, wanted)
        if (batch := self._open.get(key)) is None or (total > self._bytes_max and self.bytes):
            return None
        bodies = batch.bodies
        filled, index = batch.bytes + size, len(bodies)
        if filled >= self._batch_bytes or index + 1 >= BATCH_MESSAGES_MAX:
            if filled > self._batch_bytes and index:
                return None
            self._seal(key)
            self.has_full = True
        bodies.append(body)
        batch.flags.append(flag)
        batch.bytes = filled
        self.bytes = total
        return self._handle(batch, index)

    def quick_add(self, locked: Callable[[], bool] | None) -> QuickAdd[H] | None:
        """Return the native core's way to add a message; None without the core. It leaves to maybe_add a message that
        opens or fills a batch, or must wait, and all while *locked*, the method of the engine's lock, says so (None:
        there is one thread)."""
        if core.core is None:
            return None
        limits = HEADER_BYTES, DATA_BYTES_MAX, BATCH_MESSAGES_MAX, self._batch_bytes, self._bytes_max
        return cast("QuickAdd[H]", core.core.Intake(locked, self, self._open, self._handle, *limits).add)

    def maybe_add_run(self, topic: str, wanted: Partition | None, run: MessageRun, start: int) -> RunPart | None:
        """Add the messages of *run* from *start* on that fit into the open batch; None, without effect, if none does,
        or they must wait."""
        key = (topic, wanted)
        if (batch := self._open.get(key)) is None:
            return None
        index, room = len(batch.bodies), self._batch_bytes - batch.bytes
        is_over = bool(self.bytes) and self.bytes + run.need(start, room) > self._bytes_max
        if not run.whole.may_exceed and (is_over or self._config.raise_when_full):
            return None
        if (stop := run.stop(start, room, BATCH_MESSAGES_MAX - index)) == start:
            if index:
                return None
            stop += 1  # longer than a batch: it goes alone
        size = run.size(start, stop)
        batch.bodies += run.bodies[start:stop]
        batch.flags += run.flags[start:stop]
        batch.bytes += size
        self.bytes += size
        if stop < len(run) or batch.bytes >= self._batch_bytes or index + stop - start >= BATCH_MESSAGES_MAX:
            self._seal(key)
            self.has_full = True
        return RunPart(batch, index, range(start, stop))

    def open_batch(self, now: float, view: TopicView, wanted: Partition | None) -> None:
        """Seal the open batch, if any, and open a new one, for a message to follow: in *wanted*, or in a chosen
        partition, preferably of a broker that was reachable. Raises NoPartition, ClientClosed; nothing is changed
        then."""
        self._check_open()
        key = (view.topic, wanted)
        partition = self._choice.choose(now, view, wanted)
        if key in self._open:
            self._seal(key)
        self._views[view.topic] = view
        due, deadline = now + self._config.linger_s, now + self._config.delivery_timeout_s
        self._open[key] = ProducerBatch(view.topic, partition, due, deadline, wanted is None)

    def add_first(self, now: float, view: TopicView, wanted: Partition | None, flag: int, body: bytes) -> H:
        """Open a batch with this message. Raises as open_batch."""
        self.open_batch(now, view, wanted)
        handle = self.maybe_add(view.topic, wanted, flag, body)
        assert handle is not None, "the caller has waited for room, and the first message fits"
        return handle

    def must_wait(self, topic: str, size: int) -> bool:
        """Return True if messages with frames of *size* bytes must wait until others are settled. Raises BufferFull if
        they may not wait, ClientClosed."""
        self._check_open()
        if not self.bytes or self.bytes + size <= self._bytes_max:
            return False
        if self._config.raise_when_full:
            raise BufferFull(
                f"{self.bytes} bytes wait to be acknowledged, buffer_bytes_max is {self._bytes_max}: wait, or flush()",
                Destination(topic),
            )
        return True

    def must_wait_for(self, topic: str, run: MessageRun, start: int) -> bool:
        """Return True if the messages of *run* from *start* on must wait until others are settled. Raises BufferFull,
        before the first of them is added, if there is no room for all and none may wait; ClientClosed."""
        if not self._config.raise_when_full:
            return self.must_wait(topic, run.need(start, self._batch_bytes))
        if not (whole := run.whole).may_exceed:
            if whole.bytes > self._bytes_max:
                text = f"{whole.bytes} bytes are more than buffer_bytes_max, {self._bytes_max}: send fewer at once"
                raise BufferFull(text, Destination(topic))
            self.must_wait(topic, whole.bytes)
            whole.may_exceed = True
        self._check_open()
        return False

    def has_pending(self, topic: str, partition: Partition) -> bool:
        """Return True if a message sent to *partition* by another way now could overtake one gathered by name."""
        return (topic, partition) in self._open or self._queues.has(topic, partition)

    def seal(self, topic: str, partition: Partition) -> None:
        """End the linger time of the batch gathered for *partition*."""
        if (topic, partition) in self._open:
            self._seal((topic, partition))

    def seal_all(self) -> None:
        """End the linger time of all batches."""
        for key in list(self._open):
            self._seal(key)

    def _seal(self, key: BatchKey) -> None:
        """Close the open batch of *key* to messages, number it and queue it."""
        batch = self._open[key]
        self._sealed[batch] = None
        del self._open[key]
        self._queues.enqueue(batch)

    def _check_open(self) -> None:
        if self._is_closing:
            raise ClientClosed("the client is closed: make a new one")
