"""What dropping the front of the journal means for one partition's index. Pure, on entries as they stand in its file.

Entries rise by offset, not by LSN: a transaction's messages lie where they were put and take their offsets when it
commits. So a partition can only lose offsets from its start up to the last entry that points below the cut.
"""

from collections.abc import Sequence

from journal.storage import Buffer
from meta_broker.store.index_file import ENTRY_BYTES

BLOCK_ENTRIES = 4096  # looked at in one call of min or max: a loop in C, short enough not to hold up the event loop
LSN_MAX = 2**63 - 1
_WORDS = ENTRY_BYTES // 8


def offsets_of(entries: Buffer) -> memoryview:
    """The first offset of every entry."""
    return memoryview(entries).cast("B").cast("Q")[::_WORDS]


def lsns_of(entries: Buffer) -> memoryview:
    """The LSN of every entry."""
    return memoryview(entries).cast("B").cast("Q")[1::_WORDS]


def lowest_kept(parts: Sequence[memoryview], floor: int) -> int:
    """The lowest LSN that the first entry at or above *floor*, and every entry behind it, points at.

    A cut there or below leaves all of them readable. LSN_MAX: there is no such entry.
    """
    lowest, is_kept = LSN_MAX, False
    for block in _blocks(parts):
        if not is_kept:
            if max(block) < floor:
                continue
            is_kept = True
            block = block[next(at for at, lsn in enumerate(block) if lsn >= floor) :]
        lowest = min(lowest, min(block))
    return lowest


def entries_lost(parts: Sequence[memoryview], cut: int) -> int:
    """How many entries go, from the first one on, when everything below LSN *cut* goes."""
    number = lost = 0
    for block in _blocks(parts):
        if min(block) < cut:
            lost = number + 1 + max(at for at, lsn in enumerate(block) if lsn < cut)
        number += len(block)
    return lost


def _blocks(parts: Sequence[memoryview]) -> Sequence[memoryview]:
    return [part[at : at + BLOCK_ENTRIES] for part in parts for at in range(0, len(part), BLOCK_ENTRIES)]
