"""Message frames of many extents as columns: where they stand, and their headers. Pure. The bytes: protocol.messages.

Frames of an extent mostly have one length: their places are computed, and every length then checked. The others are
walked one by one.
"""

import struct
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from journal.checksum import crc32
from meta_client.protocol.checksum import CRC31_MASK
from meta_client.protocol.messages import DATA_BYTES_MAX, HEADER_BYTES
from spark_jobs.source.record_block import Numbers, gather

FRAME: Final = np.dtype([("length", ">i4"), ("crc", ">i4"), ("id", ">i8"), ("flag", ">i4")])
_LENGTH: Final = struct.Struct(">i")
_LENGTHS: Final = np.dtype(">i4")

assert FRAME.itemsize == HEADER_BYTES


class InvalidFrames(ValueError):
    """A body whose frames do not fit its length or its number of messages."""


class Extents(NamedTuple):
    """Extents, a column a field: *size* bytes with *messages* messages from position *at* on, the first one at offset
    *base*. *name*: index of the partition, *key*: of the transaction, -1 without one."""

    at: Numbers
    name: Numbers
    key: Numbers
    base: Numbers
    messages: Numbers
    size: Numbers


class Frames(NamedTuple):
    """Frames, a column a field. *at*: where each begins in *data*; *extent*: index of its extent."""

    data: bytes | memoryview
    at: Numbers
    extent: Numbers
    offset: Numbers
    headers: NDArray[np.void]  # a column a field, of FRAME

    def select(self, at: NDArray[Any]) -> "Frames":
        """Return the rows *at*."""
        return Frames(self.data, *(column[at] for column in self[1:]))

    @property
    def data_at(self) -> Numbers:
        return self.at + HEADER_BYTES

    @property
    def data_end(self) -> Numbers:
        found: Numbers = self.data_at + self.headers["length"]
        return found


def find_frames(data: bytes | memoryview, extents: Extents) -> Frames:
    """Return the frames of *extents*, which stand in *data* in order. Raises InvalidFrames."""
    if (extents.messages * HEADER_BYTES > extents.size).any():
        raise InvalidFrames("a body is too short for its messages")
    begins, ends = extents.at, extents.at + extents.size
    first = np.cumsum(extents.messages) - extents.messages  # number of each extent's first message
    has_any = extents.messages > 0
    stride = np.zeros(len(begins), np.int64)
    stride[has_any] = gather(data, begins[has_any], _LENGTHS).astype(np.int64) + HEADER_BYTES
    alike = stride * extents.messages == extents.size
    extent = np.repeat(np.arange(len(begins)), extents.messages)
    at = begins[extent] + (np.arange(len(extent)) - first[extent]) * np.where(alike, stride, 0)[extent]
    lengths = gather(data, at, _LENGTHS).astype(np.int64)
    differs = lengths + HEADER_BYTES != stride[extent]
    for each in np.unique(np.concatenate((extent[differs], np.flatnonzero(~alike)))).tolist():
        begin, count = int(first[each]), int(extents.messages[each])
        at[begin : begin + count] = _walk(data, int(begins[each]), int(ends[each]), count)
    headers = gather(data, at, FRAME)
    return Frames(data, at, extent, extents.base[extent] + at - begins[extent], headers)


def _walk(data: bytes | memoryview, begin: int, end: int, count: int) -> list[int]:
    """Return where the *count* frames in [begin, end) begin. Raises InvalidFrames."""
    found = whole_frames(data, begin, end)
    last = found[-1] + HEADER_BYTES + _LENGTH.unpack_from(data, found[-1])[0] if found else begin
    if len(found) != count or last != end:
        raise InvalidFrames(f"{len(found)} whole messages and {end - last} more bytes where {count} messages should be")
    return found


def whole_frames(data: bytes | memoryview, begin: int, end: int) -> list[int]:
    """Return where the frames begin that are whole in [begin, end), up to the first impossible length."""
    found: list[int] = []
    at, unpack = begin, _LENGTH.unpack_from
    while at + HEADER_BYTES <= end:
        (length,) = unpack(data, at)
        if length < 0 or at + HEADER_BYTES + length > end:
            break
        found.append(at)
        at += HEADER_BYTES + length
    return found


def broken_checksums(frames: Frames) -> Iterable[int]:
    """Yield the rows whose data part does not have its checksum, or is longer than any."""
    view = memoryview(frames.data)
    places = zip(frames.data_at.tolist(), frames.data_end.tolist(), strict=True)
    sums = np.array([crc32(view[begin:end]) & CRC31_MASK for begin, end in places], np.int64)
    wrong = (sums != frames.headers["crc"]) | (frames.headers["length"] > DATA_BYTES_MAX)
    yield from np.flatnonzero(wrong).tolist()
