"""One partition's index: from offset to place in the journal, an entry a run. Derived data.

Entries are 32 bytes, little-endian: offset, LSN of the first frame, milliseconds, bytes, messages. Those up to
the newest checkpoint stand in a file, the tail in memory; a checkpoint names how many entries of the file it
covers and their CRC-32, and what is lost or damaged is rebuilt from the journal.
"""

import hashlib
import mmap
import os
import struct
import urllib.parse
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from journal.checkpoint import IndexMark
from journal.checksum import crc32
from journal.errors import StorageFailed
from journal.fold import Publication
from journal.records import PartitionName

Buffer = bytes | bytearray | memoryview
ENTRY = struct.Struct("<QQQII")
ENTRY_BYTES = ENTRY.size
_FIRST = struct.Struct("<Q")
assert ENTRY_BYTES == 32


_QUOTED_MAX = 200  # of a topic in a file's name: file systems take 255 bytes


def file_name(name: PartitionName) -> str:
    """The index file of a partition; no two share one. A long topic's quoted form is cut and its digest added."""
    topic = urllib.parse.quote(name.topic, safe="")
    if len(topic) > _QUOTED_MAX:
        digest = hashlib.blake2b(name.topic.encode(), digest_size=16).hexdigest()
        topic = f"{topic[:100]}={digest}"  # quoting leaves no equals sign
    return f"{topic}-{name.partition}.index"


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


class Spill(NamedTuple):
    """What a checkpoint adds to an index file: *data* from entry *first* on."""

    first: int
    data: bytes


