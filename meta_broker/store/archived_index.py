"""File of an archived index: the entries that one retention run took out of the partition indexes.

    partition's chunks, as in an index file (index_layout) | next partition's ... | table | trailer

The table is JSON: whose journal, the cut, and each partition's range. The trailer has its length and CRC-32. The file's
name has the SHA-256 of all of it, so that a name never means two contents.
"""

import hashlib
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from journal.archive.manifest import archived_index_name
from journal.checksum import crc32
from journal.errors import InvalidContent
from journal.records.header import Natural
from journal.records.record import PartitionName
from journal.wal.file_move import sync_directory
from journal.wal.open_file import OpenFile
from journal.wal.segments import JournalIdentity
from journal.wal.storage import TMP_SUFFIX
from journal.wal.storage_file import FileReader, translated
from meta_broker.store.index_file import IndexFile
from meta_broker.store.index_layout import ENTRY, ENTRY_BYTES, file_name, offsets_of, position
from meta_broker.store.index_writing import sealed
from meta_broker.store.partition_index import Covered, PartitionIndex

FORMAT: Final = 1
_TRAILER: Final = struct.Struct("<8sQI12x")  # magic, bytes of the table, its CRC-32
_MAGIC: Final = b"METAQAIX"
_TABLE_BYTES_MAX: Final = 64 * 1024 * 1024


class ArchivedRange(msgspec.Struct, frozen=True, array_like=True):
    """A partition in an archived index. [first, end) of it lie in the archive; this file has the entries of [start,
    end), *crc* being that of their last chunk, *last_ms* the time of the last message."""

    topic: str
    partition: int
    first: Natural
    start: Natural
    end: Natural
    last_ms: Natural
    entries: Natural = 0
    crc: Natural = 0

    @property
    def name(self) -> PartitionName:
        return PartitionName(self.topic, self.partition)


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Natural
    cluster: str
    broker: int
    cut: Natural
    partitions: list[ArchivedRange]


