"""Packs, unpacks and judges the header of a record. Pure. Drawn in FORMAT.md."""

import struct
from enum import IntEnum
from typing import Annotated, NewType

import msgspec

from journal.checksum import crc32

Lsn = NewType("Lsn", int)  # byte position in one broker's journal since its birth
Offset = NewType("Offset", int)  # byte position in one partition since its birth, message frames only
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]  # in files and on links

# crc, kind, flags, zero, meta bytes, body bytes, body crc, epoch, incarnation, zero, lsn, durable lsn, ms
_HEADER = struct.Struct("<IBBHIIIIIIQQQ")
_CRC = struct.Struct("<I")
_LENGTHS, _LENGTHS_AT = struct.Struct("<II"), 8
HEADER_BYTES = _HEADER.size
ALIGNMENT = 8  # every record starts on it, so that the search for a later record reads words, not bytes
LSN_FIELD = 32  # where a header holds its own LSN
META_BYTES_MAX = 16 * 1024 * 1024  # a COMMIT in 400,000 partitions; no real record comes near

assert HEADER_BYTES == 56
assert HEADER_BYTES % ALIGNMENT == 0


class RecordType(IntEnum):
    """Type of a record. 0 is invalid: preallocated zeros never decode."""

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
    LEDGER = 17


_RECORD_TYPE_NAMES = {int(record_type): record_type.name for record_type in RecordType}


def record_type_name(record_type: int) -> str:
    """Return the name of a record type, or its number if this version does not know it."""
    return _RECORD_TYPE_NAMES.get(record_type, str(record_type))


class RecordHeader(msgspec.Struct, frozen=True):
    """One decoded record header. *lsn*: start of the record. *durable*: LSN below which all was fsynced when it was
    written."""

    record_type: int
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
    def writer_epoch(self) -> tuple[int, int]:
        """Epoch and incarnation of the writer. They never fall."""
        return self.epoch, self.incarnation

    @property
    def bytes_total(self) -> int:
        return record_bytes(self.meta_bytes, self.body_bytes)

    @property
    def body_lsn(self) -> Lsn:
        return Lsn(self.lsn + HEADER_BYTES + self.meta_bytes)

    @property
    def end(self) -> Lsn:
        """LSN after the record: `lsn + bytes_total`, computed in one step for replay."""
        return Lsn((self.lsn + HEADER_BYTES + self.meta_bytes + self.body_bytes + ALIGNMENT - 1) & -ALIGNMENT)


def lengths(view: memoryview, position: int) -> tuple[int, int]:
    """Return the lengths of meta part and body in the header at *position*, unchecked."""
    return _LENGTHS.unpack_from(view, position + _LENGTHS_AT)


def is_intact_header(view: memoryview, position: int) -> bool:
    """Check the checksum of the header at *position* and its meta part, which *view* holds."""
    meta_bytes, _ = lengths(view, position)
    (crc,) = _CRC.unpack_from(view, position)
    return bool(crc == crc32(view[position + _CRC.size : position + HEADER_BYTES + meta_bytes]))


def kind_and_time(view: memoryview, position: int, lsn: int) -> tuple[int, int] | None:
    """Return the type and the time in the header at *position*; None if there is no intact one that carries *lsn*, or
    *view* does not hold its meta part."""
    if position + HEADER_BYTES > len(view) or position + HEADER_BYTES + lengths(view, position)[0] > len(view):
        return None
    fields = _HEADER.unpack_from(view, position)
    return (fields[1], fields[12]) if fields[10] == lsn and is_intact_header(view, position) else None


def record_bytes(meta_bytes: int, body_bytes: int) -> int:
    """Return the bytes a record takes in the journal, including zeros up to the alignment."""
    return (HEADER_BYTES + meta_bytes + body_bytes + ALIGNMENT - 1) & -ALIGNMENT


def pack(
    record_type: int,
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
    """Return header and meta, ready to write. The checksum covers every byte of both after itself."""
    tail = (
        _HEADER.pack(
            0, record_type, flags, 0, len(meta), body_bytes, body_crc, epoch, incarnation, 0, lsn, durable, time_ms
        )[4:]
        + meta
    )
    return _CRC.pack(crc32(tail)) + tail


class InvalidHeader(msgspec.Struct, frozen=True):
    """Reason why the bytes at a position are no record. *bytes_total*: of the record, if its header is valid, else
    0."""

    reason: str
    bytes_total: int = 0


class IncompleteHeader(InvalidHeader, frozen=True):
    """The bytes end inside a header. More of them may make it one, while a record is still arriving."""


class ExceedsSegment(InvalidHeader, frozen=True):
    """The lengths leave the segment, or what is here of it: as above."""


_INCOMPLETE = IncompleteHeader("cut off inside a header")
_EXCEEDS = ExceedsSegment("lengths that leave the segment")


def unpack(view: memoryview, position: int, lsn: int, pad_end: int = 0) -> RecordHeader | InvalidHeader:
    """Judge the bytes at *position* of a segment as a record that must carry *lsn*; checks the body too.

    *pad_end*: the segment ends there, though *view* may end before it: a PAD is a record without its body. Never raises
    for bytes that are no record, but returns InvalidHeader with the reason.
    """
    if position + HEADER_BYTES > len(view):
        return _INCOMPLETE
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
        return InvalidHeader("no record")
    if own_lsn != lsn:
        return InvalidHeader(f"the header names LSN {own_lsn}")
    body = position + HEADER_BYTES + meta_bytes
    if meta_bytes > META_BYTES_MAX or body + body_bytes > (
        pad_end if pad_end and kind == RecordType.PAD else len(view)
    ):
        return _EXCEEDS
    if crc32(view[position + 4 : body]) != crc:
        return InvalidHeader("header checksum")
    # An unknown type passes: a newer metaq's record is whole, and must not be truncated as a torn one.
    if kind == 0 or zero_a or zero_b or durable > own_lsn:
        return InvalidHeader(f"a header that no metaq writes (kind {kind})")
    # A PAD's body is the unused rest of its segment and is never read.
    if kind != RecordType.PAD and crc32(view[body : body + body_bytes]) != body_crc:
        return InvalidHeader("body checksum", record_bytes(meta_bytes, body_bytes))
    return RecordHeader(
        kind, flags, meta_bytes, body_bytes, body_crc, epoch, incarnation, Lsn(lsn), Lsn(durable), time_ms
    )
