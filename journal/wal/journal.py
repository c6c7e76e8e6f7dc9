"""A broker's own journal: append records, wait for them, read them back.

Used by broker and coordinator; it has no state except positions.
"""

from collections.abc import Callable, Sequence

from journal.records.encoders import encode
from journal.records.header import Lsn, RecordHeader
from journal.records.record import Record
from journal.wal.flush_mode import FlushMode
from journal.wal.inline_commit import LoopHooks
from journal.wal.open_journal import OpenJournal
from journal.wal.record_appender import RecordAppender
from journal.wal.segments import Segments
from journal.wal.storage_file import Buffer


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
