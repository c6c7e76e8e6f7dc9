"""What is the same for every open journal, whoever writes it: how far it is, and its bytes.

A broker's own journal (`journal`) and the copy that a slave keeps of its master's (`follower`) are read alike.
"""

from dataclasses import dataclass
from typing import Any

from journal.errors import StorageFailed
from journal.flush_mode import SYNC, FlushMode
from journal.frame import Lsn
from journal.segments import Identity, Segments
from journal.storage import BLOCK_BYTES, FileReader, Storage
from journal.writer_thread import WriterThread
from journal.zeros import is_zero

MIB = 1024 * 1024
ZERO = b"\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalConfig:
    """How a journal is kept. segment_bytes bounds the longest record too."""

    segment_bytes: int = 256 * MIB
    flush: FlushMode = SYNC


class OpenJournal:
    """An open journal, for who reads it and for who waits for its disk."""

    def __init__(self, segments: Segments, writer: WriterThread[Any]) -> None:
        self._segments = segments
        self._writer = writer

    @property
    def identity(self) -> Identity:
        return self._segments.identity

    @property
    def storage(self) -> Storage:
        return self._segments.storage

    @property
    def segments(self) -> Segments:
        return self._segments

    @property
    def flush_mode(self) -> FlushMode:
        return self._writer.mode

    @property
    def start_lsn(self) -> Lsn:
        return self._segments.start

    @property
    def end(self) -> Lsn:
        """Where the next record goes."""
        return self._writer.end

    @property
    def written(self) -> Lsn:
        """The first byte that the OS has not: below it everything reads back, though a power cut may take some."""
        return self._writer.written

    def tell_written(self, wanted: bool) -> None:
        """Call on_progress also when `written` moved, or no more: for who sends bytes on while they are fsynced."""
        self._writer.tells_written = wanted or self._writer.mode.interval_ms > 0

    @property
    def flushed(self) -> Lsn:
        """The first byte that is not fsynced."""
        return self._writer.flushed

    @property
    def acknowledged_here(self) -> Lsn:
        """The first byte that the flush mode does not count as acknowledged yet."""
        return self._writer.written if self._writer.mode.interval_ms else self._writer.flushed

    @property
    def failure(self) -> StorageFailed | None:
        """Why the journal has stopped for good, if it has."""
        return self._writer.failure

    @property
    def queued_bytes(self) -> int:
        """Bytes appended and not yet handed to the OS: what back-pressure goes by."""
        return self._writer.queued_bytes

    @property
    def body_bytes_max(self) -> int:
        return self._segments.body_bytes_max

    @property
    def syncs(self) -> int:
        """How many fsyncs there were since the start."""
        return self._writer.syncs

    def flush(self) -> None:
        """Ask for an fsync of all that is queued, whatever the mode. Returns at once; any thread."""
        self._writer.flush()

    def wait_flushed(self, lsn: int, timeout_s: float | None = None) -> None:
        """Block until every byte below *lsn* is fsynced. Any thread but an event loop's.

        Raises StorageFailed, TimeoutError.
        """
        self._writer.wait_flushed(lsn, timeout_s)

    def read(self, lsn: int, size: int) -> bytes:
        """Bytes of one record's body. Blocks on the disk. Raises KeyError, UnreadableRange, StorageFailed."""
        return self._segments.read(lsn, size)

    def reader(self, lsn: int) -> tuple[Lsn, FileReader]:
        """The base of the segment that holds *lsn*, and who reads its file; it stays good when the segment is dropped.
        Raises KeyError."""
        return self._segments.reader(lsn)

    def drop_before(self, lsn: int, archive: str | None) -> int:
        """Delete the segments that end at or below *lsn*, or move them to *archive*; returns how many.

        A worker thread's job, one at a time. The newest checkpoint must know of every partition's new start.
        Raises StorageFailed; those that are left stay part of the journal.
        """
        return self._segments.drop_before(lsn, archive)

    def close(self) -> None:
        """Write and fsync what is queued, then let go of the files. Idempotent.

        Raises StorageFailed if the journal had stopped; the files are let go all the same.
        """
        try:
            self._writer.close()
        finally:
            self._segments.close()


def make_end_durable(segments: Segments, durable: int, end: int, *, is_clear: bool = False) -> None:
    """Make the journal end at *end*: below it everything is on the disk, beyond it everything is zero, durably.

    *durable*: everything below it was fsynced, with success. What stands behind may be pages that a failed fsync has
    left readable and clean. No further fsync stores them; and what ext4 writes to such a page again is lost as well,
    where the failure left its extent unwritten. So they are written past the page cache, which drops them. Later
    segments are dropped first: one that stands proves the one before it whole. *is_clear*: what stands beyond
    *end* was read, and is zero.
    """
    if not len(segments):
        return
    base, file = segments.locate(end - 1)
    segments.drop_from(base + file.size)
    kept = end - base
    position = (min(durable, end) - base) // BLOCK_BYTES * BLOCK_BYTES
    while position < kept or (not is_clear and (position := file.next_data(position)) < file.size):
        position -= position % BLOCK_BYTES
        data = file.reader().read(position, min(MIB, file.size - position))
        if position < kept:
            data = data[: kept - position].ljust(
                min(-(-(kept - position) // BLOCK_BYTES) * BLOCK_BYTES, len(data)), ZERO
            )
            file.write_direct(position, data)
        elif not is_zero(data):
            file.write_direct(position, bytes(len(data)))
        position += len(data)
    file.sync()
