"""What of the journal the event loop tries to read: what the page cache is likely to hold."""

from collections.abc import Sequence

from journal.open_journal import OpenJournal
from meta_broker.store.partition_index import Place


class Horizon:
    """How far back the page cache goes. Loop thread only; never waits."""

    def __init__(self, journal: OpenJournal, distance_max: float) -> None:
        self._journal = journal
        self.distance_max = distance_max  # bytes behind the end, from where on nobody tries: it may go any moment

    def is_near(self, places: Sequence[Place]) -> bool:
        """Whether the bytes of *places*, at least one, may be in memory. `FarRead.cached` finds out."""
        lsn = min(places[0].lsn, places[-1].lsn)  # mostly they rise; a transaction's may not
        return self._journal.end - lsn <= self.distance_max
