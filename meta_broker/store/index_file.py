"""The file of a partition's index: what a checkpoint covers, in chunks that are sealed one by one.

    chunk n, 16 KiB:  entry 511 n, ... entry 511 n + 510 (32 bytes each), seal (32 bytes: CRC-32, n, zeros)

Only the last chunk may be open: it has no seal yet, and the checkpoint tells its checksum. So a start reads one chunk
a file however long the partition is, and every other chunk is checked when it is first read: what is damaged
is noticed before anybody is told an offset or a byte that it says. Written chunks never change.

A file that holds mostly what retention has let go of is renewed without that. The new one stands beside the old one,
under a name of its own, until a checkpoint goes by it: a start finds the one or the other.
"""

import errno
import hashlib
import itertools
import mmap
import os
import struct
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from journal.checkpoint import IndexMark
from journal.checksum import crc32
from journal.errors import StorageFailed
from journal.records import PartitionName

ENTRY_BYTES = 32
CHUNK_BYTES = 16 * 1024  # small enough that checking one costs a reader some microseconds
CHUNK_ENTRIES = CHUNK_BYTES // ENTRY_BYTES - 1
_SEAL = struct.Struct("<IxxxxQ16x")
assert _SEAL.size == ENTRY_BYTES
_QUOTED_MAX = 200  # of a topic in a file's name: file systems take 255 bytes
TEMPORARY_SUFFIX = ".tmp"  # of a file that is being written anew; never read
RENEWED_SUFFIX = ".new"  # of a renewed file, until a checkpoint goes by it


class IndexDamaged(Exception):
    """What an index file says cannot be believed. It is being rebuilt: ask again later."""


def file_name(name: PartitionName) -> str:
    """The index file of a partition; no two share one. A long topic's quoted form is cut and its digest added."""
    topic = urllib.parse.quote(name.topic, safe="")
    if len(topic) > _QUOTED_MAX:
        digest = hashlib.blake2b(name.topic.encode(), digest_size=16).hexdigest()
        topic = f"{topic[:100]}={digest}"  # quoting leaves no equals sign
    return f"{topic}-{name.partition}.index"


class Spill(NamedTuple):
    """What a checkpoint adds to the file: entries *data* from number *first* on. *first* 0: the file is made anew.

    *unneeded*: so many of the first entries may be left out of a renewed file; 0: it is not renewed.
    """

    first: int
    data: bytes
    unneeded: int = 0

    @property
    def end(self) -> int:
        """How many entries there are with it, unless the file is renewed."""
        return self.first + len(self.data) // ENTRY_BYTES


