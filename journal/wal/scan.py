"""Reads records in order, and judges where they end: whole, torn, or corrupt.

A bad record was once fsynced, hence acknowledged or about to be, if a later valid record names a durable LSN above it,
or if a later segment exists (none is created before the previous one is fsynced). That is corruption, and recovery must
not touch it. Any other bad record is the torn tail of a crash: its fsync never returned, nothing was acknowledged, and
it is truncated. In a directory that was receiving a copy, records name the durable LSN of the master: there
`recovery_point` holds the local one. Unreadable bytes may have held anything: at or beyond the end of the records they
count as corruption.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from journal.errors import UnreadableRange
from journal.records.header import ALIGNMENT, HEADER_BYTES, LSN_FIELD, InvalidHeader, Lsn, RecordHeader, RecordType
from journal.wal.marks import read_recovery_point
from journal.wal.record_window import LOOK_BYTES, RecordWindow, Unreadable, read_some
from journal.wal.segments import SEGMENT_HEADER_BYTES, Segments

SEARCH_CHUNK_BYTES = 1 << 20
_ZEROS = bytes(2 * 1024 * 1024)


class EndVerdict(Enum):
    """Verdict on the end of a journal."""

    WHOLE = "whole"
    TORN = "torn tail"
    CORRUPT = "corrupt"


class ScannedRecord(NamedTuple):
    """A record as read: *position* is its place in *view*."""

    header: RecordHeader
    view: memoryview
    position: int

    @property
    def meta(self) -> memoryview:
        start = self.position + HEADER_BYTES
        return self.view[start : start + self.header.meta_bytes]

    @property
    def body(self) -> memoryview:
        start = self.position + HEADER_BYTES + self.header.meta_bytes
        return self.view[start : start + self.header.body_bytes]


@dataclass(frozen=True, slots=True)
class ScanEnd:
    """The end of the records and its reason. *end*: the first byte after the last good record.

    *next_valid_lsn*: the first valid record beyond *end*, if any. *trailing_garbage*: bytes other than zeros stand
    beyond *end*, which must be cleared before the first append. *is_unreadable*: the disk cannot read the bytes at
    *end*, so a record may stand there. *durable*: LSN below which everything was fsynced here successfully.
    """

    verdict: EndVerdict
    end: Lsn
    reason: str
    next_valid_lsn: Lsn | None
    trailing_garbage: bool
    writer_epoch: tuple[int, int]  # epoch and incarnation of the last good record
    durable: Lsn
    is_unreadable: bool = False


class Scanner:
    """Iterates over the records from *start*; `finish()` then tells why it stopped.

    Yields records in LSN order, with verified checksums and epochs and incarnations that never fall. Iterating again
    continues where it stopped: a live writer may have completed the record there.
    """

    def __init__(self, segments: Segments, start: int) -> None:
        self._segments = segments
        self.end = Lsn(start)  # first byte after the last good record
        self._writer_epoch = (0, 0)  # epoch and incarnation of the last good record
        self._invalid = InvalidHeader("no record")  # what stands there
        self._named_durable = Lsn(0)  # the highest durable LSN that a record names

    def __iter__(self) -> Iterator[ScannedRecord]:
        segments = self._segments
        self._invalid = InvalidHeader("no record")
        while self.end < segments.end:
            base, file = segments.locate(self.end)
            if self.end == base:
                self.end = Lsn(base + SEGMENT_HEADER_BYTES)
            window = RecordWindow(file, base)
            judge, size = window.judge, window.size
            position = self.end - base
            while position + HEADER_BYTES <= size:
                header = judge(position)
                if isinstance(header, InvalidHeader):
                    self._invalid = header
                    return
                if (writer_epoch := header.writer_epoch) < self._writer_epoch:
                    self._invalid = InvalidHeader(f"epoch and incarnation {writer_epoch} after {self._writer_epoch}")
                    return
                self._writer_epoch = writer_epoch
                if header.durable > self._named_durable:
                    self._named_durable = header.durable
                self.end = end = header.end
                if header.record_type != RecordType.PAD:
                    yield ScannedRecord(header, window.view, position - window.start)
                position = end - base
            self.end = Lsn(base + size)  # fewer bytes than a header: the segment ends here

    def judge_end(self) -> ScanEnd:
        """Judge the bytes after the last good record. Call it once iteration has ended."""
        bases = [base for base, _ in self._segments]
        recovery_point = read_recovery_point(self._segments.storage)
        was_fsynced = bool(bases) and self.end < max(bases[-1], recovery_point or 0)
        trailing_garbage = self._invalid.bytes_total > 0
        first: Lsn | None = None
        reason = self._invalid.reason
        is_unreadable = isinstance(self._invalid, Unreadable)
        may_be_lost = was_fsynced or is_unreadable
        # Skip a body whose length is known: its sender may have put bytes there that look like a record.
        for lsn, found in _later_records(self._segments, self.end + self._invalid.bytes_total):
            trailing_garbage = True
            if isinstance(found, UnreadableRange):
                if not may_be_lost:
                    may_be_lost, reason = True, f"{reason}, and behind it {found}"
            elif found is not None:
                first = first or lsn
                was_fsynced = was_fsynced or (recovery_point is None and found.durable > self.end)
                may_be_lost = may_be_lost or was_fsynced
            if first and may_be_lost:
                break
        verdict = judge(trailing_garbage, may_be_lost)
        durable = max(self._named_durable if recovery_point is None else recovery_point, bases[-1] if bases else Lsn(0))
        return ScanEnd(verdict, self.end, reason, first, trailing_garbage, self._writer_epoch, durable, is_unreadable)


def record_at(segments: Segments, lsn: int) -> RecordHeader | InvalidHeader:
    """Judge the bytes at *lsn* as a record. Raises KeyError if no segment holds it."""
    base, file = segments.locate(lsn)
    return RecordWindow(file, base, LOOK_BYTES).judge(lsn - base)


def record_around(segments: Segments, lsn: int) -> ScannedRecord | None:
    """Return the record whose body contains *lsn*, checksums verified; None if it does not read back.

    Finds its header by searching backwards for a word that equals its own address, as in the search for a later record.
    Raises KeyError if no segment holds *lsn*, UnreadableRange.
    """
    base, file = segments.locate(lsn)
    window, reader, stop = RecordWindow(file, base, LOOK_BYTES), file.reader(), lsn
    while stop > base + SEGMENT_HEADER_BYTES:
        high = (stop - 1) >> 16  # what all LSNs of a block of 64 KiB have in common
        begin = max(high << 16, base + SEGMENT_HEADER_BYTES)
        at = begin - base + LSN_FIELD
        chunk = reader.read(at, min(stop - base + LSN_FIELD, file.size) - at)
        at = len(chunk)
        while (at := chunk.rfind(high.to_bytes(6, "little"), 0, at)) >= 2:
            found = begin + at - 2
            if found % ALIGNMENT == 0 and int.from_bytes(chunk[at - 2 : at + 6], "little") == found:
                header = window.judge(found - base)
                if isinstance(header, RecordHeader):
                    is_around = header.body_lsn <= lsn < header.body_lsn + header.body_bytes
                    return ScannedRecord(header, window.view, found - base - window.start) if is_around else None
            at += 5  # the next match begins before this one, and may overlap it
        stop = begin
    return None


def judge(trailing_garbage: bool, may_be_lost: bool) -> EndVerdict:
    """Judge the end of the good records. *trailing_garbage*: bytes other than zeros follow; *may_be_lost*: bytes were,
    or may have been, fsynced there."""
    match trailing_garbage, may_be_lost:
        case _, True:
            return EndVerdict.CORRUPT  # zeros too: what was fsynced is gone
        case True, False:
            return EndVerdict.TORN
        case _:
            return EndVerdict.WHOLE


def _later_records(segments: Segments, lsn: int) -> Iterator[tuple[Lsn, RecordHeader | UnreadableRange | None]]:
    """Yield every valid record beyond *lsn*, (LSN, None) for every chunk that is not all zeros, and unreadable ranges.

    A record holds its own LSN, so a candidate is a word that equals its own address: the search compares words and
    calls `unpack` only for those.
    """
    for base, file in segments:
        size, reader, window = file.size, file.reader(), RecordWindow(file, base)
        position = max(lsn - base, SEGMENT_HEADER_BYTES)
        while position < size and (position := max(position, file.next_data(position) & -ALIGNMENT)) < size:
            chunk, stopped_at = read_some(reader, position, min(position + SEARCH_CHUNK_BYTES + HEADER_BYTES, size))
            if not is_zero(chunk):
                yield Lsn(base + position), None
                for at in candidates(chunk, base + position):
                    header = window.judge(position + at)
                    if isinstance(header, RecordHeader):
                        yield header.lsn, header
            if stopped_at is not None:
                yield Lsn(base + stopped_at.position), stopped_at
            position = stopped_at.end if stopped_at is not None else position + SEARCH_CHUNK_BYTES


def candidates(chunk: bytes, lsn: int) -> Iterator[int]:
    """Yield positions in *chunk*, which begins at *lsn*, of possible headers: those with a word that names its own
    LSN."""
    words = array("Q", chunk[LSN_FIELD : LSN_FIELD + (len(chunk) - LSN_FIELD) // 8 * 8])
    for index, word in enumerate(words):
        if word == lsn + index * ALIGNMENT:
            yield index * ALIGNMENT


def is_zero(data: bytes) -> bool:
    """True if all of *data* is zero. At memory speed: a start reads the unused rest of a segment."""
    return _ZEROS.startswith(data) if len(data) <= len(_ZEROS) else data.count(0) == len(data)
