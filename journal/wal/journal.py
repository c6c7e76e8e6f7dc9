"""A broker's own journal: append records, wait for them, read them back.

The owner assigns their LSNs; the writer completes and writes all queued ones at once, with one pwritev and one
fdatasync: see log_writer. Used by broker and coordinator.
"""

from collections.abc import Callable, Sequence

import msgspec

from journal.checksum import crc32
from journal.errors import RecordTooLarge
from journal.records.codec import encode
from journal.records.header import (
    ALIGNMENT,
    HEADER_BYTES,
    META_BYTES_MAX,
    Lsn,
    RecordHeader,
    RecordType,
    pack,
    record_bytes,
)
from journal.records.record import Record
from journal.wal.flush_mode import FlushMode
from journal.wal.inline_commit import LoopHooks
from journal.wal.log_writer import LogWriter
from journal.wal.open_journal import OpenJournal
from journal.wal.segments import SEGMENT_HEADER_BYTES, Segments
from journal.wal.storage_file import Buffer, StorageFile
from journal.wal.writer_state import E

JOIN_BYTES_MAX = 64 * 1024  # bodies up to this size are joined into one buffer: cheaper than an iovec each
_PADDING = [bytes(n) for n in range(ALIGNMENT)]


class _Item(msgspec.Struct, frozen=True):
    record_type: int
    meta: bytes
    body: Sequence[Buffer]
    body_bytes: int
    lsn: int
    time_ms: int


class RecordAppender(LogWriter[_Item]):
    """Appends records to *segments* from *end* on, through one writer."""

    def __init__(
        self,
        segments: Segments,
        end: Lsn,
        epoch: int,
        incarnation: int,
        mode: FlushMode,
        on_progress: Callable[[], None],
        loop_hooks: LoopHooks | None = None,
    ) -> None:
        super().__init__(segments, end, mode, on_progress, loop_hooks)
        self._epoch = epoch
        self._incarnation = incarnation
        self._body_bytes_max = segments.body_bytes_max
        self._segment_end = segments.end  # of the segment that holds `end`; under the lock

    def append(self, record_type: int, meta: bytes, body: Sequence[Buffer], body_bytes: int, time_ms: int) -> Lsn:
        """Queue one record and return its LSN; nothing is durable yet. Any thread.

        *body* must not change until it is written. Raises RecordTooLarge, StorageFailed, JournalClosed.
        """
        self.check_fits(len(meta), body_bytes)
        size = record_bytes(len(meta), body_bytes)
        with self._lock:
            self._check_open()
            idle = not self._queue  # before a PAD stands in it
            lsn = self.end
            if lsn + size > self._segment_end:
                lsn = self._next_segment(time_ms)
            end, item = Lsn(lsn + size), _Item(record_type, meta, body, body_bytes, lsn, time_ms)
            # No call in between: after one a ^C may be raised, and would leave LSNs without a record for good.
            self.end = end
            self.queued_bytes += size
            self._queue.append(item)
            if idle and self._loop_hooks is None:
                self._enter(E.CALL)
        if idle and self._loop_hooks is not None:
            # Waking the writer during an iteration would make it compete with the loop for the interpreter, and fsync a
            # branch's messages without the PREPARE that is about to follow.
            self._loop_hooks.call_soon(self.commit_now)
        return lsn

    def check_fits(self, meta_bytes: int, body_bytes: int) -> None:
        """Check that a record fits into a segment and within the limits of readers. Raises RecordTooLarge."""
        if meta_bytes + body_bytes > self._body_bytes_max or meta_bytes > META_BYTES_MAX:
            raise RecordTooLarge(
                f"a record of {meta_bytes} + {body_bytes} bytes does not fit: a segment of "
                f"{self._segments.segment_bytes} takes {self._body_bytes_max}, {META_BYTES_MAX} of them "
                f"before the body: send less at a time, or raise segment_bytes"
            )

    def _next_segment(self, time_ms: int) -> Lsn:
        """Fill the segment with a PAD, if one fits, and move to the first LSN of the next."""
        base, left = self._segment_end, self._segment_end - self.end
        pad = _Item(RecordType.PAD, b"", (), left - HEADER_BYTES, self.end, time_ms)
        end, segment_end = Lsn(base + SEGMENT_HEADER_BYTES), Lsn(base + self._segments.segment_bytes)
        self._segment_end = segment_end  # no call until the PAD is queued, as in append()
        self.end = end
        if left >= HEADER_BYTES:
            self._queue.append(pad)
        return end

    # -- the writer thread ------------------------------------------------------------------------------------

    def _split(self, queue: list[_Item]) -> tuple[list[_Item], int]:
        size = count = 0
        while size < self.batch_bytes_max:
            item, count = queue[count], count + 1
            # A PAD takes no memory.
            size += 0 if item.record_type == RecordType.PAD else record_bytes(len(item.meta), item.body_bytes)
        return queue[:count], size

    def _write(self, batch: list[_Item]) -> None:
        segments = self._segments
        base, file = segments.locate(batch[0].lsn) if batch[0].lsn < segments.end else self._roll()
        position = batch[0].lsn - base
        buffers: list[Buffer] = []
        joined: list[Buffer] = []
        end = base + file.size
        for item in batch:
            if item.lsn >= end:
                self._write_buffers(file, position, [*buffers, b"".join(joined)])
                base, file = self._roll()
                position, end = item.lsn - base, base + file.size
                buffers, joined = [], []
            self._add_buffers(item, buffers, joined)
        self._write_buffers(file, position, [*buffers, b"".join(joined)])
        tail = batch[-1]
        self._mark_written(Lsn(tail.lsn + record_bytes(len(tail.meta), tail.body_bytes)), base, file)

    def _add_buffers(self, item: _Item, buffers: list[Buffer], joined: list[Buffer]) -> None:
        record_type, meta, body_bytes, lsn = item.record_type, item.meta, item.body_bytes, item.lsn
        crc = size = 0
        for part in item.body:
            crc = crc32(part, crc)
            size += len(part)
        # A wrong length would misplace every later record.
        assert record_type == RecordType.PAD or size == body_bytes, f"a body of {size} bytes announced as {body_bytes}"
        writer_epoch = self._epoch, self._incarnation
        joined.append(pack(record_type, 0, meta, body_bytes, crc, *writer_epoch, lsn, self.flushed, item.time_ms))
        if record_type == RecordType.PAD:  # its body is the untouched rest of the segment
            return
        if body_bytes > JOIN_BYTES_MAX:
            buffers.append(b"".join(joined))
            buffers.extend(item.body)
            joined.clear()
        else:
            joined.extend(item.body)
        if padding := -(len(meta) + body_bytes) % ALIGNMENT:
            joined.append(_PADDING[padding])

    def _roll(self) -> tuple[Lsn, StorageFile]:
        self._sync_dirty()  # before the next segment exists: a later segment proves the earlier one whole
        return self._segments.roll()


