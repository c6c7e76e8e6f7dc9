"""Computes what dropping the front of the journal does to one partition's index. A worker's job: it reads the file.

Entries rise by offset, not by LSN: a transaction's messages stay where they were put and get their offsets at the
commit. So a partition loses offsets from its start up to the last entry that points below the cut, which only reading
every entry finds. Each chunk of the file is read once and its lowest LSN remembered: later surveys read only the chunks
that contain the cut, and new ones.
"""

from meta_broker.store import index_layout
from meta_broker.store.index_layout import ENTRY_BYTES, lsns_of, offsets_of
from meta_broker.store.partition_index import Covered

BLOCK_ENTRIES = 4096  # entries not in the file yet, read in one call: few enough not to delay the event loop
LSN_MAX = 2**63 - 1


class IndexSurvey:
    """Survey of one index, as a checkpoint covers it. Every method blocks on the disk and may raise IndexDamaged."""

    def __init__(self, index: Covered) -> None:
        self._file = index.filed
        self._spilled = memoryview(index.spilled)
        self._first = index.first  # first entry not dropped yet
        filed, chunk = index.filed.entries, index_layout.CHUNK_ENTRIES
        # First entry of each part: chunks of the file, then blocks.
        self._end = filed + len(index.spilled) // ENTRY_BYTES
        in_file = range(self._first // chunk * chunk, filed, chunk)
        self._parts = [*in_file, *range(max(self._first, filed), self._end, BLOCK_ENTRIES)]

    def lowest_kept(self, floor: int) -> int:
        """Return the lowest LSN that the first entry at or above *floor*, or any entry after it, points at.

        A cut there or below leaves all of them readable. LSN_MAX: there is no such entry.
        """
        for at, part in enumerate(self._parts):
            lsns = self._lsns(part)
            kept = next((number for number, lsn in enumerate(lsns) if lsn >= floor), None)
            if kept is not None:
                lowest = [int(min(lsns[kept:])), *map(self._lowest, self._parts[at + 1 :])]
                return min(lowest)
        return LSN_MAX

    def entries_lost(self, cut: int) -> int:
        """Return how many entries, from the first one on, a cut at LSN *cut* drops."""
        for part in reversed(self._parts):
            if self._lowest(part) < cut:
                lsns = self._lsns(part)
                last = max((number for number, lsn in enumerate(lsns) if lsn < cut), default=None)
                if last is not None:
                    return int(max(part, self._first) + last + 1 - self._first)
        return 0

    def offset_behind(self, lost: int, end: int) -> int:
        """Return the offset of the entry after the first *lost* ones; *end*: there is none."""
        number, filed = self._first + lost, self._file.entries
        if number < filed:
            return int(offsets_of(next(self._file.blocks(number)))[0])
        return int(offsets_of(self._spilled)[number - filed]) if number < self._end else end

    def _lsns(self, part: int) -> memoryview:
        filed = self._file.entries
        if part < filed:
            return lsns_of(next(self._file.blocks(max(part, self._first))))
        return lsns_of(self._spilled[(part - filed) * ENTRY_BYTES :][: BLOCK_ENTRIES * ENTRY_BYTES])

    def _lowest(self, part: int) -> int:
        """Return the lowest LSN in *part*; entries before the first one may count, too."""
        if part < self._file.entries:
            return self._file.lowest(part // index_layout.CHUNK_ENTRIES)
        return int(min(self._lsns(part)))