def open_file(path: Path) -> OpenFile:
    """Open an index file of the cache. Raises StorageFailed."""
    with translated(path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return OpenFile(path, fd, os.fstat(fd).st_size)


class FileWindow:
    """A part of a file, read as if it were one. Any thread."""

    def __init__(self, file: FileReader, start: int, size: int) -> None:
        self._file = file
        self._start = start
        self.size = size

    def read(self, position: int, size: int) -> bytes:
        return self._file.read(self._start + position, size)

    def read_cached(self, position: int, size: int) -> bytes | bytearray | None:
        return self._file.read_cached(self._start + position, size)


class ArchivedIndexFile:
    """An archived index, open."""

    def __init__(self, path: Path, file: FileReader, table: _Table) -> None:
        self.name = path.name
        self.cut = table.cut
        self.on_damaged: Callable[[], None] = lambda: None  # called once for each partition that does not read back
        self.ranges: dict[PartitionName, ArchivedRange] = {each.name: each for each in table.partitions}
        self._path = path
        self._file = file
        self._positions: dict[PartitionName, int] = {}
        at = 0
        for each in table.partitions:
            self._positions[each.name] = at
            at += position(each.entries)
        self._open: dict[PartitionName, PartitionIndex] = {}

    @classmethod
    def open(cls, path: Path, identity: JournalIdentity) -> "ArchivedIndexFile":
        """Open the file at *path*. Blocks on the disk. Raises InvalidContent, StorageFailed."""
        file = open_file(path)
        if file.size < _TRAILER.size:
            raise InvalidContent(f"{path}: {file.size} bytes are no archived index")
        magic, size, crc = _TRAILER.unpack(file.read(file.size - _TRAILER.size, _TRAILER.size))
        at = file.size - _TRAILER.size - size
        if magic != _MAGIC or size > _TABLE_BYTES_MAX or at < 0:
            raise InvalidContent(f"{path}: no archived index")
        text = file.read(at, size)
        if crc32(text) != crc:
            raise InvalidContent(f"{path}: the table does not match its checksum")
        try:
            table = msgspec.json.decode(text, type=_Table)
        except msgspec.DecodeError as error:
            raise InvalidContent(f"{path}: {error}") from error
        if table.format != FORMAT:
            raise InvalidContent(f"{path}: format {table.format}, this version reads {FORMAT}")
        if (owner := JournalIdentity(table.cluster, table.broker)) != identity:
            raise InvalidContent(f"{path}: belongs to {owner}, not to {identity}")
        if sum(position(each.entries) for each in table.partitions) != at or not all(
            each.first <= each.start <= each.end for each in table.partitions
        ):
            raise InvalidContent(f"{path}: its table contradicts its size, or itself")
        return cls(path, file, table)

    def partition(self, name: PartitionName) -> PartitionIndex:
        """Return the index of the messages [start, end) of *name*, which the file must have."""
        if (index := self._open.get(name)) is None:
            found = self.ranges[name]
            index = PartitionIndex(self._path, lambda: self.on_damaged())
            index.read_archived(self._chunks(found), found.start, found.end)
            self._open[name] = index
        return index

    def covered(self, name: PartitionName) -> Covered:
        """Return the entries of *name*, for a survey."""
        found = self.ranges[name]
        return Covered(found.start, self._chunks(found), b"")

    def _chunks(self, found: ArchivedRange) -> IndexFile:
        window = FileWindow(self._file, self._positions[found.name], position(found.entries))
        return IndexFile(file_name(found.name), window if found.entries else None, found.entries, found.crc)


def write_archived_index(
    directory: Path,
    identity: JournalIdentity,
    cut: int,
    taken: Mapping[PartitionName, tuple[Covered, int]],
    before: Mapping[PartitionName, ArchivedRange],
) -> ArchivedIndexFile:
    """Write the index of what a cut at LSN *cut* takes into *directory*, which is made; durable on return.

    *taken*: of each partition that loses messages the entries, and its new start. *before*: the ranges of the archived
    index before this one. Blocks on the disk. Raises IndexDamaged, StorageFailed.
    """
    temporary, found = directory / f"{cut:020d}{TMP_SUFFIX}", hashlib.sha256()
    ranges: list[ArchivedRange] = []
    with translated(temporary):
        directory.mkdir(mode=0o700, exist_ok=True)
        with temporary.open("wb") as file:

            def write(data: bytes) -> None:
                file.write(data)
                found.update(data)

            for name, (covered, end) in taken.items():
                entries = crc = last_ms = 0
                for block in _entries(covered, end):
                    data, crc = sealed(file_name(name), entries, block, crc)
                    write(data)
                    entries += len(block) // ENTRY_BYTES
                    last_ms = ENTRY.unpack(block[-ENTRY_BYTES:])[2]
                former, start = before.get(name), covered.start
                # Contiguous, or the archive begins again: a deleted topic, or a time without an archive.
                first = former.first if former is not None and former.first <= start <= former.end else start
                ranges.append(ArchivedRange(name.topic, name.partition, first, start, end, last_ms, entries, crc))
            passed_on = (former for name, former in before.items() if name not in taken)
            ranges += [msgspec.structs.replace(each, start=each.end, entries=0, crc=0) for each in passed_on]
            text = msgspec.json.encode(_Table(FORMAT, identity.cluster, identity.broker_id, cut, ranges))
            write(text)
            write(_TRAILER.pack(_MAGIC, len(text), crc32(text)))
            file.flush()
            os.fsync(file.fileno())
        path = directory / archived_index_name(cut, found.hexdigest())
        temporary.rename(path)
        sync_directory(directory)
    return ArchivedIndexFile.open(path, identity)


def _entries(covered: Covered, end: int) -> Iterator[memoryview]:
    """Yield the entries of [start, *end*), in blocks; the first one may begin, or even end, before the start."""
    filed, start = covered.filed, covered.start
    first = max(filed.first_at(start + 1) - 1, 0)
    for block in chain(filed.blocks(first), [memoryview(covered.spilled)]):
        offsets = offsets_of(block)
        low, high = max(bisect_right(offsets, start) - 1, 0), bisect_left(offsets, end)
        if low < high:
            yield block[low * ENTRY_BYTES : high * ENTRY_BYTES]
        if high < len(offsets):
            return
