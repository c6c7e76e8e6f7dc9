"""File of a partition's index: what a checkpoint covers, in chunks sealed one by one (index_layout.py).

Only the last chunk may be open: it has no seal yet, and the checkpoint holds its checksum. A start reads none: a file
is opened on first use, and its last chunk must match the checkpoint. Every other chunk is verified when it is read: no
offset or byte of a damaged chunk reaches a client. Written chunks never change.

Chunks are read by system call, never through a mapping: an unreadable sector is an error, not a signal that ends the
process. The event loop reads what the page cache has; for the rest it gets IndexCold, and has a worker read it.

A file that holds mostly entries dropped by retention is renewed without them. The new file stands beside the old one,
under another name, until a checkpoint refers to it: a start finds the one or the other.
"""

import errno
import logging
import os
import stat
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from journal.checksum import crc32
from journal.errors import StorageFailed
from journal.state.checkpoint import IndexFileEntry
from journal.wal.open_file import OpenFile
from journal.wal.storage_file import FileReader
from meta_broker.store import index_layout
from meta_broker.store.index_layout import (
    ENTRY,
    ENTRY_BYTES,
    RENEWED_SUFFIX,
    SEAL,
    install,
    lsns_of,
    messages_in,
    offsets_of,
    position,
    renewed,
    seed,
)

log = logging.getLogger(__name__)
CACHED_CHUNKS_MAX: Final = 1024  # of all files together: 16 MiB
COUNTED_CHUNKS_MAX = 8192  # in one call: a fraction of a millisecond
COUNTED_READS_MAX = 64  # of these, read: a millisecond or two

# Every chunk in memory, oldest first: its file's chunks, and its number. No reference to the file, which would keep
# an unneeded descriptor open.
_cached: deque[tuple[dict[int, bytes], int]] = deque()


class IndexDamaged(Exception):
    """The index file is damaged, and not rebuilt yet."""


class IndexCold(Exception):
    """Something is not in memory: have a worker call `run`, then ask again."""

    def __init__(self, load: Callable[[], None]) -> None:
        super().__init__()
        self._load = load

    def run(self) -> bytes:
        """Load it for the next caller. Blocks on the disk; any thread. Raises StorageFailed."""
        self._load()
        return b""


class _Unopened(NamedTuple):
    """A file not opened yet: its path, and the offset where its last entry must end."""

    path: Path
    end: int


