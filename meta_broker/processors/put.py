"""put and mput: store messages, at once or inside a branch (spec 1.5.2, 2.5)."""

import random
from functools import lru_cache

from journal.batches import BatchTooOld
from journal.errors import RecordTooLarge
from journal.fold import weight
from journal.records import PartitionName
from journal.states import BranchNotStarted, XaError
from journal.transaction_store import Done, Transaction
from journal.xid import BranchKey, XaKey
from meta_broker.config import TopicConfig
from meta_broker.processors.context import Context, Peer
from meta_broker.processors.frames import DiskFull, Frames, NotCompressible, PartitionClosed, PutRefused, frames_of
from meta_broker.processors.realtime import Statistic
from meta_client.protocol.answers import PutPlace, format_put_place
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import PARTITION_ANY, MultiPut, Put
from meta_client.protocol.status import Status

# One object for all runs of a partition, and a tenth of the time that it takes to make one.
_partition_name = lru_cache(maxsize=4096)(PartitionName)


class PutProcessor:
    """Answers puts of a broker, single ones and batches alike."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._store = context.store.transactions

    def handle(self, put: Put | MultiPut, peer: Peer) -> None:
        self._context.counters.puts += 1
        if put.key is None:
            self._plain(put, peer)
        else:
            self._transactional(put, put.key, peer)

    def _plain(self, put: Put | MultiPut, peer: Peer) -> None:
        context = self._context
        try:
            if put.partition == PARTITION_ANY:
                self._choose(put)
            # First: a retry of what is stored is told so, whatever was decided about the partition since.
            name = _partition_name(put.topic, put.partition)
            if self._is_stored(put, name, peer):
                return
            section = self._target(put)
            frames = self._frames(put, section)
            done = self._append(put, name, frames)
            context.count_put(put.topic, section, frames.messages, frames.bytes)
        except (PutRefused, BatchTooOld, RecordTooLarge) as error:
            context.counters.puts_failed += 1
            context.count(Statistic.PUT_FAILED, put.topic)
            place = f"[partition '{put.topic}-{put.partition}']"
            text = f"Put message to [broker '{context.url}'] {place} failed.Detail:{error}"
            peer.send(encode_result(_status(error), text.encode(), put.opaque))
            return
        text_of_place = b"%d %d %d" % (frames.first_id, put.partition, done.publications[0].base)
        answer = encode_result(Status.SUCCESS, text_of_place, put.opaque)
        peer.promise(answer)
        # One step at the fence; `show`, for branches of any size, takes two, and every message comes this way.
        context.store.fence.after(done.lsn, self._acknowledge, done, peer, answer)

    def _choose(self, put: Put | MultiPut) -> None:
        """Any open partition of its topic, if there is one. Raises PutRefused."""
        if isinstance(put, MultiPut) and put.sequence is not None:
            raise PutRefused("a numbered batch names its partition: sent again it might be doubled elsewhere")
        if choice := self._context.topics.open_partitions(put.topic):
            put.partition = random.choice(choice)  # noqa: S311 (spreads load, keeps no secret)

    def _append(self, put: Put | MultiPut, name: PartitionName, frames: Frames) -> Done:
        buffers, size, count = frames.buffers, frames.bytes, frames.messages
        if isinstance(put, MultiPut) and put.sequence is not None:
            return self._store.put_batch(name, buffers, size, count, frames.first_id, put.sequence)
        return self._store.put(name, buffers, size, count)

    def _frames(self, put: Put | MultiPut, section: TopicConfig) -> Frames:
        """What the journal stores of *put*, whose target is legal. Raises PutRefused."""
        context = self._context
        return frames_of(put, context.ids, context.config.broker.message_bytes_max, section.compression)

    def _is_stored(self, put: Put | MultiPut, name: PartitionName, peer: Peer) -> bool:
        """Whether this is a retry of a batch that is stored: then it is answered as the first time."""
        if isinstance(put, Put) or put.sequence is None:
            return False
        stored = self._store.find_batch(name, put.sequence)
        if stored is None:
            return False
        if stored.messages != put.count:
            raise PutRefused(f"batch {put.sequence.number} had {stored.messages} messages before, now {put.count}")
        place = format_put_place(PutPlace(stored.first_id, put.partition, stored.base))
        self._context.answer_at_fence(peer, put.opaque, Status.SUCCESS, place)
        return True

    def _acknowledge(self, done: Done, peer: Peer, answer: bytes) -> None:
        self._context.store.publish(done.publications)
        peer.send(answer)

    def _transactional(self, put: Put | MultiPut, key: BranchKey, peer: Peer) -> None:
        context = self._context
        try:
            transaction = self._transaction(key, peer)
            if put.partition == PARTITION_ANY:
                raise PutRefused(f"Invalid partition for transaction command:{put.partition}")
            section = self._target(put)
            frames = self._frames(put, section)
            self._check_room(frames.bytes)
            name = _partition_name(put.topic, put.partition)
            self._store.transactional_put(transaction, name, frames.buffers, frames.bytes, frames.messages)
            context.count_put(put.topic, section, frames.messages, frames.bytes)
        except (PutRefused, RecordTooLarge, XaError) as error:
            context.counters.puts_failed += 1
            context.count(Statistic.PUT_FAILED, put.topic)
            context.answer_at_fence(peer, put.opaque, _status(error), str(error).encode())
            return
        # At once: an active branch is presumed aborted, so that this answer promises nothing a crash could break.
        place = format_put_place(PutPlace(frames.first_id, put.partition, None))
        peer.defer(key, encode_result(Status.SUCCESS, place, put.opaque))

    def _check_room(self, size: int) -> None:
        held, bytes_max = self._store.state.branches_weight, self._context.config.broker.transaction_bytes_max
        if held + weight(size) > bytes_max:
            raise PutRefused(f"open transactions hold {held} bytes: finish some, transaction_bytes_max is {bytes_max}")

    def _transaction(self, key: BranchKey, peer: Peer) -> Transaction:
        if isinstance(key, XaKey):
            return self._store.find(key)
        if (transaction := peer.local_transactions.get(key)) is None or transaction.is_over:
            raise BranchNotStarted(key)
        return transaction

    def _target(self, put: Put | MultiPut) -> TopicConfig:
        """The topic's settings, once the target is found legal; the topic's first put is told on. Raises PutRefused."""
        topic, partition, context = put.topic, put.partition, self._context
        if why := context.store.space.why_full:
            raise DiskFull(why)
        if context.topics.is_closed(topic, partition):
            raise PartitionClosed(f"partition[{context.config.broker_id}-{partition}] has been closed")
        if (section := context.topics.find(topic)) is None:
            raise PutRefused(f"The server do not accept topic {topic}")
        if not 0 <= partition < section.partitions:
            raise PutRefused(f"wrong partition {partition}")
        if topic not in context.topics.used:
            context.topics.used.add(topic)
            context.listener.topic_used(topic)
        return section


def _status(error: Exception) -> Status:
    match error:
        case PartitionClosed():
            return Status.FORBIDDEN
        case DiskFull():
            return Status.UNAVAILABLE
        case NotCompressible():
            return Status.BAD_REQUEST
    return Status.INTERNAL_ERROR