class IndexFile:
    """The first *entries* of an index, mapped; *crc* is that of the last chunk. Loop thread, but for `blocks`."""

    __slots__ = ("_is_checked", "_map", "_name", "crc", "entries")

    def __init__(self, name: str = "", filed: bytes | mmap.mmap = b"", entries: int = 0, crc: int = 0) -> None:
        self._name = name
        self._map = filed
        self.entries = entries
        self.crc = crc
        self._is_checked = bytearray(-(-entries // CHUNK_ENTRIES))

    @classmethod
    def open(cls, path: Path, mark: IndexMark) -> "IndexFile | None":
        """The file at *path* as *mark* knows it; None if it is lost, too short, or its last chunk is damaged.

        A renewed file that *mark* is of takes its place. Raises StorageFailed.
        """
        for place in (path, _renewed(path)) if mark.entries else ():
            if (filed := _mapped(place, _position(mark.entries))) is None:
                continue
            file = cls(path.name, filed, mark.entries, mark.crc)
            try:
                file.at(mark.entries - 1)
            except IndexDamaged:
                continue
            if place != path:
                settle(path)
            return file
        return None

    def __len__(self) -> int:
        return self.entries

    @property
    def mark(self) -> IndexMark:
        """What a checkpoint says of it."""
        return IndexMark(entries=self.entries, crc=self.crc)

    def at(self, entry: int) -> "tuple[bytes | mmap.mmap, int]":
        """Buffer and position of an entry. Raises IndexDamaged."""
        chunk = entry // CHUNK_ENTRIES
        if not self._is_checked[chunk]:
            self._chunk(chunk)
            self._is_checked[chunk] = 1
        return self._map, (entry + chunk) * ENTRY_BYTES

    def blocks(self, first: int) -> Iterator[memoryview]:
        """The entries from *first* on, chunk by chunk, each checked before. Any thread. Raises IndexDamaged."""
        for chunk in range(first // CHUNK_ENTRIES, len(self._is_checked)):
            yield self._chunk(chunk)[max(first - chunk * CHUNK_ENTRIES, 0) * ENTRY_BYTES :]

    def _chunk(self, chunk: int) -> memoryview:
        """The entries of a chunk. Raises IndexDamaged unless they are what was written."""
        start = chunk * CHUNK_BYTES
        count = min(self.entries - chunk * CHUNK_ENTRIES, CHUNK_ENTRIES)
        content = memoryview(self._map)[start : start + count * ENTRY_BYTES]
        crc = crc32(content, _seed(self._name, chunk))
        is_whole = True
        if count == CHUNK_ENTRIES:
            is_whole = self._map[start + len(content) : start + CHUNK_BYTES] == _SEAL.pack(crc, chunk)
        if chunk == len(self._is_checked) - 1:  # sealed or not: whose file it is shows there
            is_whole = is_whole and crc == self.crc
        if not is_whole:
            raise IndexDamaged(f"{self._name}: chunk {chunk} at byte {start} is damaged")
        return content


def write(path: Path, spill: Spill, before: IndexFile) -> IndexFile | None:
    """Add *spill* to the file, which holds *before*; durable on return. A worker's job. Raises StorageFailed.

    Returns the file as it is then; None if somebody took it away meanwhile. The name of a new one is durable once
    its directory is.
    """
    data, crc = _sealed(path.name, spill.first, spill.data, before.crc)
    is_new = spill.first == 0
    target = path.with_name(path.name + TEMPORARY_SUFFIX) if is_new else path
    try:
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if is_new else 0), 0o600)
        try:
            _write_all(fd, data, _position(spill.first))
            os.fsync(fd)
        finally:
            os.close(fd)
        if is_new:
            # Under its name at once or not at all: entries of another numbering must not stand among those that an
            # older checkpoint believes in.
            target.rename(path)
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror}") from error
    filed = _mapped(path, _position(spill.end))
    return None if filed is None else IndexFile(path.name, filed, spill.end, crc)


def renew(path: Path, spill: Spill, before: IndexFile) -> IndexFile | None:
    """As write, to a file that begins behind what of *before* is unneeded; `settle` gives it the other's place.

    Raises IndexDamaged if what is needed of *before* is.
    """
    target = path.with_name(path.name + TEMPORARY_SUFFIX)
    entries = crc = 0
    try:
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_TRUNC, 0o600)
        try:
            for piece in itertools.chain(before.blocks(spill.unneeded), [memoryview(spill.data)]):
                data, crc = _sealed(path.name, entries, piece, crc)
                _write_all(fd, data, _position(entries))
                entries += len(piece) // ENTRY_BYTES
            os.fsync(fd)
        finally:
            os.close(fd)
        target.rename(_renewed(path))
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror}") from error
    filed = _mapped(_renewed(path), _position(entries))
    return None if filed is None else IndexFile(path.name, filed, entries, crc)


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


def _mapped(path: Path, size: int) -> mmap.mmap | None:
    """The file, mapped; None if there is none that holds *size* bytes. Raises StorageFailed for want of descriptors,
    of which nothing follows for the file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return mmap.mmap(fd, size, prot=mmap.PROT_READ) if 0 < size <= os.fstat(fd).st_size else None
        finally:
            os.close(fd)
    except OSError as error:  # a directory, say
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise StorageFailed(f"{path}: {error.strerror}: raise the limit (ulimit -n)") from error
        return None