class IndexFile:
    """The first *entries* of an index; *crc* is that of the last chunk, *last_ms* the time of the last entry.

    Any thread, except `at` and `last_at`: loop thread.
    """

    __slots__ = (
        "_chunks",
        "_damaged",
        "_file",
        "_firsts",
        "_lowest",
        "_messages",
        "_name",
        "_opening",
        "_unopened",
        "crc",
        "entries",
        "last_ms",
    )

    def __init__(
        self, name: str = "", file: FileReader | None = None, entries: int = 0, crc: int = 0, last_ms: int = 0
    ) -> None:
        self._name = name
        self._file = file
        self._unopened: _Unopened | None = None
        self._opening = threading.Lock()
        self.entries = entries
        self.crc = crc
        self.last_ms = last_ms  # once it is open
        self._chunks: dict[int, bytes] = {}  # those in memory, by number
        self._damaged: dict[int, str] = {}  # damaged chunks, and why
        self._firsts = array("Q", bytes(8 * self.chunks))  # offset of each chunk; 0: unknown
        self._lowest = array("Q", bytes(8 * self.chunks))  # LSN of each chunk; 0: unknown
        self._messages = array("Q", bytes(8 * self.chunks))  # of each chunk, once they were counted; 0: unknown

    @classmethod
    def unopened(cls, path: Path, entry: IndexFileEntry, end: int) -> "IndexFile | None":
        """Return the file at *path* that *entry* describes, whose entries end at offset *end*; None: none has its size.
        Checks only that; the first read opens it."""
        size = position(entry.entries)
        if not entry.entries or not any(_holds(place, size) for place in (str(path), str(path) + RENEWED_SUFFIX)):
            return None
        file = cls(path.name, None, entry.entries, entry.crc)
        file._unopened = _Unopened(path, end)
        return file

    @classmethod
    def lost(cls, name: str) -> "IndexFile":
        """Return a stand-in for a lost file: one unreadable entry before those published next. A bisect reads it only
        when it looks for something the file held."""
        return cls(name, None, 1)

    def open(self) -> None:
        """Open the file, unless it is open; it is lost if it does not match the checkpoint's entry. Blocks on the
        disk.

        A renewed file that matches takes its place. Raises IndexDamaged, StorageFailed.
        """
        if self._unopened is not None:
            self._open()
        if self.is_lost:
            raise IndexDamaged(self._damaged.get(self.chunks - 1, f"{self._name}: lost or damaged"))

    def _open(self) -> None:
        with self._opening:
            if (unopened := self._unopened) is not None:  # else another thread opened it meanwhile
                path, end = unopened
                for place in (path, renewed(path)):
                    if (file := _opened(place, position(self.entries))) is None:
                        continue
                    try:
                        last = self._read(file, self.chunks - 1)[-ENTRY_BYTES:]
                    except IndexDamaged as error:
                        self._damaged[self.chunks - 1] = str(error)
                        continue
                    offset, _, time_ms, run_bytes, _ = ENTRY.unpack(last)
                    if offset + run_bytes == end:
                        if place != path:
                            install(path)
                        self._damaged.clear()
                        self.last_ms, self._file = time_ms, file  # in this order: other threads check _file
                        break
                self._unopened = None

    @property
    def is_open(self) -> bool:
        """True if it can be read, as far as is known. Always true without entries."""
        return self._file is not None or not self.entries

    @property
    def is_lost(self) -> bool:
        """True if it was found missing, or damaged at its end."""
        return self._unopened is None and not self.is_open

    @property
    def chunks(self) -> int:
        return -(-self.entries // index_layout.CHUNK_ENTRIES)

    @property
    def mark(self) -> IndexFileEntry:
        return IndexFileEntry(entries=self.entries, crc=self.crc)

    def at(self, entry: int) -> "tuple[bytes, int]":
        """Return buffer and position of an entry. Never waits for the disk. Raises IndexDamaged, IndexCold."""
        chunk = entry // index_layout.CHUNK_ENTRIES
        if (content := self._chunks.get(chunk)) is None:
            content = self._load_cached(chunk)
        return content, (entry - chunk * index_layout.CHUNK_ENTRIES) * ENTRY_BYTES

    def last_at(self, offset: int) -> int:
        """Return the number of the last entry at or below *offset*, -1 for none, with one chunk once it knows where the
        others begin. Never waits for the disk. Raises IndexDamaged, IndexCold."""
        chunk = bisect_right(range(self.chunks), offset, key=self._first_of) - 1
        if chunk < 0:
            return -1
        first = chunk * index_layout.CHUNK_ENTRIES
        return first + bisect_right(offsets_of(self.at(first)[0]), offset) - 1

    def _first_of(self, chunk: int) -> int:
        if not self._firsts[chunk]:
            self._firsts[chunk] = offsets_of(self.at(chunk * index_layout.CHUNK_ENTRIES)[0])[0]
        return self._firsts[chunk]

    def load(self, chunks: Iterable[int]) -> None:
        """Read *chunks* into memory; where one is damaged, `at` raises from now on. Blocks on the disk."""
        for chunk in chunks:
            if chunk in self._chunks:
                continue
            try:
                self._keep(chunk, self.read(chunk))
            except IndexDamaged as error:
                self._damaged[chunk] = str(error)

    def read(self, chunk: int) -> bytes:
        """Return the verified entries of a chunk. Blocks on the disk. Raises IndexDamaged, and what `open` raises."""
        self.open()
        assert self._file is not None
        return self._read(self._file, chunk)

    def _read(self, file: FileReader, chunk: int) -> bytes:
        start = chunk * index_layout.CHUNK_BYTES
        count = min(self.entries - chunk * index_layout.CHUNK_ENTRIES, index_layout.CHUNK_ENTRIES)
        size = count * ENTRY_BYTES
        is_sealed = count == index_layout.CHUNK_ENTRIES
        try:
            content = file.read(start, index_layout.CHUNK_BYTES if is_sealed else size)
        except StorageFailed as error:  # a sector that cannot be read, or a file that was cut
            raise IndexDamaged(f"{self._name}: chunk {chunk} at byte {start} cannot be read: {error}") from error
        crc = crc32(memoryview(content)[:size], seed(self._name, chunk))
        is_whole = not is_sealed or content[size:] == SEAL.pack(crc, chunk)
        if chunk == self.chunks - 1:  # sealed or not: this identifies the file
            is_whole = is_whole and crc == self.crc
        if not is_whole:
            raise IndexDamaged(f"{self._name}: chunk {chunk} at byte {start} is damaged")
        return content[:size]

    def blocks(self, first: int) -> Iterator[memoryview]:
        """Yield the entries from *first* on, chunk by chunk. Blocks on the disk. Raises IndexDamaged."""
        for chunk in range(first // index_layout.CHUNK_ENTRIES, self.chunks):
            yield memoryview(self.read(chunk))[max(first - chunk * index_layout.CHUNK_ENTRIES, 0) * ENTRY_BYTES :]

    def lowest(self, chunk: int) -> int:
        """Return the lowest LSN in *chunk*. The first call reads the chunk and blocks. Raises IndexDamaged."""
        if not self._lowest[chunk]:
            self._lowest[chunk] = min(lsns_of(self.read(chunk)))
        return self._lowest[chunk]

    def counted(self, entry: int) -> tuple[int, int]:
        """Return how many messages the entries from *entry* on have, and the first entry that is not counted yet: a
        call reads a few chunks that no call has counted.

        Never waits for the disk. Raises IndexDamaged, IndexCold.
        """
        chunk, first = divmod(entry, index_layout.CHUNK_ENTRIES)
        messages, reads, end = 0, 0, min(self.chunks, chunk + COUNTED_CHUNKS_MAX)
        while chunk < end and reads < COUNTED_READS_MAX:
            if first or not (known := self._messages[chunk]):
                try:
                    content, at = self.at(chunk * index_layout.CHUNK_ENTRIES + first)
                except IndexCold:
                    # All that the next call reads, and the one it ends in front of: a request loads chunks once.
                    loaded = range(chunk, min(self.chunks, chunk + COUNTED_READS_MAX + 1))
                    raise IndexCold(partial(self.load, loaded)) from None
                known, reads = messages_in(memoryview(content)[at:]), reads + 1
                if not first:
                    self._messages[chunk] = known
            messages, chunk, first = messages + known, chunk + 1, 0
        return messages, min(chunk * index_layout.CHUNK_ENTRIES, self.entries)

    def first_at(self, offset: int) -> int:
        """Return the number of the first entry at or above *offset*. Blocks on the disk. Raises IndexDamaged."""
        last = bisect_left(range(self.chunks), offset, key=lambda chunk: offsets_of(self.read(chunk))[0])
        if not last:
            return 0
        return (last - 1) * index_layout.CHUNK_ENTRIES + bisect_left(offsets_of(self.read(last - 1)), offset)

    def inherit(self, before: "IndexFile") -> None:
        """Take over what *before*, which this file extends, knows of its sealed chunks."""
        known = before.entries // index_layout.CHUNK_ENTRIES
        self._firsts[:known] = before._firsts[:known]
        self._lowest[:known] = before._lowest[:known]
        self._messages[:known] = before._messages[:known]

    def _load_cached(self, chunk: int) -> bytes:
        if (reason := self._damaged.get(chunk)) is not None:
            raise IndexDamaged(reason)
        if self._unopened is not None:
            raise IndexCold(partial(self.load, [chunk]))
        start, file = chunk * index_layout.CHUNK_BYTES, self._file
        end = min(start + index_layout.CHUNK_BYTES, position(self.entries))
        if file is not None and file.read_cached(start, end - start) is None:
            raise IndexCold(partial(self.load, [chunk]))
        try:
            content = self.read(chunk)
        except IndexDamaged as error:
            self._damaged[chunk] = str(error)
            raise
        self._keep(chunk, content)
        return content

    def _keep(self, chunk: int, content: bytes) -> None:
        self._chunks[chunk] = content
        _cached.append((self._chunks, chunk))
        while len(_cached) > CACHED_CHUNKS_MAX:
            chunks, number = _cached.popleft()
            chunks.pop(number, None)


EMPTY: Final = IndexFile()  # of a partition without a file: thousands share it


def _holds(path: str, size: int) -> bool:
    """Return whether *path* is a file of at least *size* bytes. One that cannot be inspected is left to its reader."""
    try:
        status = os.stat(path)  # noqa: PTH116 - thousands at a start, where a Path takes longer
        return stat.S_ISREG(status.st_mode) and status.st_size >= size
    except FileNotFoundError:
        return False
    except OSError as error:
        log.warning("index file not looked at file=%s error=%s", path, error.strerror)
        return False


def _opened(path: Path, size: int) -> OpenFile | None:
    """Open the file as it is on the disk; None: there is none of *size* bytes, or the disk refuses it.

    Raises StorageFailed if file descriptors run out, which is no fault of the file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        file = OpenFile(path, fd, size)  # which closes it
        if not 0 < size <= os.fstat(fd).st_size:
            return None
        # After a failed fsync the page cache holds clean pages that the disk does not: drop them. Dirty pages stay, and
        # need no fsync, which would take seconds for thousands of files: a checkpoint refers to what was fsynced before
        # it, and anything written over that since is identical.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:  # a directory, say, or an error of the disk
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise StorageFailed(f"{path}: {error.strerror}: raise the limit (ulimit -n)") from error
        log.warning("index file not opened file=%s error=%s", path, error.strerror)
        return None
    return file
