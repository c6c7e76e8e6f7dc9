"""A block of a key index: the keys in one offset range of a partition, and the offsets of their messages. Pure.

    | magic: 8 bytes | version: u32 | header crc: u32 | start, end: u64 | last: u64 | last id: i64 | table | buckets |

Little-endian. The block covers offsets [start, end); *last* is the offset of its last message, *last id* the id of that
one, which identifies the journal. The table has, for each of 256 buckets, the number of entries and their CRC-32 (u32
each); the header's CRC covers everything after itself up to the buckets. An entry is a u64: CRC-32 of the key in the
upper half, the message's offset less *start* in the lower. Buckets are chosen by the highest byte of the key's CRC;
entries are in ascending order.

A look-up reads the header and one bucket; a false match costs reading a message that has another key.
"""

import struct
import sys
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from journal.checksum import crc32

BUCKETS: Final = 256
SPAN_MAX: Final = 1 << 32  # the lower half of an entry is 32 bits
_MAGIC: Final = b"METAQKEY"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<8sII")
_BODY: Final = struct.Struct(f"<QQQq{2 * BUCKETS}I")
HEADER_BYTES: Final = _HEAD.size + _BODY.size
_ENTRY_BYTES: Final = 8
_BREATH_ENTRIES: Final = 4096  # sorted in a millisecond; then other threads get the interpreter lock
_BREATH_S: Final = 0.0005


class DamagedBlock(Exception):
    """The bytes are not a block, or not the requested one."""


class KeyBlock(NamedTuple):
    """A block in memory."""

    start: int
    end: int
    last: int
    last_id: int
    buckets: list["array[int]"]

    @property
    def entries(self) -> int:
        return sum(map(len, self.buckets))


def new_buckets() -> "list[array[int]]":
    return [array("Q") for _ in range(BUCKETS)]


def joined(first: KeyBlock, second: KeyBlock) -> KeyBlock:
    """Join two neighbouring blocks, entries sorted. Together they must not exceed SPAN_MAX."""
    assert first.end == second.start
    shift = second.start - first.start
    pairs = zip(first.buckets, second.buckets, strict=True)
    buckets = _sorted([*mine, *(entry + shift for entry in others)] for mine, others in pairs)
    return KeyBlock(first.start, second.end, second.last, second.last_id, buckets)


def sorted_block(block: KeyBlock) -> KeyBlock:
    return block._replace(buckets=_sorted(block.buckets))


def encode_block(block: KeyBlock) -> bytes:
    """Encode a block with sorted entries for its file."""
    assert 0 < block.end - block.start <= SPAN_MAX
    stored = [_swapped(bucket).tobytes() for bucket in block.buckets]
    table = [number for each in stored for number in (len(each) // _ENTRY_BYTES, crc32(each))]
    body = _BODY.pack(block.start, block.end, block.last, block.last_id, *table)
    return b"".join([_HEAD.pack(_MAGIC, _VERSION, crc32(body)), body, *stored])


class BlockView:
    """A stored block of *size* bytes; *read* returns bytes by position and length.

    Methods raise DamagedBlock on failed checks, and what *read* raises.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int, start: int, end: int) -> None:
        if size < HEADER_BYTES:
            raise DamagedBlock(f"{size} bytes, a header has {HEADER_BYTES}")
        head = read(0, HEADER_BYTES)
        magic, version, crc = _HEAD.unpack_from(head)
        if (magic, version) != (_MAGIC, _VERSION):
            raise DamagedBlock("not a block of version 1")
        body = head[_HEAD.size :]
        if crc32(body) != crc:
            raise DamagedBlock("header checksum")
        self.start, self.end, self.last, self.last_id, *table = _BODY.unpack(body)
        if (self.start, self.end) != (start, end):
            raise DamagedBlock(f"it covers [{self.start}, {self.end}), its name says [{start}, {end})")
        self._counts, self._crcs = table[::2], table[1::2]
        self.entries = sum(self._counts)
        if size != HEADER_BYTES + _ENTRY_BYTES * self.entries:
            raise DamagedBlock(f"{size} bytes for {self.entries} entries")
        self._read = read

    def block(self) -> KeyBlock:
        """Read the whole block."""
        stored, at, buckets = self._read(HEADER_BYTES, _ENTRY_BYTES * self.entries), 0, []
        for number, count in enumerate(self._counts):
            buckets.append(self._bucket(number, stored[at : at + _ENTRY_BYTES * count]))
            at += _ENTRY_BYTES * count
        return KeyBlock(self.start, self.end, self.last, self.last_id, buckets)

    def offsets(self, key_crc: int, offset: int) -> Iterator[int]:
        """Yield offsets, ascending from *offset* on, of messages whose key may have the CRC *key_crc*."""
        number = key_crc >> 24
        position = HEADER_BYTES + _ENTRY_BYTES * sum(self._counts[:number])
        bucket = self._bucket(number, self._read(position, _ENTRY_BYTES * self._counts[number]))
        at = bisect_left(bucket, key_crc << 32 | max(offset - self.start, 0))
        while at < len(bucket) and bucket[at] >> 32 == key_crc:
            yield self.start + (bucket[at] & SPAN_MAX - 1)
            at += 1

    def _bucket(self, number: int, stored: bytes) -> "array[int]":
        if crc32(stored) != self._crcs[number]:
            raise DamagedBlock(f"checksum of bucket {number}")
        bucket = array("Q")
        bucket.frombytes(stored)
        return _swapped(bucket)


def _sorted(buckets: "Iterable[Sequence[int]]") -> "list[array[int]]":
    """Sort each bucket, pausing regularly to release the interpreter lock."""
    done, breathless = [], 0
    for bucket in buckets:
        done.append(array("Q", sorted(bucket)))
        breathless += len(bucket)
        if breathless >= _BREATH_ENTRIES:
            breathless = 0
            time.sleep(_BREATH_S)
    return done


def _swapped(bucket: "array[int]") -> "array[int]":
    """Convert between the machine's byte order and the file's."""
    if sys.byteorder == "big":
        bucket = bucket[:]
        bucket.byteswap()
    return bucket
