"""Writes an index file: appends a spill, or renews the file without entries that retention dropped. A worker's job."""

import itertools
import os
from pathlib import Path

from journal.checksum import crc32
from journal.errors import StorageFailed
from journal.wal.file_move import unshare
from journal.wal.open_file import OpenFile
from journal.wal.storage_file import translated
from meta_broker.store import index_layout
from meta_broker.store.index_file import IndexDamaged, IndexFile
from meta_broker.store.index_layout import ENTRY_BYTES, SEAL, Spill, position, renewed, seed

TEMPORARY_SUFFIX = ".tmp"  # of a file being rewritten; never read


def write(path: Path, spill: Spill, before: IndexFile) -> IndexFile:
    """Append *spill* to the file, which holds *before*; durable on return. A worker's job.

    Returns the new state of the file. The name of a new file is durable once its directory is. Raises IndexDamaged if
    *before* is lost, or was deleted, StorageFailed.
    """
    before.open()
    if not spill.data:
        return before
    data, crc = sealed(path.name, spill.first, spill.data, before.crc)
    is_new = spill.first == 0
    target = path.with_name(path.name + TEMPORARY_SUFFIX) if is_new else path
    try:
        if not is_new:
            unshare(path)
        fd = os.open(target, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_TRUNC if is_new else 0), 0o600)
        file = OpenFile(path, fd, position(spill.end))  # which closes it
        _write_all(fd, data, position(spill.first))
        os.fsync(fd)
        if is_new:
            # Renamed atomically: entries of another numbering must not mix with those an older checkpoint refers to.
            target.rename(path)
    except OSError as error:
        if not is_new and isinstance(error, FileNotFoundError):
            raise IndexDamaged(f"{path}: deleted") from error  # to be rebuilt from the journal
        raise StorageFailed(f"{path}: {error.strerror}") from error
    written = IndexFile(path.name, file, spill.end, crc, spill.last_ms)
    written.inherit(before)
    return written


def renew(path: Path, spill: Spill, before: IndexFile, unneeded: int) -> IndexFile:
    """Write as `write`, to a file without the first *unneeded* entries of *before*; `install` puts it in its place.

    Raises IndexDamaged if a needed part of *before* is damaged, StorageFailed.
    """
    target = path.with_name(path.name + TEMPORARY_SUFFIX)
    entries = crc = 0
    with translated(path):
        fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_TRUNC, 0o600)
        kept = before.entries - unneeded + len(spill.data) // ENTRY_BYTES
        file = OpenFile(path, fd, position(kept))  # which closes it
        for piece in itertools.chain(before.blocks(unneeded), [memoryview(spill.data)]):
            data, crc = sealed(path.name, entries, piece, crc)
            _write_all(fd, data, position(entries))
            entries += len(piece) // ENTRY_BYTES
        os.fsync(fd)
        target.rename(renewed(path))
    return IndexFile(path.name, file, entries, crc, spill.last_ms if spill.data else before.last_ms)


def sealed(name: str, first: int, data: bytes | memoryview, crc: int) -> tuple[bytes, int]:
    """Return entries from number *first* on with the seals between them, and the checksum of the last chunk.

    *crc*: of the last chunk before.
    """
    entries, parts, at, entry = memoryview(data), list[bytes | memoryview](), 0, first
    while at < len(entries):
        chunk, place = divmod(entry, index_layout.CHUNK_ENTRIES)
        if place == 0:
            crc = seed(name, chunk)
        piece = entries[at : at + (index_layout.CHUNK_ENTRIES - place) * ENTRY_BYTES]
        crc = crc32(piece, crc)
        parts.append(piece)
        at += len(piece)
        entry += len(piece) // ENTRY_BYTES
        if entry % index_layout.CHUNK_ENTRIES == 0:
            parts.append(SEAL.pack(crc, chunk))
    return b"".join(parts), crc


def _write_all(fd: int, data: bytes, position: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, position)
        rest, position = rest[written:], position + written
