"""Reading records in order, and the verdict on where they stop: whole, torn, or rotten.

A bad record was once fsynced, so it was acknowledged or could have been, when a later valid record names a durable
LSN above it, or when a later segment exists (none is created before the one in front of it is fsynced). That is
rot, and recovery must not touch it. Any other bad record is the tail a crash tore: its fsync never returned,
nobody was told, and it is cut. In a directory that was receiving a copy, records name what was fsynced elsewhere:
there `copy_mark` says what was fsynced here. Bytes that the disk does not give back may have held anything: where
a record was expected, or later, they are rot.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from journal.copy_mark import read_mark
from journal.errors import UnreadableRange
from journal.frame import ALIGNMENT, HEADER_BYTES, LSN_FIELD, Bad, Header, Kind, Lsn
from journal.record_window import LOOK_BYTES, RecordWindow, Unreadable, read_some
from journal.segments import SEGMENT_HEADER_BYTES, Segments
from journal.zeros import is_zero

SEARCH_CHUNK_BYTES = 1 << 20


class Verdict(Enum):
    """What the end of a journal looks like."""

    WHOLE = "whole"
    TORN = "torn tail"
    ROTTEN = "rotten"


class Entry(NamedTuple):
    """A record as it was read: *position* is its place in *view*."""

    header: Header
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
    """Where the records stop and why. *end* is the first byte after the last good record.

    *resumes*: the first valid record beyond *end*, if any. *dirty*: something other than zeros stands beyond
    *end*, which must be cleared before the first append. *is_unreadable*: nobody can tell whether a record stands at
    *end*, for the disk does not give it back. *durable*: everything below it was fsynced here, with success.
    """

    verdict: Verdict
    end: Lsn
    reason: str
    resumes: Lsn | None
    dirty: bool
    life: tuple[int, int]  # epoch and incarnation of the last good record
    durable: Lsn
    is_unreadable: bool = False


class Scanner:
    """Iterates over the records from *start*; afterwards `finish()` tells why it stopped.

    Records come in LSN order, checksums verified, epochs and incarnations never falling. Iterating again goes on
    where it stopped: a live writer may have completed the record there.
    """

    def __init__(self, segments: Segments, start: int) -> None:
        self._segments = segments
        self.end = Lsn(start)  # first byte after the last good record
        self._life = (0, 0)  # epoch and incarnation of the last good record
        self._bad = Bad("no record")  # what stands there
        self._named_durable = Lsn(0)  # the highest durable LSN that a record names

    def __iter__(self) -> Iterator[Entry]:
        segments = self._segments
        self._bad = Bad("no record")
        while self.end < segments.end:
            base, file = segments.locate(self.end)
            if self.end == base:
                self.end = Lsn(base + SEGMENT_HEADER_BYTES)
            window = RecordWindow(file, base)
            judge, size = window.judge, window.size
            position = self.end - base
            while position + HEADER_BYTES <= size:
                header = judge(position)
                if isinstance(header, Bad):
                    self._bad = header
                    return
                if (life := header.life) < self._life:
                    self._bad = Bad(f"epoch and incarnation {life} after {self._life}")
                    return
                self._life = life
                if header.durable > self._named_durable:
                    self._named_durable = header.durable
                self.end = end = header.end
                if header.kind != Kind.PAD:
                    yield Entry(header, window.view, position - window.start)
                position = end - base
            self.end = Lsn(base + size)  # fewer bytes than a header: the segment ends here

    def finish(self) -> ScanEnd:
        """The verdict on what stands beyond the last good record. Call it once iteration has ended."""
        bases = [base for base, _ in self._segments]
        mark = read_mark(self._segments.storage)
        was_fsynced = bool(bases) and self.end < max(bases[-1], mark or 0)
        dirty = self._bad.bytes_total > 0
        first: Lsn | None = None
        reason = self._bad.reason
        is_unreadable = isinstance(self._bad, Unreadable)
        may_be_lost = was_fsynced or is_unreadable
        # Not inside a body whose length is known: whoever sent it may have written what looks like a record.
        for lsn, found in _later_records(self._segments, self.end + self._bad.bytes_total):
            dirty = True
            if isinstance(found, UnreadableRange):
                if not may_be_lost:
                    may_be_lost, reason = True, f"{reason}, and behind it {found}"
            elif found is not None:
                first = first or lsn
                was_fsynced = was_fsynced or (mark is None and found.durable > self.end)
                may_be_lost = may_be_lost or was_fsynced
            if first and may_be_lost:
                break
        verdict = judge(dirty, may_be_lost)
        durable = max(self._named_durable if mark is None else mark, bases[-1] if bases else Lsn(0))
        return ScanEnd(verdict, self.end, reason, first, dirty, self._life, durable, is_unreadable)


def record_at(segments: Segments, lsn: int) -> Header | Bad:
    """Judge what stands at *lsn* as a record. Raises KeyError when no segment holds it."""
    base, file = segments.locate(lsn)
    return RecordWindow(file, base, LOOK_BYTES).judge(lsn - base)


def record_around(segments: Segments, lsn: int) -> Entry | None:
    """The record whose body the byte at *lsn* lies in, checksums verified; None if it does not read back.

    Its header is found from behind: a word that equals its own address, as in the search for a later record. Raises
    KeyError when no segment holds *lsn*, UnreadableRange.
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
                if isinstance(header, Header):
                    is_around = header.body_lsn <= lsn < header.body_lsn + header.body_bytes
                    return Entry(header, window.view, found - base - window.start) if is_around else None
            at += 5  # the next match begins before this one, and may overlap it
        stop = begin
    return None


def judge(dirty: bool, may_be_lost: bool) -> Verdict:
    """The verdict on the end of the good records. *dirty*: something but zeros follows; *may_be_lost*: something was
    fsynced there, or nobody can tell."""
    match dirty, may_be_lost:
        case _, True:
            return Verdict.ROTTEN  # zeros too: what was fsynced is gone
        case True, False:
            return Verdict.TORN
        case _:
            return Verdict.WHOLE


def _later_records(segments: Segments, lsn: int) -> Iterator[tuple[Lsn, Header | UnreadableRange | None]]:
    """Every valid record beyond *lsn*, (LSN, None) for every chunk that is not all zeros, and what cannot be read.

    A record holds its own LSN, so that a candidate is a word that equals its own address: the search compares
    words and asks `unpack` only about those.
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
                    if isinstance(header, Header):
                        yield header.lsn, header
            if stopped_at is not None:
                yield Lsn(base + stopped_at.position), stopped_at
            position = stopped_at.end if stopped_at is not None else position + SEARCH_CHUNK_BYTES


def candidates(chunk: bytes, lsn: int) -> Iterator[int]:
    """Positions in *chunk*, which begins at *lsn*, where a header may stand: the word there names its own LSN."""
    words = array("Q", chunk[LSN_FIELD : LSN_FIELD + (len(chunk) - LSN_FIELD) // 8 * 8])
    for index, word in enumerate(words):
        if word == lsn + index * ALIGNMENT:
            yield index * ALIGNMENT
