"""What dropping the front of the journal means for one partition's index. A worker's job: it reads the file.

Entries rise by offset, not by LSN: a transaction's messages lie where they were put and take their offsets when it
commits. So a partition can only lose offsets from its start up to the last entry that points below the cut.

Which entry that is, nobody knows without a look at every one. Each chunk of the file is looked at once and its lowest
LSN remembered: from then on a survey reads the chunks that the cut goes through, and those that are new.
"""

from meta_broker.store import index_file
from meta_broker.store.index_file import ENTRY_BYTES, lsns_of, offsets_of
from meta_broker.store.partition_index import Covered

BLOCK_ENTRIES = 4096  # not in the file yet, looked at in one call: short enough not to hold up the event loop
LSN_MAX = 2**63 - 1


class Survey:
    """One index, as a checkpoint covers it. Everything blocks on the disk and may raise IndexDamaged."""

    def __init__(self, index: Covered) -> None:
        self._file = index.filed
        self._spilled = memoryview(index.spilled)
        self._first = index.first  # entry: what is in front of it is gone already
        filed, chunk = len(index.filed), index_file.CHUNK_ENTRIES
        # Numbers of entries where what is looked at in one go begins: chunks of the file, then blocks.
        self._end = filed + len(index.spilled) // ENTRY_BYTES
        in_file = range(self._first // chunk * chunk, filed, chunk)
        self._parts = [*in_file, *range(max(self._first, filed), self._end, BLOCK_ENTRIES)]

    def lowest_kept(self, floor: int) -> int:
        """The lowest LSN that the first entry at or above *floor*, and every entry behind it, points at.

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
        """How many entries go, from the first one on, when everything below LSN *cut* goes."""
        for part in reversed(self._parts):
            if self._lowest(part) < cut:
                lsns = self._lsns(part)
                last = max((number for number, lsn in enumerate(lsns) if lsn < cut), default=None)
                if last is not None:
                    return int(max(part, self._first) + last + 1 - self._first)
        return 0

    def offset_behind(self, lost: int, end: int) -> int:
        """The offset of the entry behind the first *lost* ones; *end*: there is none."""
        number, filed = self._first + lost, len(self._file)
        if number < filed:
            return int(offsets_of(next(self._file.blocks(number)))[0])
        return int(offsets_of(self._spilled)[number - filed]) if number < self._end else end

    def _lsns(self, part: int) -> memoryview:
        filed = len(self._file)
        if part < filed:
            return lsns_of(next(self._file.blocks(max(part, self._first))))
        return lsns_of(self._spilled[(part - filed) * ENTRY_BYTES :][: BLOCK_ENTRIES * ENTRY_BYTES])

    def _lowest(self, part: int) -> int:
        """Of the entries in *part*; those in front of the first one may count, too."""
        if part < len(self._file):
            return self._file.lowest(part // index_file.CHUNK_ENTRIES)
        return int(min(self._lsns(part)))
