"""The file of a partition's index: what a checkpoint covers, in chunks that are sealed one by one.

    chunk n, 16 KiB:  entry 511 n, ... entry 511 n + 510 (32 bytes each), seal (32 bytes: CRC-32, n, zeros)

Only the last chunk may be open: it has no seal yet, and the checkpoint tells its checksum. A start reads none: a file
is opened when it is first wanted, and its last chunk must be what the checkpoint says before anything of it counts.
Every other chunk is checked when it is read: what is damaged is noticed before anybody is told an offset or a byte that
it says. Written chunks never change.

Chunks are read by system call, never through a mapping: a sector that cannot be read is damage with a name, not a
signal that ends the process. The event loop takes what is in memory; for the rest it gets IndexCold, and has a worker
read it.

A file that holds mostly what retention has let go of is renewed without that. The new one stands beside the old one,
under a name of its own, until a checkpoint goes by it: a start finds the one or the other.
"""

import errno
import hashlib
import itertools
import logging
import os
import stat
import struct
import threading
import urllib.parse
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from journal.checkpoint import IndexMark
from journal.checksum import crc32
from journal.errors import StorageFailed
from journal.open_file import OpenFile
from journal.records import PartitionName
from journal.storage import Buffer

log = logging.getLogger(__name__)

ENTRY_BYTES = 32
CHUNK_BYTES = 16 * 1024  # small enough that checking one costs a reader some microseconds
CHUNK_ENTRIES = CHUNK_BYTES // ENTRY_BYTES - 1
_SEAL = struct.Struct("<IxxxxQ16x")
assert _SEAL.size == ENTRY_BYTES
_WORDS = ENTRY_BYTES // 8
ENTRY = struct.Struct("<QQQII")  # first offset, LSN, milliseconds, bytes, messages
assert ENTRY.size == ENTRY_BYTES
_QUOTED_MAX = 200  # of a topic in a file's name: file systems take 255 bytes
TEMPORARY_SUFFIX = ".tmp"  # of a file that is being written anew; never read
RENEWED_SUFFIX = ".new"  # of a renewed file, until a checkpoint goes by it
CACHED_CHUNKS_MAX: Final = 1024  # of all files together: 16 MiB

# Every chunk in memory, the one read first in front: its file's chunks, and its number. It names no file, which would
# keep a descriptor open that nobody needs any more.
_cached: deque[tuple[dict[int, bytes], int]] = deque()


class IndexDamaged(Exception):
    """What an index file says cannot be believed. It is being rebuilt: ask again later."""


class IndexCold(Exception):
    """A chunk that is not in memory: have a worker call `run`, then ask again."""

    def __init__(self, file: "IndexFile", chunk: int) -> None:
        super().__init__(chunk)
        self._file = file
        self._chunk = chunk

    def run(self) -> bytes:
        """Read the chunk, for who asks next. Blocks on the disk; any thread."""
        self._file.load(self._chunk)
        return b""


def file_name(name: PartitionName) -> str:
    """The index file of a partition; no two share one. A long topic's quoted form is cut and its digest added."""
    topic = urllib.parse.quote(name.topic, safe="")
    if len(topic) > _QUOTED_MAX:
        digest = hashlib.blake2b(name.topic.encode(), digest_size=16).hexdigest()
        topic = f"{topic[:100]}={digest}"  # quoting leaves no equals sign
    return f"{topic}-{name.partition}.index"


class Spill(NamedTuple):
    """What a checkpoint adds to the file: entries *data* from number *first* on. *first* 0: the file is made anew.

    *start*: entries below this offset may be left out, if they are most of the file; 0: nobody has to look.
    """

    first: int
    data: bytes
    start: int = 0

    @property
    def end(self) -> int:
        """How many entries there are with it, unless the file is renewed."""
        return self.first + len(self.data) // ENTRY_BYTES

    @property
    def last_ms(self) -> int:
        """The time of its last entry."""
        return int(ENTRY.unpack(self.data[-ENTRY_BYTES:])[2])


class _Unopened(NamedTuple):
    """A file that nobody has looked into: its place, and the offset where its last entry must end."""

    path: Path
    end: int


