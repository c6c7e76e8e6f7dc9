"""Durable store of messages that a consumer's listeners rejected, until they are delivered or dropped.

Keeps REFUSED records in its own journal. A message is durable here before the group's offset passes it: a crash
delivers it again at worst, and never loses it. A delivery or drop becomes durable a moment later. Bounded: at
*bytes_max* the store accepts no more messages, and a rejected one is delivered again at its place. When less than half
of the files is needed, waiting messages are copied forward and the segments before them dropped.

Any thread. The lock guards appends and the index; add() waits for the disk outside it.
"""

import logging
import threading
from pathlib import Path
from typing import Self

from msgspec.structs import replace

from journal.errors import ForeignJournal, StorageFailed
from journal.records.dead_letters import DeadLetter, DeadLetterState
from journal.records.header import Lsn
from journal.state.wall_clock import wall_clock_ms
from journal.wal.flush_mode import FlushMode
from journal.wal.journal import Journal
from journal.wal.segments import CLUSTER_BYTES_MAX, JournalIdentity, Segments
from journal.wal.storage import Storage
from meta_client.consumer.dead_letters.index import DeadLetterEntry, DeadLetterIndex, MessageAddress
from meta_client.consumer.messages.batch import make_received
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.errors import text_of
from meta_client.own_journal import OwnJournal, locked, resumed
from meta_client.protocol.errors import InvalidMessage, MetaError
from meta_client.protocol.messages import encode_body, encode_frame, iter_frames
from meta_client.protocol.trace_context import with_traceparent

log = logging.getLogger(__name__)

MIB = 1024 * 1024
SEGMENT_BYTES = 4 * MIB  # holds the longest message, and takes little disk while nothing is rejected
BYTES_MAX = 256 * MIB
# A delivery may wait this long for its fsync: losing it costs a second delivery.
FLUSH = FlushMode(interval_ms=1000)
CARRIED_AT_ONCE = 8 * MIB  # queued in memory while messages are copied forward
FORMAT_VERSION = "refused/1"
CLUSTER = "refused:"


class StoreInUse(MetaError):
    """Another consumer holds the directory. Stop it, or give this one its own."""


class ForeignStore(MetaError):
    """The directory holds a broker's journal, or another group's messages. Name another one."""


class StoreFull(MetaError):
    """No room for another dead letter. Have some delivered, resend or drop them, or allow more bytes."""


class OffsetTaken(MetaError):
    """Another message of the same offset waits, which the broker lost in a promotion. Have that one delivered, resend
    or drop it."""


