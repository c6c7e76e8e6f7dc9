"""put and mput: store messages, at once or inside a branch (spec 1.5.2, 2.5)."""

import random
from collections.abc import Sequence
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from journal.errors import RecordTooLarge
from journal.records.producer_state import SequenceTooOld
from journal.records.record import PartitionName
from journal.records.states import BranchNotStarted, VerbRefused
from journal.records.xid import BranchKey, XaKey
from journal.state.journal_state import accounted_bytes
from journal.state.live_branch import AppendResult, LiveBranch
from journal.wal.storage_file import Buffer
from meta_broker.config.broker_config import TopicConfig
from meta_broker.handlers.context import Context, Peer
from meta_broker.handlers.message_ids import MessageIds
from meta_broker.handlers.realtime import Statistic
from meta_broker.handlers.writes import WriteReplies
from meta_client.protocol.answers import PutPlace, format_put_place
from meta_client.protocol.checksum import crc31
from meta_client.protocol.compression import Codec, codec_number
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.messages import HEADER_BYTES, check_compressed, frame_header
from meta_client.protocol.requests import PARTITION_ANY, MultiPut, Put
from meta_client.protocol.stamping import stamp_ids
from meta_client.protocol.status import Status

# One object for all runs of a partition: a tenth of the cost of a new one.
_partition_name = lru_cache(maxsize=4096)(PartitionName)


class PutRejected(Exception):
    """The put is invalid; the text is the answer's detail."""

    def __init__(self, text: str, status: Status = Status.INTERNAL_ERROR) -> None:
        super().__init__(text)
        self.status = status


class MessageFrames(msgspec.Struct, frozen=True):
    """*messages* whole frames of *bytes* in all, with ids from *first_id* on."""

    buffers: Sequence[Buffer]
    bytes: int
    messages: int
    first_id: int


class PutHandler:
    """Answers puts, single ones and batches."""

    def __init__(self, context: Context, replies: WriteReplies) -> None:
        self._context = context
        self._replies = replies
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
                put = self._with_partition(put)
            # First: a retry of a stored batch succeeds, whatever was decided about the partition since.
            name = _partition_name(put.topic, put.partition)
            if self._is_stored(put, name, peer):
                return
            section = self._target(put)
            frames = self._frames(put, section)
            result = self._append(put, name, frames)
            context.count_put(put.topic, section, frames.messages, frames.bytes)
            context.traffic.received(put.topic, frames.messages, frames.bytes)
        except (PutRejected, SequenceTooOld, RecordTooLarge) as error:
            context.counters.puts_failed += 1
            context.count(Statistic.PUT_FAILED, put.topic)
            place = f"[partition '{put.topic}-{put.partition}']"
            text = f"Put message to [broker '{context.url}'] {place} failed.Detail:{error}"
            peer.send(encode_result(_status(error), text.encode(), put.opaque))
            return
        text_of_place = b"%d %d %d" % (frames.first_id, put.partition, result.updates[0].base)
        self._replies.send(put, peer, result, encode_result(Status.SUCCESS, text_of_place, put.opaque))

    def _with_partition(self, put: Put | MultiPut) -> Put | MultiPut:
        """Return *put* to an open partition of the topic, if there is one. Raises PutRejected."""
        if isinstance(put, MultiPut) and put.sequence is not None:
            raise PutRejected("a numbered batch names its partition: sent again it might be doubled elsewhere")
        choice = self._context.topics.open_partitions(put.topic)
        # Spreads load, keeps no secret.
        return replace(put, partition=random.choice(choice)) if choice else put  # noqa: S311

    def _append(self, put: Put | MultiPut, name: PartitionName, frames: MessageFrames) -> AppendResult:
        buffers, size, count = frames.buffers, frames.bytes, frames.messages
        if isinstance(put, MultiPut) and put.sequence is not None:
            return self._store.put_batch(name, buffers, size, count, frames.first_id, put.sequence)
        return self._store.put(name, buffers, size, count)

    def _frames(self, put: Put | MultiPut, section: TopicConfig) -> MessageFrames:
        """Return the frames to store for *put*, whose target is valid. Raises PutRejected."""
        context = self._context
        return frames_of(put, context.ids, context.config.broker.message_bytes_max, section.compression)

    def _is_stored(self, put: Put | MultiPut, name: PartitionName, peer: Peer) -> bool:
        """Return whether this is a retry of a stored batch; then it is answered as the first time."""
        if isinstance(put, Put) or put.sequence is None:
            return False
        stored = self._store.state.producers.find(put.sequence, name.topic, name.partition)
        if stored is None:
            return False
        if stored.messages != put.count:
            raise PutRejected(f"batch {put.sequence.number} had {stored.messages} messages before, now {put.count}")
        place = format_put_place(PutPlace(stored.first_id, put.partition, stored.base))
        self._replies.send_after_all(put, peer, Status.SUCCESS, place)
        return True

    def _transactional(self, put: Put | MultiPut, key: BranchKey, peer: Peer) -> None:
        context = self._context
        try:
            transaction = self._transaction(key, peer)
            if put.partition == PARTITION_ANY:
                raise PutRejected(f"Invalid partition for transaction command:{put.partition}")
            section = self._target(put)
            frames = self._frames(put, section)
            self._check_room(frames.bytes)
            name = _partition_name(put.topic, put.partition)
            self._store.transactional_put(transaction, name, frames.buffers, frames.bytes, frames.messages)
            context.count_put(put.topic, section, frames.messages, frames.bytes)
            context.traffic.received(put.topic, frames.messages, frames.bytes)
        except (PutRejected, RecordTooLarge, VerbRefused) as error:
            context.counters.puts_failed += 1
            context.count(Statistic.PUT_FAILED, put.topic)
            self._replies.send_after_all(put, peer, _status(error), str(error).encode())
            return
        # At once: an active branch is presumed aborted, so a crash cannot break what this answer says.
        place = format_put_place(PutPlace(frames.first_id, put.partition, None))
        peer.buffer_reply(key, encode_result(Status.SUCCESS, place, put.opaque))

    def _check_room(self, size: int) -> None:
        held, bytes_max = self._store.state.branches_accounted_bytes, self._context.config.broker.transaction_bytes_max
        if held + accounted_bytes(size) > bytes_max:
            raise PutRejected(f"open transactions hold {held} bytes: finish some, transaction_bytes_max is {bytes_max}")

    def _transaction(self, key: BranchKey, peer: Peer) -> LiveBranch:
        if isinstance(key, XaKey):
            return self._store.find(key)
        if (transaction := peer.local_transactions.get(key)) is None or transaction.is_over:
            raise BranchNotStarted(key)
        return transaction

    def _target(self, put: Put | MultiPut) -> TopicConfig:
        """Check the target and return the topic's settings; announce the topic's first put. Raises PutRejected."""
        topic, partition, context = put.topic, put.partition, self._context
        if why := context.store.space.why_full:
            raise PutRejected(why, Status.UNAVAILABLE)
        if context.topics.is_closed(topic, partition):
            text = f"partition[{context.config.broker_id}-{partition}] has been closed"
            raise PutRejected(text, Status.FORBIDDEN)
        if (section := context.topics.find(topic)) is None:
            raise PutRejected(f"The server do not accept topic {topic}")
        if not 0 <= partition < section.partitions:
            raise PutRejected(f"wrong partition {partition}")
        if topic not in context.topics.used:
            context.topics.used.add(topic)
            context.announcer.topic_used(topic)
        return section