class IndexFile:
    """The first *entries* of an index; *crc* is that of the last chunk, *last_ms* the time of the last entry.

    Any thread, but for `at`: loop thread.
    """

    __slots__ = (
        "_chunks",
        "_damaged",
        "_file",
        "_lowest",
        "_name",
        "_opening",
        "_unopened",
        "crc",
        "entries",
        "last_ms",
    )

    def __init__(
        self, name: str = "", file: OpenFile | None = None, entries: int = 0, crc: int = 0, last_ms: int = 0
    ) -> None:
        self._name = name
        self._file = file
        self._unopened: _Unopened | None = None
        self._opening = threading.Lock()
        self.entries = entries
        self.crc = crc
        self.last_ms = last_ms  # once it is open
        self._chunks: dict[int, bytes] = {}  # those in memory, by number
        self._damaged: dict[int, str] = {}  # those that do not read back, and why
        self._lowest = array("Q", bytes(8 * self.chunks))  # LSN of each chunk; 0: nobody has looked

    @classmethod
    def unopened(cls, path: Path, mark: IndexMark, end: int) -> "IndexFile | None":
        """The file at *path* as *mark* knows it, whose entries end at offset *end*; None if there is none of its size.

        Looks at its size only: what reads of it opens it.
        """
        size = _position(mark.entries)
        if not mark.entries or not any(_holds(place, size) for place in (str(path), str(path) + RENEWED_SUFFIX)):
            return None
        file = cls(path.name, None, mark.entries, mark.crc)
        file._unopened = _Unopened(path, end)
        return file

    @classmethod
    def lost(cls, name: str) -> "IndexFile":
        """Stands for a file that is lost: one entry, which nobody can read, in front of what is published next.

        A bisect asks for it when it looks for something that the file held, and only then.
        """
        return cls(name, None, 1)

    def open(self) -> None:
        """Open it, unless it is open: it is lost if it is not what the checkpoint's mark says. Blocks on the disk.

        A renewed file that the mark is of takes its place. Raises IndexDamaged, StorageFailed.
        """
        if self._unopened is not None:
            self._open()
        if self.is_lost:
            raise IndexDamaged(self._damaged.get(self.chunks - 1, f"{self._name}: lost or damaged"))

    def _open(self) -> None:
        with self._opening:
            if (unopened := self._unopened) is not None:
                path, end = unopened
                for place in (path, _renewed(path)):
                    if (file := _opened(place, _position(self.entries))) is None:
                        continue
                    try:
                        last = self._read(file, self.chunks - 1)[-ENTRY_BYTES:]
                    except IndexDamaged as error:
                        self._damaged[self.chunks - 1] = str(error)
                        continue
                    offset, _, time_ms, run_bytes, _ = ENTRY.unpack(last)
                    if offset + run_bytes == end:
                        if place != path:
                            settle(path)
                        self._damaged.clear()
                        self.last_ms, self._file = time_ms, file  # in this order: another thread goes by the file
                        break
                self._unopened = None

    def __len__(self) -> int:
        return self.entries

    @property
    def is_open(self) -> bool:
        """Whether it can be read, as far as is known. One without entries can."""
        return self._file is not None or not self.entries

    @property
    def is_lost(self) -> bool:
        """Whether it was found lost, or damaged at its end."""
        return self._unopened is None and not self.is_open

    @property
    def chunks(self) -> int:
        """How many there are."""
        return -(-self.entries // CHUNK_ENTRIES)

    @property
    def mark(self) -> IndexMark:
        """What a checkpoint says of it."""
        return IndexMark(entries=self.entries, crc=self.crc)

    def at(self, entry: int) -> "tuple[bytes, int]":
        """Buffer and position of an entry. Never waits for the disk. Raises IndexDamaged, IndexCold."""
        chunk = entry // CHUNK_ENTRIES
        if (content := self._chunks.get(chunk)) is None:
            content = self._load_cached(chunk)
        return content, (entry - chunk * CHUNK_ENTRIES) * ENTRY_BYTES

    def load(self, chunk: int) -> None:
        """Read *chunk* into memory. Should it be damaged, `at` says so from here on. Blocks on the disk."""
        try:
            self._keep(chunk, self.read(chunk))
        except IndexDamaged as error:
            self._damaged[chunk] = str(error)

    def read(self, chunk: int) -> bytes:
        """The entries of a chunk. Blocks on the disk. Raises IndexDamaged unless they are what was written; and what
        `open` raises."""
        self.open()
        assert self._file is not None
        return self._read(self._file, chunk)

    def _read(self, file: OpenFile, chunk: int) -> bytes:
        start = chunk * CHUNK_BYTES
        count = min(self.entries - chunk * CHUNK_ENTRIES, CHUNK_ENTRIES)
        size = count * ENTRY_BYTES
        is_sealed = count == CHUNK_ENTRIES
        try:
            content = file.read(start, CHUNK_BYTES if is_sealed else size)
        except StorageFailed as error:  # a sector that cannot be read, or a file that was cut
            raise IndexDamaged(f"{self._name}: chunk {chunk} at byte {start} cannot be read: {error}") from error
        crc = crc32(memoryview(content)[:size], _seed(self._name, chunk))
        is_whole = not is_sealed or content[size:] == _SEAL.pack(crc, chunk)
        if chunk == self.chunks - 1:  # sealed or not: whose file it is shows there
            is_whole = is_whole and crc == self.crc
        if not is_whole:
            raise IndexDamaged(f"{self._name}: chunk {chunk} at byte {start} is damaged")
        return content[:size]

    def blocks(self, first: int) -> Iterator[memoryview]:
        """The entries from *first* on, chunk by chunk. Blocks on the disk. Raises IndexDamaged."""
        for chunk in range(first // CHUNK_ENTRIES, self.chunks):
            yield memoryview(self.read(chunk))[max(first - chunk * CHUNK_ENTRIES, 0) * ENTRY_BYTES :]

    def lowest(self, chunk: int) -> int:
        """The lowest LSN that an entry of *chunk* points at. Reads it the first time; blocks. Raises IndexDamaged."""
        if not self._lowest[chunk]:
            self._lowest[chunk] = min(lsns_of(self.read(chunk)))
        return self._lowest[chunk]

    def first_at(self, offset: int) -> int:
        """The number of the first entry at or above *offset*. Blocks on the disk. Raises IndexDamaged."""
        last = bisect_left(range(self.chunks), offset, key=lambda chunk: offsets_of(self.read(chunk))[0])
        if not last:
            return 0
        return (last - 1) * CHUNK_ENTRIES + bisect_left(offsets_of(self.read(last - 1)), offset)

    def inherit(self, before: "IndexFile") -> None:
        """This is *before*, and more: what is known of its sealed chunks holds."""
        known = before.entries // CHUNK_ENTRIES
        self._lowest[:known] = before._lowest[:known]

    def _load_cached(self, chunk: int) -> bytes:
        if (reason := self._damaged.get(chunk)) is not None:
            raise IndexDamaged(reason)
        if self._unopened is not None:
            raise IndexCold(self, chunk)
        start, file = chunk * CHUNK_BYTES, self._file
        end = min(start + CHUNK_BYTES, _position(self.entries))
        if file is not None and file.read_cached(start, end - start) is None:
            raise IndexCold(self, chunk)
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


def offsets_of(entries: Buffer) -> memoryview:
    """The first offset of every entry."""
    return memoryview(entries).cast("B").cast("Q")[::_WORDS]


def lsns_of(entries: Buffer) -> memoryview:
    """The LSN of every entry."""
    return memoryview(entries).cast("B").cast("Q")[1::_WORDS]


def write(path: Path, spill: Spill, before: IndexFile) -> IndexFile:
    """Add *spill* to the file, which holds *before*; durable on return. A worker's job. Raises StorageFailed.

    Returns the file as it is then. The name of a new one is durable once its directory is. Raises IndexDamaged if
    *before* is found lost.
    """
    before.open()
    if not spill.data:
        return before
    data, crc = _sealed(path.name, spill.first, spill.data, before.crc)
    is_new = spill.first == 0
    target = path.with_name(path.name + TEMPORARY_SUFFIX) if is_new else path
    try:
        fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if is_new else 0), 0o600)
        file = OpenFile(path, fd, _position(spill.end))  # which closes it
        _write_all(fd, data, _position(spill.first))
        os.fsync(fd)
        if is_new:
            # Under its name at once or not at all: entries of another numbering must not stand among those that an
            # older checkpoint believes in.
            target.rename(path)
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror}") from error
    written = IndexFile(path.name, file, spill.end, crc, spill.last_ms)
    written.inherit(before)
    return written


