"""Layout of a partition's index file: its names, entries, chunks and seals.

chunk n, 16 KiB:  entry 511 n, ... entry 511 n + 510 (32 bytes each), seal (32 bytes: CRC-32, n, zeros)
"""

import hashlib
import struct
import urllib.parse
from pathlib import Path
from typing import NamedTuple

from journal.checksum import crc32
from journal.records.record import PartitionName
from journal.wal.storage_file import Buffer, translated

ENTRY_BYTES = 32
CHUNK_BYTES = 16 * 1024  # small: verifying one costs a reader microseconds
CHUNK_ENTRIES = CHUNK_BYTES // ENTRY_BYTES - 1
SEAL = struct.Struct("<IxxxxQ16x")
assert SEAL.size == ENTRY_BYTES
_WORDS = ENTRY_BYTES // 8
ENTRY = struct.Struct("<QQQII")  # first offset, LSN, milliseconds, bytes, messages
assert ENTRY.size == ENTRY_BYTES
_QUOTED_MAX = 200  # of a topic in a file's name: file systems take 255 bytes
RENEWED_SUFFIX = ".new"  # of a renewed file, until a checkpoint refers to it


def file_name(name: PartitionName) -> str:
    """Return the name of a partition's index file, which is unique.

    A long topic's quoted form is cut and its digest added.
    """
    topic = urllib.parse.quote(name.topic, safe="")
    if len(topic) > _QUOTED_MAX:
        digest = hashlib.blake2b(name.topic.encode(), digest_size=16).hexdigest()
        topic = f"{topic[:100]}={digest}"  # quoting leaves no equals sign
    return f"{topic}-{name.partition}.index"


class Spill(NamedTuple):
    """Entries *data* that a checkpoint adds to the file, from number *first* on. *first* 0: the file is written from
    scratch.

    *start*: entries below this offset may be left out if they are most of the file; 0: skip that check.
    """

    first: int
    data: bytes
    start: int = 0

    @property
    def end(self) -> int:
        """Number of entries with this spill, unless the file is renewed."""
        return self.first + len(self.data) // ENTRY_BYTES

    @property
    def last_ms(self) -> int:
        """Time of the last entry."""
        return int(ENTRY.unpack(self.data[-ENTRY_BYTES:])[2])


def offsets_of(entries: Buffer) -> memoryview:
    """Return the first offset of every entry."""
    return memoryview(entries).cast("B").cast("Q")[::_WORDS]


def lsns_of(entries: Buffer) -> memoryview:
    return memoryview(entries).cast("B").cast("Q")[1::_WORDS]


def messages_in(entries: Buffer) -> int:
    return sum(memoryview(entries).cast("B").cast("I")[7::8])


def seed(name: str, chunk: int) -> int:
    """Return a chunk's initial checksum, which rejects chunks of other files or positions."""
    return crc32(b"%s %d" % (name.encode(), chunk))


def position(entries: int) -> int:
    """Return the position of entry number *entries*, counting seals."""
    return (entries + entries // CHUNK_ENTRIES) * ENTRY_BYTES


def install(path: Path) -> None:
    """Rename the renewed file to *path*, once a checkpoint refers to it. A worker's job.

    Not durable on return: a start finds it under either name. Raises StorageFailed.
    """
    with translated(path):
        renewed(path).rename(path)


def renewed(path: Path) -> Path:
    return path.with_name(path.name + RENEWED_SUFFIX)