class PartitionIndex:
    """The published messages of one partition, [start, end). Loop thread only, but for `write`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._filed: bytes | mmap.mmap = b""  # the file, mapped
        self._filed_bytes = 0  # of it, what a checkpoint covers
        self._filed_crc = 0
        self._tail = bytearray()  # published since
        self.start = 0
        self.end = 0  # first offset that is not published: the log end that consumers see
        self._time_ms = 0  # of the last entry
        self.messages = 0  # published since the broker started: what stats counts
        self._last_read = 0  # entry where the last read ended: readers mostly go on from there

    def __len__(self) -> int:
        return (self._filed_bytes + len(self._tail)) // ENTRY_BYTES

    def restore(self, start: int, end: int, mark: IndexMark | None) -> bool:
        """Go back to what a checkpoint knew. False when the file is lost or damaged: the index is then empty."""
        self.start, self.end = start, start
        self._tail.clear()
        self._filed, self._filed_bytes, self._filed_crc, self._time_ms = b"", 0, 0, 0
        if start == end:
            return True
        if mark is None:
            return False
        size = mark.entries * ENTRY_BYTES
        filed = self._map(size)
        if filed is None or crc32(memoryview(filed)[:size]) != mark.crc:
            return False
        offset, _, time_ms, run_bytes, _ = ENTRY.unpack_from(filed, size - ENTRY_BYTES)
        if offset + run_bytes != end:
            return False
        self._filed, self._filed_bytes, self._filed_crc, self.end = filed, size, mark.crc, end
        self._time_ms = time_ms
        return True

    def _map(self, size: int) -> mmap.mmap | None:
        """The file, mapped; None if there is none that holds *size* bytes."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return mmap.mmap(fd, size, prot=mmap.PROT_READ) if 0 < size <= os.fstat(fd).st_size else None
        except OSError:  # a directory, say
            return None
        finally:
            os.close(fd)

    def publish(self, publication: Publication) -> None:
        """Add a run at the end. Publishing what is there already changes nothing."""
        _, base, run = publication
        if base + run.bytes <= self.end:
            return
        assert base == self.end
        # Never earlier than the entry before it, or time could not be bisected: a transaction's messages were put
        # before others that are there already when it commits, and clocks are set back.
        self._time_ms = max(self._time_ms, run.time_ms)
        self._tail += ENTRY.pack(base, run.lsn, self._time_ms, run.bytes, run.messages)
        self.end = base + run.bytes
        self.messages += run.messages

    def trim(self, start: int) -> None:
        """Begin at *start* from here on. Entries below it stay in the file, and nobody reads them."""
        assert start <= self.end
        self.start = max(self.start, start)

    def places(self, offset: int, bytes_max: int) -> Iterator[Place]:
        """Where the bytes [offset, offset + bytes_max) are, cut at the end. *offset* must be in [start, end)."""
        assert self.start <= offset < self.end
        entry = self._find(offset)
        count = len(self)
        while bytes_max > 0 and entry < count:
            base, lsn, _, size, _ = self._entry(entry)
            skip = offset - base
            wanted = min(size - skip, bytes_max)
            yield Place(lsn + skip, wanted)
            bytes_max -= wanted
            offset += wanted
            entry += 1
        self._last_read = entry if entry < count and self._offset(entry) == offset else entry - 1

    def runs(self, offset: int) -> Iterator[StoredRun]:
        """The runs from the one that holds *offset* on; *offset* must be in [start, end)."""
        assert self.start <= offset < self.end
        for entry in range(self._find(offset), len(self)):
            base, lsn, _, size, messages = self._entry(entry)
            yield StoredRun(base, lsn, size, messages)

    def nearest(self, offset: int) -> int:
        """Where reading can begin near *offset*: the start of the run it lies in, or the nearer end (spec 4.9)."""
        if offset < self.start:
            return self.start
        return self.end if offset >= self.end else self._offset(self._find(offset))

    def filed_with(self, spill: Spill | None) -> list[Buffer]:
        """Every entry that a checkpoint with *spill* covers, from the partition's start on; never changes again."""
        skipped = bisect_left(range(len(self)), self.start, key=self._offset) * ENTRY_BYTES
        parts = [memoryview(self._filed)[: self._filed_bytes], memoryview(spill.data if spill else b"")]
        return [parts[0][skipped:], parts[1][max(skipped - self._filed_bytes, 0) :]]

    def at_time(self, time_ms: int) -> int:
        """The first offset of what was published at *time_ms* (Unix milliseconds) or later; the end if nothing was."""
        entry = bisect_left(range(len(self)), time_ms, key=lambda entry: self._entry(entry)[2])
        return self.end if entry == len(self) else max(self.start, self._offset(entry))

    def spill(self) -> Spill | None:
        """What the file lacks, if anything; `filed` says that it was written."""
        if not self._tail:
            return None
        return Spill(self._filed_bytes // ENTRY_BYTES, bytes(self._tail))

    def write(self, spill: Spill) -> None:
        """Add *spill* to the file; durable on return. A worker thread's job. Raises StorageFailed."""
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(fd, spill.data, spill.first * ENTRY_BYTES)
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise StorageFailed(f"{self._path}: {error.strerror}") from error

    def mark_after(self, spill: Spill | None) -> IndexMark:
        """What a checkpoint says of the file once *spill* is in it."""
        data = spill.data if spill else b""
        return IndexMark(entries=(self._filed_bytes + len(data)) // ENTRY_BYTES, crc=crc32(data, self._filed_crc))

    def filed(self, spill: Spill) -> None:
        """*spill* is durable in the file: the tail begins after it."""
        filed = self._map(self._filed_bytes + len(spill.data))
        if filed is None:
            return  # somebody took the file away: the entries stay in memory, and a restart rebuilds it
        self._filed, self._filed_bytes = filed, len(filed)
        self._filed_crc = crc32(spill.data, self._filed_crc)
        del self._tail[: len(spill.data)]

    def _find(self, offset: int) -> int:
        hint = self._last_read
        if hint < len(self) and self._offset(hint) == offset:
            return hint
        return bisect_right(range(len(self)), offset, key=self._offset) - 1

    def _offset(self, entry: int) -> int:
        position = entry * ENTRY_BYTES
        if position < self._filed_bytes:
            return int(_FIRST.unpack_from(self._filed, position)[0])
        return int(_FIRST.unpack_from(self._tail, position - self._filed_bytes)[0])

    def _entry(self, entry: int) -> tuple[int, int, int, int, int]:
        position = entry * ENTRY_BYTES
        if position < self._filed_bytes:
            return ENTRY.unpack_from(self._filed, position)
        return ENTRY.unpack_from(self._tail, position - self._filed_bytes)