def renew(path: Path, spill: Spill, before: IndexFile, unneeded: int) -> IndexFile:
    """As write, to a file without the first *unneeded* entries of *before*; `settle` gives it the other's place.

    Raises IndexDamaged if what is needed of *before* is.
    """
    target = path.with_name(path.name + TEMPORARY_SUFFIX)
    entries = crc = 0
    try:
        fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_TRUNC, 0o600)
        kept = before.entries - unneeded + len(spill.data) // ENTRY_BYTES
        file = OpenFile(path, fd, _position(kept))  # which closes it
        for piece in itertools.chain(before.blocks(unneeded), [memoryview(spill.data)]):
            data, crc = _sealed(path.name, entries, piece, crc)
            _write_all(fd, data, _position(entries))
            entries += len(piece) // ENTRY_BYTES
        os.fsync(fd)
        target.rename(_renewed(path))
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror}") from error
    return IndexFile(path.name, file, entries, crc, spill.last_ms if spill.data else before.last_ms)


def settle(path: Path) -> None:
    """A checkpoint goes by the renewed file: it takes the place of the one at *path*. A worker's job.

    Not durable on return, nor need it be: a start finds it under either name. Raises StorageFailed.
    """
    try:
        _renewed(path).rename(path)
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror}") from error


def _renewed(path: Path) -> Path:
    return path.with_name(path.name + RENEWED_SUFFIX)


