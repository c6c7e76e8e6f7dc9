"""Index of one partition: maps offsets to slices of the journal, one entry a run. Derived data.

Entries are 32 bytes, little-endian: offset, LSN of the first frame, milliseconds, bytes, messages. Those up to the
newest checkpoint are in a file (`index_file`), the tail in memory; a lost or damaged part is rebuilt from the journal
while the broker serves.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from journal.records.index_updates import IndexUpdate
from journal.state.checkpoint import IndexFileEntry
from meta_broker.store.index_file import EMPTY, IndexCold, IndexDamaged, IndexFile
from meta_broker.store.index_layout import ENTRY, ENTRY_BYTES, Spill, install, messages_in, offsets_of
from meta_broker.store.index_writing import renew, write

_FIRST = _TIME = struct.Struct("<Q")
COUNTED_ENTRIES_MAX = 32 * 1024  # in memory, by one call: half a millisecond
RENEWED_ENTRIES_MIN = 16 * 1024  # half a mebibyte: few partitions ever drop so many
_TIME_AT = 16
EntryBuffer = bytes | bytearray


class JournalSlice(NamedTuple):
    """Bytes of message frames in the journal."""

    lsn: int
    bytes: int
    messages: int = 0  # of the run that ends with it; 0: the run goes on behind it


class StoredExtent(NamedTuple):
    """A run of *messages* whole messages, contiguous in the journal and in their partition."""

    offset: int
    lsn: int
    bytes: int
    messages: int


class RunsCounted(NamedTuple):
    """*messages* of the runs from one offset on that begin below *next_offset*; those in *before*, the front of the
    first run, lie below the offset."""

    messages: int
    next_offset: int
    before: StoredExtent | None


class Covered(NamedTuple):
    """The entries a checkpoint covers, including those below the offset *start*; immutable. Used by a worker."""

    start: int
    filed: IndexFile
    spilled: bytes

    @property
    def first(self) -> int:
        """Number of the first entry at or above the start. Blocks on the disk. Raises IndexDamaged."""
        first = self.filed.first_at(self.start)
        return first if first < self.filed.entries else first + bisect_left(offsets_of(self.spilled), self.start)


class PartitionIndex:
    """Published messages of one partition, [start, end). Loop thread only, except `write`.

    Methods that read entries may raise IndexDamaged, after the first of which *on_damaged* is called once, and
    IndexCold if a part of the file is not in memory.
    """

    def __init__(self, path: Path, on_damaged: Callable[[], None] = lambda: None) -> None:
        self._path = path
        self._on_damaged = on_damaged
        self._file = EMPTY  # covered by the newest checkpoint
        self._tail = bytearray()  # published since then
        self.is_damaged = False  # somewhere in the file: the next checkpoint names no file
        self.start = 0
        self.end = 0  # first unpublished offset: the log end that consumers see
        self._time_ms = 0  # of the last entry
        self.messages = 0  # published since the broker started, for stats
        # Entry and offset where the last read ended: most reads continue there.
        self._last_read, self._last_offset = 0, -1
        self._may_renew = True  # unknown whether most of the file is below the start

    def __len__(self) -> int:
        return self._file.entries + len(self._tail) // ENTRY_BYTES

    @property
    def is_unopened(self) -> bool:
        """True until the file is first used."""
        return not (self._file.is_open or self._file.is_lost)

    def restore(self, start: int, end: int, entry: IndexFileEntry | None) -> bool:
        """Return to the state a checkpoint describes. False: the file is lost or too short, and *on_damaged* was
        called.

        Until it is `rebuilt`, only what is published from now on can be read. Checks only the size of the file; the
        first reader opens it, and may find damage.
        """
        self.start, self.end = start, end
        self._tail.clear()
        self._file, self._time_ms, self.is_damaged = EMPTY, 0, False
        if start == end:
            return True
        if entry is not None and (file := IndexFile.unopened(self._path, entry, end)) is not None:
            self._file = file
            return True
        self._file = IndexFile.lost(self._path.name)
        self.damaged()
        return False

    def read_archived(self, file: IndexFile, start: int, end: int) -> None:
        """Become an index of the archived messages [start, end), to read from: *file* has all of its entries."""
        self.start, self.end, self._file = start, end, file

    def publish(self, update: IndexUpdate) -> None:
        """Add a run at the end. Publishing an existing run changes nothing. A run of no bytes ends a gap."""
        self.publish_runs(update.base, (update.extent,))

    def publish_runs(self, base: int, extents: Iterable[tuple[int, int, int, int]]) -> None:
        """Publish *extents*, fields as in Extent, at consecutive offsets from *base* on.

        Avoids calls in its loop: the commit of a branch publishes all its runs in one turn of the event loop.
        """
        tail, pack = self._tail, ENTRY.pack
        end, latest_ms, messages = self.end, self._time_ms, self.messages
        for lsn, size, count, time_ms in extents:
            after = base + size
            if after > end:
                assert base == end or not size
                # Times must ascend to be bisected, but a transaction's messages are put before others that are
                # published when it commits, and clocks are set back.
                if time_ms > latest_ms:
                    latest_ms = time_ms
                tail += pack(base, lsn, latest_ms, size, count)
                end = after
                messages += count
            base = after
        self.end, self._time_ms, self.messages = end, latest_ms, messages

    def trim(self, start: int) -> None:
        """Move the start to *start*. Entries below it are unused, and stay until the file is renewed."""
        assert start <= self.end
        self.start = max(self.start, start)
        self._may_renew = True

    def places(self, offset: int, bytes_max: int) -> Iterator[JournalSlice]:
        """Yield the journal slices of the bytes [offset, offset + bytes_max); *offset*: in [start, end).

        Ends early at the end, at a gap, and where the index is not in memory.
        """
        assert self.start <= offset < self.end
        entry = first = self._run_at(offset)
        count, is_whole = len(self), False
        while bytes_max > 0 and entry < count:
            try:
                base, lsn, _, size, messages = self._entry(entry)
            except IndexCold:
                if entry == first:
                    raise
                break  # the next read begins there, and loads it
            skip = offset - base
            if skip < 0 or skip >= size:
                break  # in a gap
            wanted = min(size - skip, bytes_max)
            is_whole = wanted == size - skip
            yield JournalSlice(lsn + skip, wanted, messages if is_whole else 0)
            bytes_max -= wanted
            offset += wanted
            entry += 1
        self._last_read, self._last_offset = entry, offset if is_whole else -1

    def resumes(self, offset: int) -> int:
        """Return the first stored offset after *offset*, which lies in a gap, or the end."""
        entry = self._find(offset) + 1
        return self._offset(entry) if entry < len(self) else self.end

    def runs(self, offset: int) -> Iterator[StoredExtent]:
        """Yield the runs from the one that contains *offset* on; *offset* must be in [start, end)."""
        assert self.start <= offset < self.end
        for entry in range(self._run_at(offset), len(self)):
            base, lsn, _, size, messages = self._entry(entry)
            if base + size <= offset:
                continue  # a gap, or what is in front of it
            yield StoredExtent(base, lsn, size, messages)

    def count(self, offset: int) -> RunsCounted:
        """Count the messages of the runs from the one that contains *offset* on, up to the end, or to where the next
        call has to go on; *offset* must be in [start, end)."""
        assert self.start <= offset < self.end
        entry = self._run_at(offset)
        base, lsn, _, size, messages = self._entry(entry)
        if base + size <= offset:
            entry += 1  # a gap, or what is in front of it
        before = StoredExtent(base, lsn, offset - base, messages) if base < offset < base + size else None
        found, filed = 0, self._file.entries
        if entry < filed:
            try:
                found, entry = self._file.counted(entry)
            except IndexDamaged:
                self.damaged()
                raise
        if entry >= filed:
            tail = memoryview(self._tail)[(entry - filed) * ENTRY_BYTES :][: COUNTED_ENTRIES_MAX * ENTRY_BYTES]
            found, entry = found + messages_in(tail), entry + len(tail) // ENTRY_BYTES
            tail.release()  # a bytearray can't grow meanwhile
        return RunsCounted(found, self._offset(entry) if entry < len(self) else self.end, before)

    def nearest(self, offset: int) -> int:
        """Return where reading can begin near *offset*: the start of its run, or the nearer end (spec 4.9)."""
        if offset < self.start:
            return self.start
        return self.end if offset >= self.end else self._offset(self._run_at(offset))

    def covered_with(self, spill: Spill | None) -> Covered:
        """Return every entry that a checkpoint with *spill* covers."""
        return Covered(self.start, self._file, spill.data if spill else b"")

    def at_time(self, time_ms: int) -> int:
        """Return the first offset published at *time_ms* (Unix milliseconds) or later; the end if there is none."""
        if not self._file.is_open:
            self._entry_at(self._file.entries - 1)  # loads the last time, below which none after it may fall
        self._begin_at(self._file.last_ms)
        entry = bisect_left(range(len(self)), time_ms, key=lambda entry: self._entry(entry)[2])
        return self.end if entry == len(self) else max(self.start, self._offset(entry))

    def spill(self) -> Spill | None:
        """Return what the file lacks, or may drop, if anything; call `filed` once it is written."""
        filed = self._file.entries
        may_renew = self._may_renew and filed >= RENEWED_ENTRIES_MIN
        if self.is_damaged or not (self._tail or may_renew):
            return None
        return Spill(filed, bytes(self._tail), self.start if may_renew else 0)

    def write(self, spill: Spill) -> IndexFile:
        """Add *spill* to the file, durably, and return it for `filed`. A worker's job.

        Call `install` once a checkpoint refers to it. Raises StorageFailed, IndexDamaged.
        """
        file = self._file
        file.open()
        spill = spill._replace(data=_no_earlier(spill.data, file.last_ms))
        if spill.start:
            # Keep the entry that contains the start, or else the last one: an empty file could not be opened.
            unneeded = max(file.first_at(spill.start + 1) - 1, 0)
            if unneeded >= RENEWED_ENTRIES_MIN and 2 * unneeded > spill.first:
                return renew(self._path, spill, file, unneeded)
        return write(self._path, spill, file)

    def install(self, spill: Spill, file: IndexFile) -> None:
        """Put a renewed *file* in place, once a durable checkpoint refers to it. A worker's job. Raises
        StorageFailed.
        """
        if file.entries < spill.end:
            install(self._path)

    @property
    def mark(self) -> IndexFileEntry | None:
        """A checkpoint's entry for the file when there is nothing to add to it."""
        return None if self.is_damaged else self._file.mark

    def filed(self, spill: Spill, file: IndexFile) -> None:
        """Drop *spill* from the tail, since it is durable in *file*."""
        if self.is_damaged:
            return  # found meanwhile: the entries stay in memory until those before them are rebuilt
        left_out = spill.end - file.entries
        self._file = file
        del self._tail[: len(spill.data)]
        self._begin_at(file.last_ms)
        self._last_read = max(self._last_read - left_out, 0)
        if self.start == spill.start:
            self._may_renew = False  # until the start moves again

    # -- damage -----------------------------------------------------------------------------------------------

    def rebuilding(self) -> "tuple[PartitionIndex, int]":
        """Return an empty index for republishing what the file should hold, and the offset where that ends."""
        fresh = PartitionIndex(self._path)
        end = int(_FIRST.unpack_from(self._tail)[0]) if self._tail else self.end
        fresh.start = fresh.end = min(self.start, end)
        return fresh, end

    def rebuilt(self, fresh: "PartitionIndex") -> None:
        """Install the entries of *fresh*; they stay in memory until a checkpoint rewrites the file."""
        self._begin_at(fresh._time_ms)
        self._tail[:0] = fresh._tail
        self._file, self.is_damaged, self._last_read, self._last_offset = EMPTY, False, 0, -1

    def _entry_at(self, entry: int) -> "tuple[EntryBuffer, int]":
        """Return buffer and position of an entry. Raises IndexDamaged, IndexCold."""
        file = self._file
        if entry >= file.entries:
            return self._tail, (entry - file.entries) * ENTRY_BYTES
        try:
            return file.at(entry)
        except IndexDamaged:
            self.damaged()
            raise

    def _begin_at(self, time_ms: int) -> None:
        """Raise the tail's times to at least *time_ms*, the last one before it, which may not have been known."""
        self._time_ms = max(self._time_ms, time_ms)
        if self._tail and _TIME.unpack_from(self._tail, _TIME_AT)[0] < time_ms:
            self._tail[:] = _no_earlier(self._tail, time_ms)

    def damaged(self) -> None:
        if self._file.is_lost:
            self._file, self._last_read, self._last_offset = IndexFile.lost(self._path.name), 0, -1
        if not self.is_damaged:
            self.is_damaged = True
            self._on_damaged()

    def _find(self, offset: int) -> int:
        hint = self._last_read
        if offset == self._last_offset and hint < len(self) and self._offset(hint) == offset:
            return hint
        if self._tail and _FIRST.unpack_from(self._tail)[0] <= offset:
            with offsets_of(self._tail) as offsets:  # released: a bytearray can't grow meanwhile
                return self._file.entries + bisect_right(offsets, offset) - 1
        try:
            return self._file.last_at(offset)
        except IndexDamaged:
            self.damaged()
            raise

    def _run_at(self, offset: int) -> int:
        """Return the entry of the run that holds *offset*, or precedes its gap; before all of them, the first."""
        return max(self._find(offset), 0)

    def _offset(self, entry: int) -> int:
        return int(_FIRST.unpack_from(*self._entry_at(entry))[0])

    def _entry(self, entry: int) -> tuple[int, int, int, int, int]:
        return ENTRY.unpack_from(*self._entry_at(entry))


def _no_earlier(entries: EntryBuffer, time_ms: int) -> bytes:
    """Return *entries*, whose times ascend, with every time at least *time_ms*."""
    if not entries or _TIME.unpack_from(entries, _TIME_AT)[0] >= time_ms:
        return bytes(entries)
    raised = bytearray(entries)
    for at in range(_TIME_AT, len(raised), ENTRY_BYTES):
        if _TIME.unpack_from(raised, at)[0] >= time_ms:
            break
        _TIME.pack_into(raised, at, time_ms)
    return bytes(raised)