def _status(error: Exception) -> Status:
    return error.status if isinstance(error, PutRejected) else Status.INTERNAL_ERROR


def frames_of(
    put: Put | MultiPut, ids: MessageIds, message_bytes_max: int, compression: Sequence[str]
) -> MessageFrames:
    """Return the frames of *put*: checksums verified, codecs limited to *compression*. Raises PutRejected."""
    checksum = crc31(put.body)
    if put.checksum is not None and put.checksum != checksum:
        raise PutRejected("Checksum failure,message may be corrupted when transfering on networking.")
    if isinstance(put, Put):
        if len(put.body) > message_bytes_max:
            raise PutRejected(
                f"a message of {len(put.body)} bytes is larger than message_bytes_max {message_bytes_max}"
            )
        if codec_number(put.flag):
            _check_put(put, message_bytes_max, compression)
        first_id = ids.next()
        header = frame_header(first_id, put.flag, len(put.body), checksum)
        return MessageFrames((header, put.body), HEADER_BYTES + len(put.body), 1, first_id)
    first_id, body, size = ids.allocate(put.count), put.body, len(put.body)
    # A view is of a buffer of the broker's own, from its first byte on: the ids go into the body as it arrived.
    frames = body.obj if isinstance(body, memoryview) else bytearray(body)
    assert isinstance(frames, bytearray)
    try:
        codecs = stamp_ids(frames, put.count, first_id, message_bytes_max, size)
    except ValueError as error:
        raise PutRejected(f"not a batch of {put.count} messages: {error}") from error
    _check_allowed(put.topic, codecs, compression)
    return MessageFrames((body if isinstance(body, memoryview) else frames,), size, put.count, first_id)


def _check_put(put: Put, message_bytes_max: int, compression: Sequence[str]) -> None:
    try:
        number = check_compressed(put.flag, put.body, message_bytes_max)
    except ValueError as error:
        raise PutRejected(f"not a compressed message: {error}", Status.BAD_REQUEST) from error
    _check_allowed(put.topic, {number}, compression)


def _check_allowed(topic: str, codecs: set[int], compression: Sequence[str]) -> None:
    for codec in map(Codec, sorted(codecs)):
        if codec.label not in compression:
            text = (
                f"topic {topic} does not allow {codec.label}: send uncompressed messages, or allow it with "
                f"`metaq topics alter {topic} --compression {codec.label}`"
            )
            raise PutRejected(text, Status.BAD_REQUEST)
