"""A broker's own journal: append records, wait for them, read them back. What a store is built on.

Broker and coordinator both use it; it knows no state beyond positions.
"""

from collections.abc import Callable, Sequence

from journal.flush_mode import FlushMode
from journal.frame import Header, Lsn
from journal.group_commit import GroupCommit
from journal.open_journal import OpenJournal
from journal.record_codec import encode
from journal.records import Record
from journal.segments import Segments
from journal.storage import Buffer
from journal.turns import Turns


class Journal(OpenJournal):
    """Appends to and reads from one journal. Open it with `Journal.start` once its end is known."""

    def __init__(self, segments: Segments, writer: GroupCommit, epoch: int, incarnation: int) -> None:
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
        turns: Turns | None = None,
    ) -> "Journal":
        """Begin to append at *end*; everything below it is fsynced already.

        *on_progress* is called on the writer thread whenever `acknowledged` moved or the journal failed; it must
        only wake the owner. With *turns* the owner is an event loop, whose thread alone appends, and writes by itself
        at the end of a turn while the disk is quick; else the writer is woken then, and not at once.
        """
        segments.remove_unfinished()
        if not len(segments):
            segments.roll()
            end = segments.start
        writer = GroupCommit(segments, end, epoch, incarnation, flush, on_progress, turns)
        writer.start()
        return cls(segments, writer, epoch, incarnation)

    def append(self, record: Record, time_ms: int, body: Sequence[Buffer] = (), body_bytes: int = 0) -> Header:
        """Queue *record* and return its header (checksum left out). Any thread; nothing is durable yet.

        Raises RecordTooLarge, StorageFailed, JournalClosed.
        """
        kind, meta = encode(record)
        writer = self._appender
        lsn = writer.append(kind, meta, body, body_bytes, time_ms)
        return Header(kind, 0, len(meta), body_bytes, 0, self.epoch, self.incarnation, lsn, writer.flushed, time_ms)

    def check_fits(self, record: Record, body_bytes: int = 0) -> None:
        """Raises RecordTooLarge if *record* could not be appended; changes nothing."""
        self._appender.check_fits(len(encode(record)[1]), body_bytes)