class Journal(OpenJournal):
    """Appends to and reads from one journal. Open it with `Journal.start` once its end is known."""

    def __init__(self, segments: Segments, writer: RecordAppender, epoch: int, incarnation: int) -> None:
        super().__init__(segments, writer)
        self._appender = writer
        self.epoch = epoch
        self.incarnation = incarnation

    @classmethod
    def start(
        cls,
        segments: Segments,
        end: Lsn,
        *,
        epoch: int,
        incarnation: int,
        flush: FlushMode,
        on_progress: Callable[[], None] = lambda: None,
        loop_hooks: LoopHooks | None = None,
    ) -> "Journal":
        """Begin to append at *end*; everything below it is fsynced already.

        *on_progress* runs on the writer thread whenever `acknowledged` moved or the journal failed; it must only wake
        the owner. With *loop_hooks* the owner is an event loop: only its thread appends, and it commits inline at the
        end of an iteration while the disk is fast; otherwise it wakes the writer then.
        """
        segments.remove_unfinished()
        if not len(segments):
            segments.roll()
            end = segments.start
        writer = RecordAppender(segments, end, epoch, incarnation, flush, on_progress, loop_hooks)
        writer.start()
        return cls(segments, writer, epoch, incarnation)

    def append(self, record: Record, time_ms: int, body: Sequence[Buffer] = (), body_bytes: int = 0) -> RecordHeader:
        """Queue *record* and return its header (checksum left out). Any thread; nothing is durable yet.

        Raises RecordTooLarge, StorageFailed, JournalClosed.
        """
        record_type, meta = encode(record)
        writer = self._appender
        lsn = writer.append(record_type, meta, body, body_bytes, time_ms)
        return RecordHeader(
            record_type, 0, len(meta), body_bytes, 0, self.epoch, self.incarnation, lsn, writer.flushed, time_ms
        )

    def check_fits(self, record: Record, body_bytes: int = 0) -> None:
        """Check that *record* could be appended; changes nothing. Raises RecordTooLarge."""
        self._appender.check_fits(len(encode(record)[1]), body_bytes)