class DeadLetterStore(OwnJournal):
    """Dead letters of one group's consumer in one directory, which it locks."""

    def __init__(
        self, storage: Storage, journal: Journal, index: DeadLetterIndex, bytes_max: int, segment_bytes: int
    ) -> None:
        super().__init__(storage, journal, FORMAT_VERSION)
        self._lock = threading.Lock()
        self._index = index  # under the lock
        self._bytes_max = bytes_max
        self._segment_bytes = segment_bytes

    @classmethod
    def open(cls, directory: Path, group: str, *, bytes_max: int = BYTES_MAX) -> Self:
        """Open the store in *directory*, or create it; its content is durable on return.

        Raises StoreInUse, ForeignStore, CorruptJournal (nothing is changed), StorageFailed.
        """
        in_use = f"{directory} is in use by another consumer: stop it first, or give this one its own directory"
        with locked(directory, StoreInUse(in_use)) as storage:
            return cls.on(storage, group, bytes_max=bytes_max)

    @classmethod
    def on(
        cls, storage: Storage, group: str, *, bytes_max: int = BYTES_MAX, segment_bytes: int = SEGMENT_BYTES
    ) -> Self:
        """Open the store in *storage*, as open()."""
        identity = JournalIdentity(CLUSTER + group, 0)
        if len(identity.cluster.encode()) > CLUSTER_BYTES_MAX:
            raise ForeignStore(
                f"group {group!r} has too long a name to keep dead letters: {CLUSTER_BYTES_MAX - 8} bytes"
            )
        try:
            segments = Segments.open(storage, identity, segment_bytes, writable=True)
        except ForeignJournal as error:
            raise ForeignStore(f"no store of group {group!r}: {error}: name another directory") from error
        index = DeadLetterIndex()
        opened = cls(storage, resumed(segments, index.apply, FLUSH, log), index, bytes_max, segment_bytes)
        opened._begin()
        return opened

    def add(self, message: ReceivedMessage, error: Exception) -> None:
        """Keep a rejected message, durably on return. A message kept before is left as it is.

        Raises StoreFull, OffsetTaken, StorageFailed, InvalidMessage: it is not kept then.
        """
        attribute, traceparent = message.attribute, message.traceparent
        if traceparent is not None:
            attribute = with_traceparent(attribute, traceparent)
        flag, data = encode_body(message.payload, attribute)
        frame = encode_frame(message.message_id, flag, data)
        with self._lock:
            known = self._index.find(MessageAddress(message.topic, message.partition, message.offset))
            if known is None:
                where = message.partition.broker_id, message.partition.number, message.offset, message.next_offset
                stored = DeadLetter(
                    *(message.topic, *where, wall_clock_ms()), 0, DeadLetterState.WAITING, text_of(error)
                )
                if self._index.bytes + DeadLetterEntry(stored, Lsn(0), len(frame)).cost > self._bytes_max:
                    raise StoreFull(
                        f"{self._storage.path} holds {len(self._index)} dead letters, {self._bytes_max} bytes at "
                        f"most: mend the listener, `metaq groups dead-letters` resends or drops them; or allow more"
                    )
                self._apply(stored, frame)
                self._maybe_compact()
            elif (waiting := message_of(known, self._body(known))).message_id != message.message_id:
                raise OffsetTaken(
                    f"{self._storage.path} holds another message of {known.address}, id {waiting.message_id}, which "
                    "its broker has lost: mend the listener, `metaq groups dead-letters` resends or drops it"
                )
            end = self._journal.end
        self._journal.wait_flushed(end)

    @property
    def failure(self) -> StorageFailed | None:
        """Error that stopped the store: it can record no delivery any more. None: it works."""
        return self._journal.failure

    def entries(self) -> list[DeadLetterEntry]:
        """Return the waiting dead letters, oldest first, without bodies."""
        with self._lock:
            return list(self._index)

    def message(self, address: MessageAddress) -> ReceivedMessage | None:
        """Return a waiting message, None if it is not waiting. Payload and attribute are as delivered; `flag` tells
        only of the attribute. Raises InvalidMessage if its bytes are corrupt, StorageFailed."""
        with self._lock:
            if (found := self._index.find(address)) is None:
                return None
            body = self._body(found)
        return message_of(found, body)

    def tried(self, address: MessageAddress, error: Exception) -> None:
        """Record a failed redelivery. Durable a moment later. Raises StorageFailed."""
        self._record(address, DeadLetterState.TRIED, text_of(error))

    def delivered(self, address: MessageAddress) -> None:
        """Remove a delivered message. Durable a moment later: after a crash before, it is delivered again. Raises
        StorageFailed."""
        self._record(address, DeadLetterState.DELIVERED, "")

    def drop(self, address: MessageAddress) -> bool:
        """Drop a message; False if it is not waiting. Durable once close() returns. Raises StorageFailed."""
        return self._record(address, DeadLetterState.DROPPED, "")

    def _record(self, address: MessageAddress, state: DeadLetterState, reason: str) -> bool:
        with self._lock:
            if (found := self._index.find(address)) is None:
                return False
            attempts = found.record.attempts + (state is not DeadLetterState.DROPPED)
            self._apply(replace(found.record, state=state, attempts=attempts, reason=reason))
            self._maybe_compact()
            return True

    def _apply(self, record: DeadLetter, body: bytes = b"") -> Lsn:
        header = self._append(record, body)
        self._index.apply(header, record)
        return header.lsn

    def _maybe_compact(self) -> None:
        """Copy waiting messages forward and drop the segments before them, if that halves the files. Under the lock.

        The writer thread is idle while segments are dropped: everything is flushed and the lock keeps out appends.
        """
        journal = self._journal
        if len(journal.segments) * self._segment_bytes <= 2 * self._index.bytes + 3 * self._segment_bytes:
            return
        first = self._append_epoch()
        queued = 0
        for found in list(self._index):
            body = self._body(found)
            self._apply(replace(found.record, state=DeadLetterState.WAITING), body)
            if (queued := queued + len(body)) > CARRIED_AT_ONCE:
                journal.wait_flushed(journal.end)
                queued = 0
        journal.wait_flushed(journal.end)
        journal.segments.drop_before(first)
        log.debug("dead letters compacted path=%s kept=%d", self._storage.path, len(self._index))

    def _body(self, found: DeadLetterEntry) -> bytes:
        """Read the frame of *found*, once it is written: before, zeros are read, and they are a sound empty message.
        Under the lock."""
        self._journal.wait_flushed(found.body_lsn + found.body_bytes)
        return self._journal.segments.read(found.body_lsn, found.body_bytes)


def message_of(found: DeadLetterEntry, body: bytes) -> ReceivedMessage:
    """Decode the message whose frame is *body*. Raises InvalidMessage."""
    address, record = found.address, found.record
    frames = list(iter_frames(body))
    if len(frames) != 1 or frames[0][1] != len(body):  # zeros are an empty message, and more of them several
        raise InvalidMessage(address.offset, f"{len(frames)} in the {len(body)} bytes of the dead letter {address}")
    ((_, _, message),) = frames
    return make_received(address.topic, address.partition, address.offset, message, record.next_offset)
