"""Sequential reads of the journal by a worker thread, with read-ahead."""

from typing import Final

from journal.wal.open_journal import OpenJournal

AHEAD_BYTES: Final = 64 * 1024  # least bytes of one read: most callers read a few bytes at short distances


class ReadAhead:
    """Buffer of the last part read. One thread, for one job."""

    def __init__(self, journal: OpenJournal) -> None:
        self._journal = journal
        self._start = 0
        self._data = memoryview(b"")

    def read(self, lsn: int, size: int) -> memoryview:
        """Return bytes [lsn, lsn + size), cut at the end of the segment. Blocks on the disk.

        Raises KeyError if they are no longer stored, StorageFailed.
        """
        at = lsn - self._start
        if at < 0 or at + size > len(self._data):
            base, file = self._journal.reader(lsn)
            wanted = min(max(size, AHEAD_BYTES), base + file.size - lsn)
            self._start, self._data = lsn, memoryview(file.read(lsn - base, wanted))
            at = 0
        return self._data[at : at + size]
