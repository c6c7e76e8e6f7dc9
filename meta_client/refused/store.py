"""A consumer's durable memory of the messages that its listeners refused, until they are taken or given up.

REFUSED records in a journal of their own. A message is durable here before the group's offset passes it: a crash
delivers it again at worst, and never loses it. That one was taken or dropped is durable a moment later. Bounded: when
*bytes_max* wait, no more are taken in, and what is refused then is offered again and again where it stands. What
waits is carried forward and the segments before it are dropped, once less than half of the files is needed.

Any thread. The lock guards appends and the list; waiting for the disk happens outside it.
"""

import logging
import threading
import time
from pathlib import Path
from typing import Self

from journal.errors import DirectoryInUse, ForeignJournal, RottenJournal
from journal.flush_mode import FlushMode
from journal.frame import Header, Lsn
from journal.journal import Journal
from journal.open_journal import make_end_durable
from journal.record_codec import decode
from journal.records import Epoch, Record
from journal.refusals import Refused, RefusedState
from journal.scan import Scanner, Verdict
from journal.segments import CLUSTER_BYTES_MAX, Identity, Segments
from journal.storage import DirectoryStorage, Storage
from meta_client.consumer.batch import ReceivedMessage
from meta_client.protocol.messages import encode_body, encode_frame, iter_frames
from meta_client.refused.errors import ForeignStore, StoreFull, StoreInUse
from meta_client.refused.waiting import Place, Waiting, WaitingMessages

log = logging.getLogger(__name__)

MIB = 1024 * 1024
SEGMENT_BYTES = 4 * MIB  # takes the longest message there is, and little disk while nothing is refused
BYTES_MAX = 256 * MIB
# That a message was taken may wait this long for an fsync: losing it costs a second delivery.
FLUSH = FlushMode(interval_ms=1000)
CARRIED_AT_ONCE = 8 * MIB  # queued in memory while what waits is copied forward
FORMAT_VERSION = "refused/1"
CLUSTER = "refused:"


