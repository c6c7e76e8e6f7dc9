"""What of the journal can be read on the event loop: what does not wait for the disk."""

from collections.abc import Sequence

from journal.open_journal import OpenJournal
from meta_broker.store.partition_index import Place

MIB = 1024 * 1024
HOT_BYTES = 16 * MIB  # written by this process and so lately that nobody has to look: the readers at the tail
LOOK_BYTES = 256 * 1024  # a look, 1 us, for so much: pages come and go by read-ahead, which is larger
LOOKS_MAX = 16  # places of one read that are looked at; with more of them, some


class Horizon:
    """How far back the page cache goes. Loop thread only; never waits.

    By distance alone the answer would be wrong after the machine was started, and where others use its memory: what
    is neither just written nor beyond the distance is looked at.
    """

    def __init__(self, journal: OpenJournal, distance_max: float) -> None:
        self._journal = journal
        self.distance_max = distance_max  # bytes behind the end, from where on nobody looks: it may go any moment
        self._opened_at = journal.end

    def is_near(self, places: Sequence[Place]) -> bool:
        """Whether the bytes of *places*, at least one, can be taken from the mapped journal without a wait."""
        lsn = min(places[0].lsn, places[-1].lsn)  # mostly they rise; a transaction's may not
        distance = self._journal.end - lsn
        if distance > self.distance_max:
            return False
        if distance <= HOT_BYTES and lsn >= self._opened_at:
            return True
        return all(self._is_cached(*place) for place in places[:: -(-len(places) // LOOKS_MAX)])

    def _is_cached(self, lsn: int, size: int) -> bool:
        base, file = self._journal.reader(lsn)
        position = lsn - base
        is_cached, last = file.is_cached, position + size - 1
        return all(map(is_cached, range(position, last, LOOK_BYTES))) and is_cached(last)
