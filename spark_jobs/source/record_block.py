"""Reads a stretch of clean records at once, their headers as columns. Pure, apart from the read.

Each header tells where the next one begins: only that chain is followed record by record, two numbers each. All else is
checked for every record of the stretch together, by the rules of `journal.records.header.unpack`. A stretch ends before
the first record that breaks a rule, and before a PAD: the caller judges those one by one.
"""

import struct
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from journal.checksum import crc32
from journal.records.header import ALIGNMENT, HEADER_BYTES, META_BYTES_MAX, RecordType
from journal.wal.record_window import read_some
from journal.wal.scan import ScannedRecord
from journal.wal.storage_file import FileReader

BLOCK_BYTES_MIN: Final = 64 * 1024
BLOCK_BYTES_MAX: Final = 1024 * 1024  # larger ones leave the processor's caches
HEADERS: Final = np.dtype(
    [
        ("crc", "<u4"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("zero_a", "<u2"),
        ("meta_bytes", "<u4"),
        ("body_bytes", "<u4"),
        ("body_crc", "<u4"),
        ("epoch", "<u4"),
        ("incarnation", "<u4"),
        ("zero_b", "<u4"),
        ("lsn", "<u8"),
        ("durable", "<u8"),
        ("time_ms", "<u8"),
    ]
)
_KIND_AND_LENGTHS: Final = struct.Struct("<BxxxII")
_KIND_AT: Final = 4
_CRC_BYTES: Final = 4
_PAD: Final = int(RecordType.PAD)

assert HEADERS.itemsize == HEADER_BYTES

Numbers = NDArray[np.int64]


class RecordBlock(NamedTuple):
    """Block of whole records with valid checksums, one behind the other. *headers*: a column a field, of `HEADERS`.

    *data* begins with the first record, at LSN *lsn*; *at*: where each record begins in it. *end*: LSN after the last.
    """

    lsn: int
    end: int
    data: memoryview
    at: Numbers
    headers: NDArray[np.void]

    def until(self, lsn: int) -> "RecordBlock":
        """Return the records that begin before *lsn*."""
        if lsn >= self.end:
            return self
        count = int(np.searchsorted(self.at, lsn - self.lsn))
        return self._replace(end=lsn, at=self.at[:count], headers=self.headers[:count])

    @property
    def meta_at(self) -> Numbers:
        """Return where each record's meta part begins in *data*."""
        return self.at + HEADER_BYTES

    @property
    def body_at(self) -> Numbers:
        """Return where each record's body begins in *data*."""
        found: Numbers = self.at + HEADER_BYTES + self.headers["meta_bytes"]
        return found

    @property
    def writer_epoch(self) -> tuple[int, int]:
        """Epoch and incarnation of the last record."""
        last: Any = self.headers[-1]
        return int(last["epoch"]), int(last["incarnation"])

    @classmethod
    def of(cls, record: ScannedRecord) -> "RecordBlock":
        """Return a block of one record; of a PAD its header alone."""
        header = record.header
        data = record.view[record.position : record.position + header.bytes_total]
        at = np.zeros(1, np.int64)
        return cls(header.lsn, header.end, data, at, gather(data, at, HEADERS))


def gather(data: Any, at: Numbers, row: np.dtype[Any]) -> NDArray[Any]:
    """Return the bytes at *at* of *data*, read as *row* each."""
    raw = np.frombuffer(data, np.uint8)
    if not len(at):
        return np.empty(0, row)
    windows = np.lib.stride_tricks.sliding_window_view(raw, row.itemsize)
    found: NDArray[Any] = np.ascontiguousarray(windows[at]).view(row).reshape(len(at))
    return found


def read_block(
    reader: FileReader, base: int, position: int, end: int, writer_epoch: tuple[int, int], block_bytes: int
) -> RecordBlock | None:
    """Return the clean records from *position* on of a segment that begins at LSN *base* and ends at *end*; None if the
    first one is not clean, or longer than *block_bytes*. *writer_epoch*: of the record before."""
    raw, _ = read_some(reader, position, min(position + block_bytes, end))
    data = memoryview(raw)
    starts = _chain(data)
    if not starts:
        return None
    at = np.array(starts, np.int64)
    headers = gather(data, at, HEADERS)
    clean = _are_clean(data, at, headers, base + position, writer_epoch)
    count = len(starts) if clean.all() else int(clean.argmin())
    if count == 0:
        return None
    at, headers = at[:count], headers[:count]
    after = int(at[-1]) + (
        (HEADER_BYTES + int(headers["meta_bytes"][-1]) + int(headers["body_bytes"][-1]) + ALIGNMENT - 1) & -ALIGNMENT
    )
    return RecordBlock(base + position, base + position + after, data, at, headers)


def _chain(data: memoryview) -> list[int]:
    """Return where records begin in *data* by the lengths they name, unchecked: those that end in it."""
    starts: list[int] = []
    append, unpack, size, at = starts.append, _KIND_AND_LENGTHS.unpack_from, len(data), 0
    last = size - HEADER_BYTES
    while at <= last:
        kind, meta_bytes, body_bytes = unpack(data, at + _KIND_AT)
        end = (at + HEADER_BYTES + ALIGNMENT - 1 + meta_bytes + body_bytes) & -ALIGNMENT
        if end > size or kind == 0 or kind == _PAD or meta_bytes > META_BYTES_MAX:
            break
        append(at)
        at = end
    return starts


def _are_clean(
    data: memoryview, at: Numbers, headers: NDArray[np.void], lsn: int, writer_epoch: tuple[int, int]
) -> NDArray[np.bool_]:
    epochs = headers["epoch"].astype(np.uint64) << np.uint64(32) | headers["incarnation"]
    before = np.uint64(writer_epoch[0] << 32 | writer_epoch[1])
    rises = epochs >= np.maximum(np.maximum.accumulate(epochs), before)
    meta_at = at + HEADER_BYTES
    body_at = meta_at + headers["meta_bytes"]
    body_end = body_at + headers["body_bytes"]
    heads = [crc32(data[a:b]) for a, b in zip((at + _CRC_BYTES).tolist(), body_at.tolist(), strict=True)]
    bodies = [crc32(data[a:b]) for a, b in zip(body_at.tolist(), body_end.tolist(), strict=True)]
    found: NDArray[np.bool_] = (
        (headers["lsn"] == (at + lsn).astype(np.uint64))
        & (headers["durable"] <= headers["lsn"])
        & (headers["zero_a"] == 0)
        & (headers["zero_b"] == 0)
        & rises
        & (np.array(heads, np.uint32) == headers["crc"])
        & (np.array(bodies, np.uint32) == headers["body_crc"])
    )
    return found