class RefusedStore:
    """The refused messages of one group's consumer in one directory, which it holds alone."""

    def __init__(
        self, storage: Storage, journal: Journal, waiting: WaitingMessages, bytes_max: int, segment_bytes: int
    ) -> None:
        self._storage = storage
        self._journal = journal
        self._lock = threading.Lock()
        self._waiting = waiting  # under the lock
        self._bytes_max = bytes_max
        self._segment_bytes = segment_bytes
        self._is_closed = False

    @classmethod
    def open(cls, directory: Path, group: str, *, bytes_max: int = BYTES_MAX) -> Self:
        """Open the store in *directory*, or make one there; what it holds is durable on return.

        Raises StoreInUse, ForeignStore, RottenJournal (nothing was touched), StorageFailed.
        """
        try:
            storage = DirectoryStorage.open_for_writing(directory)
        except DirectoryInUse as error:
            raise StoreInUse(
                f"{directory} is in use by another consumer: stop it first, or give this one its own directory"
            ) from error
        try:
            return cls.on(storage, group, bytes_max=bytes_max)
        except BaseException:
            storage.close()
            raise

    @classmethod
    def on(
        cls, storage: Storage, group: str, *, bytes_max: int = BYTES_MAX, segment_bytes: int = SEGMENT_BYTES
    ) -> Self:
        """As open(), in a directory that is open already."""
        identity = Identity(CLUSTER + group, 0)
        if len(identity.cluster.encode()) > CLUSTER_BYTES_MAX:
            raise ForeignStore(f"group {group!r} has too long a name to park messages: {CLUSTER_BYTES_MAX - 8} bytes")
        try:
            segments = Segments.open(storage, identity, segment_bytes, writable=True)
        except ForeignJournal as error:
            raise ForeignStore(f"no store of group {group!r}: {error}: name another directory") from error
        try:
            waiting, end, incarnation = recover(segments)
            journal = Journal.start(segments, end, epoch=1, incarnation=incarnation + 1, flush=FLUSH)
        except BaseException:
            segments.close()
            raise
        opened = cls(storage, journal, waiting, bytes_max, segment_bytes)
        try:
            opened._append(opened._epoch())
            journal.wait_flushed(journal.end)
        except BaseException:
            opened.close()
            raise
        return opened

    def park(self, message: ReceivedMessage, error: Exception) -> None:
        """Keep a refused message; once this returns, no crash loses it. One that is here already stays as it is.

        Raises StoreFull, StorageFailed: then it is not kept.
        """
        flag, data = encode_body(message.payload, message.attribute)
        frame = encode_frame(message.message_id, flag, data)
        with self._lock:
            known = self._waiting.get(Place(message.topic, message.partition, message.offset))
            if known is None:
                stored = Refused(
                    message.topic,
                    message.partition.broker_id,
                    message.partition.number,
                    message.offset,
                    message.next_offset,
                    _now_ms(),
                    0,
                    RefusedState.WAITING,
                    repr(error),
                )
                if self._waiting.bytes + Waiting(stored, Lsn(0), len(frame)).cost > self._bytes_max:
                    raise StoreFull(
                        f"{self._storage.path} holds {len(self._waiting)} refused messages, {self._bytes_max} bytes at "
                        f"most: mend the listener, `metaq groups refused` resends or drops them, or allow more bytes"
                    )
                self._apply(stored, frame)
                self._maybe_compact()
            end = self._journal.end
        self._journal.wait_flushed(end)

    def waiting(self) -> list[Waiting]:
        """What waits, first refused first, without bodies."""
        with self._lock:
            return list(self._waiting)

    def message(self, place: Place) -> ReceivedMessage | None:
        """A message that waits; None once it does not. Its payload and attribute are as they came; `flag` tells of
        the attribute only. Raises InvalidMessage if its bytes rotted."""
        with self._lock:
            if (found := self._waiting.get(place)) is None:
                return None
            body = self._journal.read(found.body_lsn, found.body_bytes)
        return message_of(found, body)

    def tried(self, place: Place, error: Exception) -> None:
        """A message was offered again, and refused. Durable a moment later. Raises StorageFailed."""
        self._note(place, RefusedState.TRIED, repr(error))

    def delivered(self, place: Place) -> None:
        """A message was taken. Durable a moment later: a crash before delivers it again. Raises StorageFailed."""
        self._note(place, RefusedState.DELIVERED, "")

    def drop(self, place: Place) -> bool:
        """Give a message up; False: it is not here. Durable once close() returns. Raises StorageFailed."""
        return self._note(place, RefusedState.DROPPED, "")

    def close(self) -> None:
        """Write what is queued and let go of the directory. Idempotent. Raises StorageFailed if it had failed."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._journal.close()
        finally:
            if isinstance(self._storage, DirectoryStorage):
                self._storage.close()

    def _note(self, place: Place, state: RefusedState, reason: str) -> bool:
        with self._lock:
            if (found := self._waiting.get(place)) is None:
                return False
            attempts = found.record.attempts + (state is not RefusedState.DROPPED)
            self._apply(_changed(found.record, state, attempts, reason))
            self._maybe_compact()
            return True

    def _apply(self, record: Refused, body: bytes = b"") -> Lsn:
        header = self._append(record, body)
        self._waiting.apply(header, record)
        return header.lsn

    def _maybe_compact(self) -> None:
        """Carry what waits forward and drop the segments before it, if that halves the files. Under the lock.

        The writer thread is idle while the segments go, because everything was flushed and nobody can append.
        """
        journal = self._journal
        if len(journal.segments) * self._segment_bytes <= 2 * self._waiting.bytes + 3 * self._segment_bytes:
            return
        first = self._append(self._epoch()).lsn
        queued = 0
        for found in list(self._waiting):
            body = journal.read(found.body_lsn, found.body_bytes)
            self._apply(_changed(found.record, RefusedState.WAITING, found.record.attempts, found.record.reason), body)
            if (queued := queued + len(body)) > CARRIED_AT_ONCE:
                journal.wait_flushed(journal.end)
                queued = 0
        journal.wait_flushed(journal.end)
        journal.segments.drop_before(first)
        log.debug("refused messages compacted path=%s waiting=%d", self._storage.path, len(self._waiting))

    def _append(self, record: Record, body: bytes = b"") -> Header:
        return self._journal.append(record, _now_ms(), [body] if body else [], len(body))

    def _epoch(self) -> Epoch:
        return Epoch(self._journal.epoch, self._journal.incarnation, FORMAT_VERSION)


def recover(segments: Segments, *, clear: bool = True) -> tuple[WaitingMessages, Lsn, int]:
    """What waits, where the records end and their last incarnation; a torn tail is cut if *clear*.

    Raises RottenJournal, InvalidRecord.
    """
    waiting, incarnation = WaitingMessages(), 0
    scanner = Scanner(segments, segments.start)
    for entry in scanner:
        incarnation = entry.header.incarnation
        if isinstance(record := decode(entry.header, entry.meta), Refused):
            waiting.apply(entry.header, record)
    end = scanner.finish()
    if end.verdict is Verdict.ROTTEN:
        raise RottenJournal(end.end, end.resumes, end.reason, segments.storage.path)
    if clear:
        if end.dirty:
            log.warning("torn tail cut path=%s lsn=%d reason=%s", segments.storage.path, end.end, end.reason)
        make_end_durable(segments, end.durable, end.end, is_clear=not end.dirty)
    return waiting, end.end, incarnation


def message_of(found: Waiting, body: bytes) -> ReceivedMessage:
    """The message whose frame is *body*. Raises InvalidMessage."""
    place, record = found.place, found.record
    ((_, _, message),) = iter_frames(body)
    return ReceivedMessage(
        *(place.topic, place.partition, place.offset, message.id, message.flag, message.attribute, message.payload),
        record.next_offset,
    )


def _changed(record: Refused, state: RefusedState, attempts: int, reason: str) -> Refused:
    return Refused(
        record.topic,
        record.broker_id,
        record.partition,
        record.offset,
        record.next_offset,
        record.time_ms,
        attempts,
        state,
        reason,
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