def _sealed(name: str, first: int, data: bytes | memoryview, crc: int) -> tuple[bytes, int]:
    """Entries from number *first* on with the seals that belong between them, and the checksum of the last chunk then.

    *crc*: of the last chunk before.
    """
    entries, parts, at, entry = memoryview(data), list[bytes | memoryview](), 0, first
    while at < len(entries):
        chunk, place = divmod(entry, CHUNK_ENTRIES)
        if place == 0:
            crc = _seed(name, chunk)
        piece = entries[at : at + (CHUNK_ENTRIES - place) * ENTRY_BYTES]
        crc = crc32(piece, crc)
        parts.append(piece)
        at += len(piece)
        entry += len(piece) // ENTRY_BYTES
        if entry % CHUNK_ENTRIES == 0:
            parts.append(_SEAL.pack(crc, chunk))
    return b"".join(parts), crc


def _seed(name: str, chunk: int) -> int:
    """What a chunk's checksum begins with: a chunk of another file, or from another place, does not pass."""
    return crc32(b"%s %d" % (name.encode(), chunk))


def _position(entries: int) -> int:
    """Where entry number *entries* goes: the bytes that those before it take, seals included."""
    return (entries + entries // CHUNK_ENTRIES) * ENTRY_BYTES


def _write_all(fd: int, data: bytes, position: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, position)
        rest, position = rest[written:], position + written


def _holds(path: str, size: int) -> bool:
    """Whether a file of *size* bytes at least stands at *path*. One that cannot be looked at, its reader judges."""
    try:
        status = os.stat(path)  # noqa: PTH116 - thousands at a start, where a Path takes longer
        return stat.S_ISREG(status.st_mode) and status.st_size >= size
    except FileNotFoundError:
        return False
    except OSError as error:
        log.warning("index file not looked at file=%s error=%s", path, error.strerror)
        return False


def _opened(path: Path, size: int) -> OpenFile | None:
    """The file, as the disk has it; None if there is none that holds *size* bytes, or the disk refuses them.

    Raises StorageFailed for want of descriptors, of which nothing follows for the file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        file = OpenFile(path, fd, size)  # which closes it
        if not 0 < size <= os.fstat(fd).st_size:
            return None
        # After an fsync that failed the page cache has, clean, what the disk has not: read nothing from there. What is
        # dirty stays, and need not be fsynced, which thousands of files would take seconds for: a checkpoint goes by
        # what was fsynced before it, and whatever was written over that since holds the same.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:  # a directory, say, or an error of the disk
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise StorageFailed(f"{path}: {error.strerror}: raise the limit (ulimit -n)") from error
        log.warning("index file not opened file=%s error=%s", path, error.strerror)
        return None
    return file
