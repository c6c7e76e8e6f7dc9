"""The key index of one partition: blocks (key_block.py), one a file. Derived data. A worker's job.

Blocks cover offset ranges that were durable when they were written, and never change. Where there is no block, searches
read the messages themselves, and the indexer adds one later: a lost or damaged file is only a gap. A block joins its
predecessor if that one has no more entries, as in a binary counter: the number of blocks stays logarithmic until they
are full, and each entry is rewritten as often.
"""

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from journal.errors import StorageFailed
from journal.wal.storage import Storage
from meta_broker.store.key_block import SPAN_MAX, BlockView, DamagedBlock, KeyBlock, encode_block, joined, sorted_block

log = logging.getLogger(__name__)

ENTRIES_MAX: Final = 1 << 19  # of a block: 4 MiB
_NAME: Final = re.compile(r"(\d{19})-(\d{19})\.keys", re.ASCII)


class CoveredOffsets(NamedTuple):
    """Offsets [start, end)."""

    start: int
    end: int


class Candidates(NamedTuple):
    """Offsets below *next_offset* of messages that may have the requested key."""

    offsets: list[int]
    next_offset: int


class KeyFiles:
    """Blocks of one partition. One thread at a time; any thread may read `covered_ranges`.

    Reading drops damaged blocks, so every method may raise StorageFailed.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.covered_ranges: tuple[CoveredOffsets, ...] = ()  # ascending, disjoint; replaced, never mutated
        found: list[CoveredOffsets] = []
        for name in storage.names():
            match = _NAME.fullmatch(name)
            if match is None or (covered := CoveredOffsets(int(match[1]), int(match[2]))).start >= covered.end:
                storage.remove(name)  # left by a crash while it was written
            else:
                found.append(covered)
        for covered in sorted(found, key=lambda covered: (covered.start, -covered.end)):
            if self.covered_ranges and covered.start < self.covered_ranges[-1].end:
                storage.remove(_name(covered))  # left by a crash after its block was joined
            else:
                self.covered_ranges += (covered,)

    def last_message(self) -> tuple[int, int] | None:
        """Return offset and id of the last block's last message; None: there is no block.

        If the partition has another message there, the blocks belong to another journal.
        """
        while self.covered_ranges:
            with contextlib.suppress(DamagedBlock), _opened(self._storage, self.covered_ranges[-1]) as view:
                return view.last, view.last_id
            self._drop(self.covered_ranges[-1], "damaged")
        return None

    def candidates(self, key_crc: int, offset: int, offsets_max: int, blocks_max: int) -> Candidates:
        """Search the blocks from the one that covers *offset* up to the first gap. A damaged block is dropped and
        ends the search.
        """
        found: list[int] = []
        for covered in self.covered_ranges:
            if covered.end <= offset:
                continue
            if covered.start > offset or not blocks_max:
                break
            try:
                with _opened(self._storage, covered) as view:
                    for at in view.offsets(key_crc, offset):
                        if len(found) == offsets_max:
                            return Candidates(found, at)
                        found.append(at)
            except DamagedBlock as error:
                self._drop(covered, str(error))
                break
            offset = covered.end
            blocks_max -= 1
        return Candidates(found, offset)

    def add(self, block: KeyBlock) -> None:
        """Store *block*, sorted, joined with its predecessors if those are no larger."""
        block = sorted_block(block)
        replaced: list[CoveredOffsets] = []
        for covered in reversed(self.covered_ranges):
            if covered.end != block.start or block.end - covered.start > SPAN_MAX:
                break
            try:
                with _opened(self._storage, covered) as view:
                    if view.entries > block.entries or view.entries + block.entries > ENTRIES_MAX:
                        break
                    block = joined(view.block(), block)
            except DamagedBlock as error:
                self._drop(covered, str(error))
                break
            replaced.append(covered)
        self._storage.replace(_name(CoveredOffsets(block.start, block.end)), encode_block(block))
        kept = [covered for covered in self.covered_ranges if covered not in replaced]
        self.covered_ranges = tuple(sorted([*kept, CoveredOffsets(block.start, block.end)]))
        for covered in replaced:
            self._storage.remove(_name(covered))

    def trim(self, start: int) -> None:
        for covered in self.covered_ranges:
            if covered.end <= start:
                self._drop(covered, None)

    def clear(self, reason: str) -> None:
        for covered in self.covered_ranges:
            self._drop(covered, reason)

    def _drop(self, covered: CoveredOffsets, reason: str | None) -> None:
        if reason is not None:
            log.warning("key index block dropped file=%s/%s reason=%s", self._storage.path, _name(covered), reason)
        self.covered_ranges = tuple(each for each in self.covered_ranges if each != covered)
        if _name(covered) in self._storage.names():
            self._storage.remove(_name(covered))


def first_gap(covered_ranges: tuple[CoveredOffsets, ...], start: int, end: int) -> CoveredOffsets:
    """Return the first part of [start, end) that no block covers; empty at *end*: there is none."""
    for covered in covered_ranges:
        if covered.end <= start:
            continue
        if covered.start > start:
            return CoveredOffsets(start, min(covered.start, end))
        start = covered.end
    return CoveredOffsets(min(start, end), end)


@contextlib.contextmanager
def _opened(storage: Storage, covered: CoveredOffsets) -> Iterator[BlockView]:
    """Open a block's file for reading by system call. Read errors raise DamagedBlock, too."""
    try:
        with contextlib.closing(storage.open(_name(covered), writable=False)) as file:
            yield BlockView(file.reader().read, file.size, *covered)
    except StorageFailed as error:
        raise DamagedBlock(str(error)) from error


def _name(covered: CoveredOffsets) -> str:
    return f"{covered.start:019}-{covered.end:019}.keys"
