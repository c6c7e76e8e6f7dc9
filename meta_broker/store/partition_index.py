"""One partition's index: from offset to place in the journal, an entry a run. Derived data.

Entries are 32 bytes, little-endian: offset, LSN of the first frame, milliseconds, bytes, messages. Those up to
the newest checkpoint stand in a file (`index_file`), the tail in memory; what is lost or damaged is rebuilt from
the journal while the broker serves.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from journal.checkpoint import IndexMark
from journal.publications import Publication
from meta_broker.store.index_file import (
    EMPTY,
    ENTRY,
    ENTRY_BYTES,
    IndexCold,
    IndexDamaged,
    IndexFile,
    Spill,
    offsets_of,
    renew,
    settle,
    write,
)

_FIRST = _TIME = struct.Struct("<Q")
RENEWED_ENTRIES_MIN = 16 * 1024  # half a mebibyte: of thousands of partitions most never have so many to give back
_TIME_AT = 16
Buffer = bytes | bytearray


class Place(NamedTuple):
    """Bytes of message frames in the journal."""

    lsn: int
    bytes: int


class StoredRun(NamedTuple):
    """Whole messages, *messages* of them, in the journal and in their partition."""

    offset: int
    lsn: int
    bytes: int
    messages: int


class Covered(NamedTuple):
    """The entries that a checkpoint covers, those below the offset *start* included; they never change again.

    A worker's.
    """

    start: int
    filed: IndexFile
    spilled: bytes

    @property
    def first(self) -> int:
        """The number of the first entry at or above the start. Blocks on the disk. Raises IndexDamaged."""
        first = self.filed.first_at(self.start)
        return first if first < len(self.filed) else first + bisect_left(offsets_of(self.spilled), self.start)


class PartitionIndex:
    """The published messages of one partition, [start, end). Loop thread only, but for `write`.

    What reads entries may come upon damage and raise IndexDamaged, of which *on_damaged* is told once; and upon a part
    of the file that is not in memory, and raise IndexCold.
    """

    def __init__(self, path: Path, on_damaged: Callable[[], None] = lambda: None) -> None:
        self._path = path
        self._on_damaged = on_damaged
        self._file = EMPTY  # what the newest checkpoint covers
        self._tail = bytearray()  # published since
        self.is_damaged = False  # the file is, somewhere: the next checkpoint names none
        self.start = 0
        self.end = 0  # first offset that is not published: the log end that consumers see
        self._time_ms = 0  # of the last entry
        self.messages = 0  # published since the broker started: what stats counts
        # Where the last read ended, entry and offset: readers mostly go on from there.
        self._last_read, self._last_offset = 0, -1
        self._may_renew = True  # nobody has looked yet whether the file holds mostly what is below the start

    def __len__(self) -> int:
        return self._file.entries + len(self._tail) // ENTRY_BYTES

    @property
    def is_unopened(self) -> bool:
        """Whether nobody has wanted the file yet."""
        return not (self._file.is_open or self._file.is_lost)

    def restore(self, start: int, end: int, mark: IndexMark | None) -> bool:
        """Go back to what a checkpoint knew. False when the file is lost or too short: *on_damaged* is told, and until
        it is `rebuilt` what the file held cannot be read, but for what is published from here on.

        Looks at the size of the file; who reads it first opens it, and may come upon damage.
        """
        self.start, self.end = start, end
        self._tail.clear()
        self._file, self._time_ms, self.is_damaged = EMPTY, 0, False
        if start == end:
            return True
        if mark is not None and (file := IndexFile.unopened(self._path, mark, end)) is not None:
            self._file = file
            return True
        self._file = IndexFile.lost(self._path.name)
        self._notice()
        return False

    def publish(self, publication: Publication) -> None:
        """Add a run at the end. Publishing what is there already changes nothing. One of no bytes ends a gap."""
        self.publish_runs(publication.base, (publication.run,))

    def publish_runs(self, base: int, runs: Iterable[tuple[int, int, int, int]]) -> None:
        """As publish, for *runs*, each what a Run consists of, which take the offsets from *base* on, one behind the
        other. A loop without calls: the commit of a branch publishes all its runs in one turn of the event loop."""
        tail, pack = self._tail, ENTRY.pack
        end, latest_ms, messages = self.end, self._time_ms, self.messages
        for lsn, size, count, time_ms in runs:
            after = base + size
            if after > end:
                assert base == end or not size
                # Never earlier than the entry before it, or time could not be bisected: a transaction's messages were
                # put before others that are there already when it commits, and clocks are set back.
                if time_ms > latest_ms:
                    latest_ms = time_ms
                tail += pack(base, lsn, latest_ms, size, count)
                end = after
                messages += count
            base = after
        self.end, self._time_ms, self.messages = end, latest_ms, messages

    def trim(self, start: int) -> None:
        """Begin at *start* from here on. Nobody reads the entries below it, which stay until the file is renewed."""
        assert start <= self.end
        self.start = max(self.start, start)
        self._may_renew = True

    def places(self, offset: int, bytes_max: int) -> Iterator[Place]:
        """Where the bytes [offset, offset + bytes_max) are; *offset*: in [start, end).

        Cut at the end, at a gap, and where the index is not in memory.
        """
        assert self.start <= offset < self.end
        entry = first = self._find(offset)
        count, is_whole = len(self), False
        while bytes_max > 0 and entry < count:
            try:
                base, lsn, _, size, _ = self._entry(entry)
            except IndexCold:
                if entry == first:
                    raise
                break  # whoever goes on there has it read
            skip = offset - base
            if skip < 0 or skip >= size:
                break  # in a gap
            wanted = min(size - skip, bytes_max)
            is_whole = wanted == size - skip
            yield Place(lsn + skip, wanted)
            bytes_max -= wanted
            offset += wanted
            entry += 1
        self._last_read, self._last_offset = entry, offset if is_whole else -1

    def resumes(self, offset: int) -> int:
        """The first offset from *offset*, which lies in a gap, at which something is stored, or the end."""
        entry = self._find(offset) + 1
        return self._offset(entry) if entry < len(self) else self.end

    def runs(self, offset: int) -> Iterator[StoredRun]:
        """The runs from the one that holds *offset* on; *offset* must be in [start, end)."""
        assert self.start <= offset < self.end
        for entry in range(self._find(offset), len(self)):
            base, lsn, _, size, messages = self._entry(entry)
            if base + size <= offset:
                continue  # a gap, or what is in front of it
            yield StoredRun(base, lsn, size, messages)

    def nearest(self, offset: int) -> int:
        """Where reading can begin near *offset*: the start of the run it lies in, or the nearer end (spec 4.9)."""
        if offset < self.start:
            return self.start
        return self.end if offset >= self.end else self._offset(self._find(offset))

    def covered_with(self, spill: Spill | None) -> Covered:
        """Every entry that a checkpoint with *spill* covers."""
        return Covered(self.start, self._file, spill.data if spill else b"")

    def at_time(self, time_ms: int) -> int:
        """The first offset of what was published at *time_ms* (Unix milliseconds) or later; the end if nothing was."""
        if not self._file.is_open:
            self._entry_at(self._file.entries - 1)  # nobody knows what the times behind it must not fall below
        self._begin_at(self._file.last_ms)
        entry = bisect_left(range(len(self)), time_ms, key=lambda entry: self._entry(entry)[2])
        return self.end if entry == len(self) else max(self.start, self._offset(entry))

    def spill(self) -> Spill | None:
        """What the file lacks, or may hold too much, if anything; `filed` says that it was written."""
        filed = self._file.entries
        may_renew = self._may_renew and filed >= RENEWED_ENTRIES_MIN
        if self.is_damaged or not (self._tail or may_renew):
            return None
        return Spill(filed, bytes(self._tail), self.start if may_renew else 0)

    def write(self, spill: Spill) -> IndexFile:
        """Add *spill* to the file and return it, for `filed`; durable then. A worker's job. Raises StorageFailed,
        IndexDamaged.

        Once a checkpoint says so, `settle` it.
        """
        file = self._file
        file.open()
        spill = spill._replace(data=_no_earlier(spill.data, file.last_ms))
        if spill.start:
            # The entry that the start lies in, or the last one there is, stays: an empty file could not be opened.
            unneeded = max(file.first_at(spill.start + 1) - 1, 0)
            if unneeded >= RENEWED_ENTRIES_MIN and 2 * unneeded > spill.first:
                return renew(self._path, spill, file, unneeded)
        return write(self._path, spill, file)

    def settle(self, spill: Spill, file: IndexFile) -> None:
        """A checkpoint that is durable goes by *file*. A worker's job. Raises StorageFailed."""
        if file.entries < spill.end:
            settle(self._path)

    @property
    def mark(self) -> IndexMark | None:
        """What a checkpoint says of the file when there is nothing to add to it."""
        return None if self.is_damaged else self._file.mark

    def filed(self, spill: Spill, file: IndexFile) -> None:
        """*spill* is durable in *file*: the tail begins after it."""
        if self.is_damaged:
            return  # noticed since then: the entries stay in memory until those before them are rebuilt
        left_out = spill.end - file.entries
        self._file = file
        del self._tail[: len(spill.data)]
        self._begin_at(file.last_ms)
        self._last_read = max(self._last_read - left_out, 0)
        if self.start == spill.start:
            self._may_renew = False  # until more of it is let go of

    def damaged(self) -> None:
        """What a worker has read of the file is damaged."""
        self._notice()

    # -- damage -----------------------------------------------------------------------------------------------

    def rebuilding(self) -> "tuple[PartitionIndex, int]":
        """An empty index to publish to what the file should have held, and the offset where that ends."""
        fresh = PartitionIndex(self._path)
        end = int(_FIRST.unpack_from(self._tail)[0]) if self._tail else self.end
        fresh.start = fresh.end = min(self.start, end)
        return fresh, end

    def rebuilt(self, fresh: "PartitionIndex") -> None:
        """Take over the entries of *fresh*; they stay in memory until a checkpoint makes the file anew."""
        self._begin_at(fresh._time_ms)
        self._tail[:0] = fresh._tail
        self._file, self.is_damaged, self._last_read, self._last_offset = EMPTY, False, 0, -1

    def _entry_at(self, entry: int) -> "tuple[Buffer, int]":
        """Buffer and position of an entry. Raises IndexDamaged, IndexCold."""
        file = self._file
        if entry >= file.entries:
            return self._tail, (entry - file.entries) * ENTRY_BYTES
        try:
            return file.at(entry)
        except IndexDamaged:
            self._notice()
            raise

    def _begin_at(self, time_ms: int) -> None:
        """What stands before the tail ends at *time_ms*: while nobody knew, earlier times may have been published."""
        self._time_ms = max(self._time_ms, time_ms)
        if self._tail and _TIME.unpack_from(self._tail, _TIME_AT)[0] < time_ms:
            self._tail[:] = _no_earlier(self._tail, time_ms)

    def _notice(self) -> None:
        if self._file.is_lost:
            self._file, self._last_read, self._last_offset = IndexFile.lost(self._path.name), 0, -1
        if not self.is_damaged:
            self.is_damaged = True
            self._on_damaged()

    def _find(self, offset: int) -> int:
        hint = self._last_read
        if offset == self._last_offset and hint < len(self) and self._offset(hint) == offset:
            return hint
        return bisect_right(range(len(self)), offset, key=self._offset) - 1

    def _offset(self, entry: int) -> int:
        return int(_FIRST.unpack_from(*self._entry_at(entry))[0])

    def _entry(self, entry: int) -> tuple[int, int, int, int, int]:
        return ENTRY.unpack_from(*self._entry_at(entry))


def _no_earlier(entries: Buffer, time_ms: int) -> bytes:
    """*entries*, whose times rise, none of them earlier than *time_ms*."""
    if not entries or _TIME.unpack_from(entries, _TIME_AT)[0] >= time_ms:
        return bytes(entries)
    raised = bytearray(entries)
    for at in range(_TIME_AT, len(raised), ENTRY_BYTES):
        if _TIME.unpack_from(raised, at)[0] >= time_ms:
            break
        _TIME.pack_into(raised, at, time_ms)
    return bytes(raised)
