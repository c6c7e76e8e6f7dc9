"""The journal as a worker thread reads it, some of it ahead."""

from typing import Final

from journal.open_journal import OpenJournal

AHEAD_BYTES: Final = 64 * 1024  # what is read at least: most look at a few bytes here and a few a little further on


class Window:
    """The last part of the journal that was read. One thread, for one piece of work."""

    def __init__(self, journal: OpenJournal) -> None:
        self._journal = journal
        self._start = 0
        self._data = memoryview(b"")

    def read(self, lsn: int, size: int) -> memoryview:
        """Bytes [lsn, lsn + size), cut at the end of the segment. Blocks on the disk.

        Raises KeyError for what is no longer stored, StorageFailed.
        """
        at = lsn - self._start
        if at < 0 or at + size > len(self._data):
            base, file = self._journal.reader(lsn)
            wanted = min(max(size, AHEAD_BYTES), base + file.size - lsn)
            self._start, self._data = lsn, memoryview(file.read(lsn - base, wanted))
            at = 0
        return self._data[at : at + size]
