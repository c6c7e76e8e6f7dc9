"""Common part of every open journal: positions, reads, and waiting for durability.

A broker's own journal (`journal`) and a slave's copy (`follower`) are read alike.
"""

import logging
from dataclasses import dataclass
from typing import Any, Final

from journal.errors import StorageFailed
from journal.records.header import Lsn
from journal.wal.flush_mode import SYNC, FlushMode
from journal.wal.histogram import HistogramSnapshot
from journal.wal.log_writer import LogWriter
from journal.wal.scan import is_zero
from journal.wal.segments import Segments, segment_name
from journal.wal.storage import BLOCK_BYTES
from journal.wal.storage_file import FileReader

log = logging.getLogger(__name__)

MIB = 1024 * 1024
ZERO = b"\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalConfig:
    """Settings of a journal. segment_bytes limits the longest record too."""

    segment_bytes: int = 256 * MIB
    flush: FlushMode = SYNC


class OpenJournal:
    """Read access to an open journal, and waiting for durability."""

    def __init__(self, segments: Segments, writer: LogWriter[Any]) -> None:
        self.segments: Final = segments
        self.identity: Final = segments.identity
        self.storage: Final = segments.storage
        self.body_bytes_max: Final = segments.body_bytes_max
        self.flush_mode: Final = writer.mode
        self._writer = writer

    @property
    def start_lsn(self) -> Lsn:
        return self.segments.start

    @property
    def end(self) -> Lsn:
        """LSN of the next record."""
        return self._writer.end

    @property
    def written(self) -> Lsn:
        """First LSN not handed to the OS: everything below reads back, though a power failure may lose some."""
        return self._writer.written

    def notify_written(self, wanted: bool) -> None:
        """Call on_progress also when `written` moved, or stop that: for replication of bytes before they are
        fsynced."""
        self._writer.notifies_written = wanted or self.flush_mode.interval_ms > 0

    @property
    def flushed(self) -> Lsn:
        """First LSN that is not fsynced."""
        return self._writer.flushed

    @property
    def acknowledged_here(self) -> Lsn:
        """First LSN that the flush mode does not count as acknowledged yet."""
        return self._writer.written if self.flush_mode.interval_ms else self._writer.flushed

    @property
    def failure(self) -> StorageFailed | None:
        """Error that stopped the journal for good, or None."""
        return self._writer.failure

    @property
    def queued_bytes(self) -> int:
        """Bytes appended and not yet handed to the OS, for back-pressure."""
        return self._writer.queued_bytes

    @property
    def syncs(self) -> int:
        """Number of fsyncs since the start."""
        return self._writer.syncs

    def fsync_seconds(self) -> HistogramSnapshot:
        """Return the durations of the fsyncs since the start. Any thread."""
        return self._writer.fsync_seconds.snapshot()

    def batch_bytes(self) -> HistogramSnapshot:
        """Return the sizes of what was written together, as one group commit, since the start. Any thread."""
        return self._writer.batch_bytes.snapshot()

    def flush(self) -> None:
        """Request an fsync of all that is queued, whatever the mode. Returns at once; any thread."""
        self._writer.flush()

    def wait_flushed(self, lsn: int, timeout_s: float | None = None) -> None:
        """Block until every byte below *lsn* is fsynced. Any thread except an event loop's. Raises StorageFailed,
        TimeoutError."""
        self._writer.wait_flushed(lsn, timeout_s)

    def reader(self, lsn: int) -> tuple[Lsn, FileReader]:
        """Return the base of the segment that holds *lsn*, and a reader of its file, which stays valid when the segment
        is dropped. Raises KeyError."""
        return self.segments.reader(lsn)

    def close(self) -> None:
        """Write and fsync what is queued, then release the files. Idempotent.

        Raises StorageFailed if the journal had stopped; the files are released all the same.
        """
        try:
            self._writer.close()
        finally:
            self.segments.close()


def make_end_durable(segments: Segments, durable: int, end: int, *, is_clear: bool = False) -> None:
    """Make the journal end at *end*: everything below on the disk, everything beyond zero, durably.

    *durable*: LSN below which everything was fsynced successfully. Later bytes may be pages that a failed fsync has
    left readable and clean. Another fsync does not store them; and what ext4 writes to such a page is lost as well, if
    the failure left its extent unwritten. So they are written past the page cache, which drops them. Later segments are
    dropped first, since each proves the one before it whole. *is_clear*: the bytes beyond *end* were read, and are
    zero.
    """
    if not len(segments):
        return
    base, file = segments.locate(end - 1)
    segments.drop_from(base + file.size)
    if segments.storage.unshare(segment_name(base)):
        log.warning("segment was linked elsewhere, copied path=%s/%s", segments.storage.path, segment_name(base))
        segments.reopen(base)
        base, file = segments.locate(end - 1)
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
