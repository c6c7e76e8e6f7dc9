"""Estimates which part of the journal the page cache holds."""

from collections.abc import Sequence

from journal.wal.open_journal import OpenJournal
from meta_broker.store.partition_index import JournalSlice


class PageCacheWindow:
    """The end of the journal that is likely in the page cache. Loop thread only; never waits."""

    def __init__(self, journal: OpenJournal, hot_bytes: float) -> None:
        self._journal = journal
        self.hot_bytes = hot_bytes  # bytes before the end that count as hot

    def is_hot(self, places: Sequence[JournalSlice]) -> bool:
        """Return whether the bytes of *places*, at least one, may be in memory. `ColdRead.cached` finds out."""
        lsn = min(places[0].lsn, places[-1].lsn)  # ascending, except within a transaction
        return self._journal.end - lsn <= self.hot_bytes
