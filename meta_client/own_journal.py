"""A directory that a client locks, and a journal that it keeps there: a coordinator's decisions, a consumer's dead
letters. Such a journal has one epoch, and another incarnation each time it is opened.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from journal.errors import CorruptJournal, DirectoryInUse
from journal.records.codec import decode
from journal.records.header import Lsn, RecordHeader
from journal.records.record import Epoch, Record
from journal.state.inspection import RecordReader
from journal.state.wall_clock import wall_clock_ms
from journal.wal.flush_mode import FlushMode
from journal.wal.journal import Journal
from journal.wal.open_journal import make_end_durable
from journal.wal.scan import EndVerdict, ScanEnd, Scanner
from journal.wal.segments import Segments
from journal.wal.storage import DirectoryStorage, Storage
from zk.forks import invalidate_after_fork

Apply = Callable[[RecordHeader, Record], None]


@contextmanager
def locked(directory: Path, in_use: Exception) -> Iterator[DirectoryStorage]:
    """Yield *directory*, made if missing and locked; it is unlocked if the block fails. Raises *in_use*."""
    try:
        storage = DirectoryStorage.open_for_writing(directory)
    except DirectoryInUse as error:
        raise in_use from error
    try:
        yield storage
    except BaseException:
        storage.close()
        raise


def replay(segments: Segments, apply: Apply) -> tuple[ScanEnd, int]:
    """Apply every record; return how they end, and the last incarnation. Raises InvalidRecord."""
    incarnation = 0
    reading = RecordReader(Scanner(segments, segments.start))
    for entry in reading:
        incarnation = entry.header.incarnation
        apply(entry.header, decode(entry.header, entry.meta))
    return reading.end, incarnation


def check_end(segments: Segments, end: ScanEnd) -> None:
    """Raise CorruptJournal if acknowledged records do not read back."""
    if end.verdict is EndVerdict.CORRUPT:
        raise CorruptJournal(end.end, end.next_valid_lsn, end.reason, segments.storage.path)


def resumed(segments: Segments, apply: Apply, flush: FlushMode, log: logging.Logger) -> Journal:
    """Apply every record, truncate a torn tail, and return the journal that goes on there; it takes *segments* over.

    Raises CorruptJournal, InvalidRecord, StorageFailed: *segments* are closed then.
    """
    try:
        end, incarnation = replay(segments, apply)
        check_end(segments, end)
        if end.trailing_garbage:
            log.warning("torn tail truncated path=%s lsn=%d reason=%s", segments.storage.path, end.end, end.reason)
        make_end_durable(segments, end.durable, end.end, is_clear=not end.trailing_garbage)
        return Journal.start(segments, end.end, epoch=1, incarnation=incarnation + 1, flush=flush)
    except BaseException:
        segments.close()
        raise


class OwnJournal:
    """Base of what is kept in such a journal. Closes *storage* if that is a directory."""

    def __init__(self, storage: Storage, journal: Journal, version: str) -> None:
        """*version*: of the records' format, which the EPOCH record names."""
        self._storage = storage
        self._journal = journal
        self._version = version
        self._is_closed = False
        if isinstance(storage, DirectoryStorage):  # a child must not hold the lock when its parent is gone
            invalidate_after_fork(self, storage.close)

    def _begin(self) -> None:
        """Make the new incarnation durable, once opened. Raises StorageFailed; it is closed then."""
        try:
            self._append_epoch()
            self._journal.wait_flushed(self._journal.end)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Write queued records and unlock the directory. Idempotent. Raises StorageFailed if the journal had failed."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._journal.close()
        finally:
            if isinstance(self._storage, DirectoryStorage):
                self._storage.close()

    def _append(self, record: Record, body: bytes = b"") -> RecordHeader:
        return self._journal.append(record, wall_clock_ms(), [body] if body else [], len(body))

    def _append_epoch(self) -> Lsn:
        return self._append(Epoch(self._journal.epoch, self._journal.incarnation, self._version)).lsn
