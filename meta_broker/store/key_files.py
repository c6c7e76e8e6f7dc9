"""The key index of one partition: blocks (key_block.py), each in a file of its own. Derived data. A worker's job.

Blocks cover stretches of the partition that were durable when they were made, and never change; where none does,
whoever searches looks at the messages themselves, and the indexer makes one when it comes by. So a file that is lost or
damaged is a gap and no more. A block joins its neighbour when that one has no more entries, as in a binary counter:
their number stays logarithmic until they are full, and each entry is written as often.
"""

import contextlib
import logging
import re
from typing import Final, NamedTuple

from journal.errors import StorageFailed
from journal.storage import Storage
from meta_broker.store.key_block import SPAN_MAX, Block, BlockView, DamagedBlock, encode_block, joined, sorted_block

log = logging.getLogger(__name__)

ENTRIES_MAX: Final = 1 << 19  # of a block: 4 MiB
_NAME: Final = re.compile(r"(\d{19})-(\d{19})\.keys", re.ASCII)


class Stretch(NamedTuple):
    """Offsets [start, end)."""

    start: int
    end: int


class Candidates(NamedTuple):
    """Offsets below *next_offset* at which a message may have the key that was asked for."""

    offsets: list[int]
    next_offset: int


class KeyFiles:
    """One partition's blocks. One thread at a time; `stretches` may be read by any.

    What reads drops what does not read back, so that every method may raise StorageFailed.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.stretches: tuple[Stretch, ...] = ()  # rising, apart from each other; replaced, never changed
        found: list[Stretch] = []
        for name in storage.names():
            match = _NAME.fullmatch(name)
            if match is None or (stretch := Stretch(int(match[1]), int(match[2]))).start >= stretch.end:
                storage.remove(name)  # one that was being written when the power went
            else:
                found.append(stretch)
        for stretch in sorted(found, key=lambda stretch: (stretch.start, -stretch.end)):
            if self.stretches and stretch.start < self.stretches[-1].end:
                storage.remove(_name(stretch))  # its block had joined another when the power went
            else:
                self.stretches += (stretch,)

    def last_message(self) -> tuple[int, int] | None:
        """Where the last message of the last block begins, and its id: what must be so, or these are of another
        journal. None: there is no block."""
        while self.stretches:
            with contextlib.suppress(DamagedBlock), _Opened(self._storage, self.stretches[-1]) as view:
                return view.last, view.last_id
            self._drop(self.stretches[-1], "damaged")
        return None

    def candidates(self, key_crc: int, offset: int, offsets_max: int, blocks_max: int) -> Candidates:
        """Look into the blocks from the one that covers *offset* on, up to the first gap. Damaged ones are dropped,
        and end it."""
        found: list[int] = []
        for stretch in self.stretches:
            if stretch.end <= offset:
                continue
            if stretch.start > offset or not blocks_max:
                break
            try:
                with _Opened(self._storage, stretch) as view:
                    for at in view.offsets(key_crc, offset):
                        if len(found) == offsets_max:
                            return Candidates(found, at)
                        found.append(at)
            except DamagedBlock as error:
                self._drop(stretch, str(error))
                break
            offset = stretch.end
            blocks_max -= 1
        return Candidates(found, offset)

    def add(self, block: Block) -> None:
        """Keep *block*, whose entries need not rise, joined with what is before it if that is no larger."""
        block = sorted_block(block)
        replaced: list[Stretch] = []
        for stretch in reversed(self.stretches):
            if stretch.end != block.start or block.end - stretch.start > SPAN_MAX:
                break
            try:
                with _Opened(self._storage, stretch) as view:
                    if view.entries > block.entries or view.entries + block.entries > ENTRIES_MAX:
                        break
                    block = joined(view.block(), block)
            except DamagedBlock as error:
                self._drop(stretch, str(error))
                break
            replaced.append(stretch)
        self._storage.replace(_name(Stretch(block.start, block.end)), encode_block(block))
        kept = [stretch for stretch in self.stretches if stretch not in replaced]
        self.stretches = tuple(sorted([*kept, Stretch(block.start, block.end)]))
        for stretch in replaced:
            self._storage.remove(_name(stretch))

    def trim(self, start: int) -> None:
        """Drop what is below *start*."""
        for stretch in self.stretches:
            if stretch.end <= start:
                self._drop(stretch, None)

    def clear(self, reason: str) -> None:
        """Drop everything."""
        for stretch in self.stretches:
            self._drop(stretch, reason)

    def _drop(self, stretch: Stretch, reason: str | None) -> None:
        if reason is not None:
            log.warning("key index block dropped file=%s/%s reason=%s", self._storage.path, _name(stretch), reason)
        self.stretches = tuple(each for each in self.stretches if each != stretch)
        if _name(stretch) in self._storage.names():
            self._storage.remove(_name(stretch))


def first_gap(stretches: tuple[Stretch, ...], start: int, end: int) -> Stretch:
    """The first part of [start, end) that no block covers; empty at *end*: there is none."""
    for stretch in stretches:
        if stretch.end <= start:
            continue
        if stretch.start > start:
            return Stretch(start, min(stretch.start, end))
        start = stretch.end
    return Stretch(min(start, end), end)


class _Opened:
    """A block's file while it is looked into, by system call. What the disk does not give back is DamagedBlock, too."""

    def __init__(self, storage: Storage, stretch: Stretch) -> None:
        try:
            self._file = storage.open(_name(stretch), writable=False)
        except StorageFailed as error:
            raise DamagedBlock(str(error)) from error
        try:
            self._view = BlockView(self._file.reader().read, self._file.size, *stretch)
        except DamagedBlock:
            self._file.close()
            raise
        except StorageFailed as error:
            self._file.close()
            raise DamagedBlock(str(error)) from error

    def __enter__(self) -> BlockView:
        return self._view

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._file.close()
        if isinstance(error, StorageFailed):
            raise DamagedBlock(str(error)) from error


def _name(stretch: Stretch) -> str:
    return f"{stretch.start:019}-{stretch.end:019}.keys"
