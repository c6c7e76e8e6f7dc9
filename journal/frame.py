"""The header every record begins with: packing, unpacking and judging one. Pure. Drawn in FORMAT.md."""

import struct
from enum import IntEnum
from typing import NamedTuple, NewType

import msgspec

from journal.checksum import crc32

Lsn = NewType("Lsn", int)  # byte position in one broker's journal since its birth
Offset = NewType("Offset", int)  # byte position in one partition since its birth, message frames only

# crc, kind, flags, zero, meta bytes, body bytes, body crc, epoch, incarnation, zero, lsn, durable lsn, ms
_HEADER = struct.Struct("<IBBHIIIIIIQQQ")
_CRC = struct.Struct("<I")
_LENGTHS, _LENGTHS_AT = struct.Struct("<II"), 8
# Of what is bad, what may still become good where more bytes are on their way.
CUT_OFF = "cut off inside a header"
TOO_LONG = "lengths that leave the segment"
HEADER_BYTES = _HEADER.size
ALIGNMENT = 8  # every record starts on it, so that the search for a later record reads words, not bytes
LSN_FIELD = 32  # where a header holds its own LSN
META_BYTES_MAX = 16 * 1024 * 1024  # a COMMIT that touches 400,000 partitions; no honest record comes near

assert HEADER_BYTES == 56
assert HEADER_BYTES % ALIGNMENT == 0


class Kind(IntEnum):
    """What a record says. 0 is no kind: preallocated zeros never decode."""

    PUT = 1
    TX_PUT = 2
    PREPARE = 3
    COMMIT = 4
    ROLLBACK = 5
    HEURISTIC = 6
    FORGET = 7
    TOPIC = 8
    CHECKPOINT = 9
    EPOCH = 10
    CARRY = 11
    PAD = 12
    DECISION = 13
    PUT_BATCH = 14
    LOST = 15
    REFUSED = 16


_KIND_NAMES = {int(kind): kind.name for kind in Kind}


def kind_name(kind: int) -> str:
    """For people: the name of a record kind, or its number when this version knows none."""
    return _KIND_NAMES.get(kind, str(kind))


class Header(msgspec.Struct, frozen=True):
    """One record header, decoded. *lsn* is where the record starts; *durable* was fsynced when it was written."""

    kind: int
    flags: int
    meta_bytes: int
    body_bytes: int
    body_crc: int
    epoch: int
    incarnation: int
    lsn: Lsn
    durable: Lsn
    time_ms: int

    @property
    def life(self) -> tuple[int, int]:
        """Epoch and incarnation: who wrote it. They rise."""
        return self.epoch, self.incarnation

    @property
    def bytes_total(self) -> int:
        return record_bytes(self.meta_bytes, self.body_bytes)

    @property
    def meta_lsn(self) -> Lsn:
        return Lsn(self.lsn + HEADER_BYTES)

    @property
    def body_lsn(self) -> Lsn:
        return Lsn(self.lsn + HEADER_BYTES + self.meta_bytes)

    @property
    def end(self) -> Lsn:
        """The LSN of the record that follows in the same segment: `lsn + bytes_total`, in one step for replay."""
        return Lsn((self.lsn + HEADER_BYTES + self.meta_bytes + self.body_bytes + ALIGNMENT - 1) & -ALIGNMENT)


def lengths(view: memoryview, position: int) -> tuple[int, int]:
    """What a header at *position* says of its meta part and its body; nothing is checked."""
    return _LENGTHS.unpack_from(view, position + _LENGTHS_AT)


def is_intact_header(view: memoryview, position: int) -> bool:
    """Check the checksum of the header at *position* and of the meta part behind it, which *view* holds."""
    meta_bytes, _ = lengths(view, position)
    (crc,) = _CRC.unpack_from(view, position)
    return bool(crc == crc32(view[position + _CRC.size : position + HEADER_BYTES + meta_bytes]))


def record_bytes(meta_bytes: int, body_bytes: int) -> int:
    """Bytes a record takes in the journal, zeros up to the alignment included."""
    return (HEADER_BYTES + meta_bytes + body_bytes + ALIGNMENT - 1) & -ALIGNMENT


def pack(
    kind: int,
    flags: int,
    meta: bytes,
    body_bytes: int,
    body_crc: int,
    epoch: int,
    incarnation: int,
    lsn: int,
    durable: int,
    time_ms: int,
) -> bytes:
    """Header and meta, ready to write. The checksum covers every byte of both after itself."""
    tail = (
        _HEADER.pack(0, kind, flags, 0, len(meta), body_bytes, body_crc, epoch, incarnation, 0, lsn, durable, time_ms)[
            4:
        ]
        + meta
    )
    return _CRC.pack(crc32(tail)) + tail


class Bad(NamedTuple):
    """Why the bytes at a position are no record. *bytes_total*: of the record, if its header is right, else 0."""

    reason: str
    bytes_total: int = 0


def unpack(view: memoryview, position: int, lsn: int, pad_end: int = 0) -> Header | Bad:
    """Judge the bytes at *position* of a segment as a record that must carry *lsn*; the body is checked too.

    *pad_end*: the segment ends there, though *view* may end before it: a PAD is a record without its body.
    Never raises for what it reads: bytes that are no record come back as Bad with the reason.
    """
    if position + HEADER_BYTES > len(view):
        return Bad(CUT_OFF)
    (
        crc,
        kind,
        flags,
        zero_a,
        meta_bytes,
        body_bytes,
        body_crc,
        epoch,
        incarnation,
        zero_b,
        own_lsn,
        durable,
        time_ms,
    ) = _HEADER.unpack_from(view, position)
    if kind == 0 and crc == 0:
        return Bad("no record")
    if own_lsn != lsn:
        return Bad(f"the header names LSN {own_lsn}")
    body = position + HEADER_BYTES + meta_bytes
    if meta_bytes > META_BYTES_MAX or body + body_bytes > (pad_end if pad_end and kind == Kind.PAD else len(view)):
        return Bad(TOO_LONG)
    if crc32(view[position + 4 : body]) != crc:
        return Bad("header checksum")
    # A kind this version does not know passes: a newer metaq's record is whole, and must not be cut as a torn one.
    if kind == 0 or zero_a or zero_b or durable > own_lsn:
        return Bad(f"a header that no metaq writes (kind {kind})")
    # A PAD's body is the untouched rest of its segment: it holds nothing and is never read.
    if kind != Kind.PAD and crc32(view[body : body + body_bytes]) != body_crc:
        return Bad("body checksum", record_bytes(meta_bytes, body_bytes))
    return Header(kind, flags, meta_bytes, body_bytes, body_crc, epoch, incarnation, Lsn(lsn), Lsn(durable), time_ms)
