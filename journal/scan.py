"""Reading records in order, and the verdict on where they stop: whole, torn, or rotten.

A bad record was once fsynced, so it was acknowledged or could have been, when a later valid record names a durable
LSN above it, or when a later segment exists (none is created before the one in front of it is fsynced). That is
rot, and recovery must not touch it. Any other bad record is the tail a crash tore: its fsync never returned,
nobody was told, and it is cut. In a directory that was receiving a copy, records name what was fsynced elsewhere:
there `copy_mark` says what was fsynced here.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from journal.copy_mark import read_mark
from journal.frame import ALIGNMENT, HEADER_BYTES, LSN_FIELD, Bad, Header, Kind, Lsn, unpack
from journal.segments import SEGMENT_HEADER_BYTES, Segments

SEARCH_CHUNK_BYTES = 1 << 20


class Verdict(Enum):
    """What the end of a journal looks like."""

    WHOLE = "whole"
    TORN = "torn tail"
    ROTTEN = "rotten"


class Entry(NamedTuple):
    """A record where it stands; *view* is its segment and *position* the record's place there."""

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
    *end*, which must be cleared before the first append.
    """

    verdict: Verdict
    end: Lsn
    reason: str
    resumes: Lsn | None
    dirty: bool
    life: tuple[int, int]  # epoch and incarnation of the last good record


class Scanner:
    """Iterates over the records from *start*; afterwards `finish()` tells why it stopped.

    Records come in LSN order, checksums verified, epochs and incarnations never falling. Iterating again goes on
    where it stopped: a live writer may have completed the record there.
    """

    def __init__(self, segments: Segments, start: int) -> None:
        self._segments = segments
        self.end = Lsn(start)  # first byte after the last good record
        self._life = (0, 0)  # epoch and incarnation of the last good record
        self._reason = "no record"
        self._bad_bytes = 0  # of the record there, when its header is right and its body is not

    def __iter__(self) -> Iterator[Entry]:
        segments = self._segments
        self._bad_bytes = 0
        while self.end < segments.end:
            base, file = segments.locate(self.end)
            if self.end == base:
                self.end = Lsn(base + SEGMENT_HEADER_BYTES)
            view, size = file.view(), file.size
            position = self.end - base
            while position + HEADER_BYTES <= size:
                header = unpack(view, position, self.end)
                if isinstance(header, Bad):
                    self._reason, self._bad_bytes = header.reason, header.bytes_total
                    return
                if (life := header.life) < self._life:
                    self._reason = f"epoch and incarnation {life} after {self._life}"
                    return
                self._life = life
                self.end = end = header.end
                if header.kind != Kind.PAD:
                    yield Entry(header, view, position)
                position = end - base
            self.end = Lsn(base + size)  # fewer bytes than a header: the segment ends here

    def finish(self) -> ScanEnd:
        """The verdict on what stands beyond the last good record. Call it once iteration has ended."""
        bases = [base for base, _ in self._segments]
        mark = read_mark(self._segments.storage)
        was_fsynced = bool(bases) and self.end < max(bases[-1], mark or 0)
        dirty = self._bad_bytes > 0
        first: Lsn | None = None
        # Not inside a body whose length is known: whoever sent it may have written what looks like a record.
        for lsn, header in _later_records(self._segments, self.end + self._bad_bytes):
            dirty = True
            if header is None:
                continue
            first = first or lsn
            was_fsynced = was_fsynced or (mark is None and header.durable > self.end)
            if was_fsynced:
                break
        return ScanEnd(judge(dirty, was_fsynced), self.end, self._reason, first, dirty, self._life)


def record_around(segments: Segments, lsn: int) -> Header | None:
    """The record whose body the byte at *lsn* lies in, checksums verified; None if it does not read back.

    Its header is found from behind: a word that equals its own address, as in the search for a later record. Raises
    KeyError when no segment holds *lsn*.
    """
    base, file = segments.locate(lsn)
    view, stop = file.view(), lsn
    while stop > base + SEGMENT_HEADER_BYTES:
        high = (stop - 1) >> 16  # what all LSNs of a block of 64 KiB have in common
        begin = max(high << 16, base + SEGMENT_HEADER_BYTES)
        chunk = bytes(view[begin - base + LSN_FIELD : stop - base + LSN_FIELD])
        at = len(chunk)
        while (at := chunk.rfind(high.to_bytes(6, "little"), 0, at)) >= 2:
            found = begin + at - 2
            if found % ALIGNMENT == 0 and int.from_bytes(chunk[at - 2 : at + 6], "little") == found:
                header = unpack(view, found - base, found)
                if isinstance(header, Header):
                    return header if header.body_lsn <= lsn < header.body_lsn + header.body_bytes else None
            at += 5  # the next match begins before this one, and may overlap it
        stop = begin
    return None


def judge(dirty: bool, was_fsynced: bool) -> Verdict:
    """The verdict on the end of the good records. *dirty*: something but zeros follows; *was_fsynced*: see above."""
    match dirty, was_fsynced:
        case _, True:
            return Verdict.ROTTEN  # zeros too: what was fsynced is gone
        case True, False:
            return Verdict.TORN
        case _:
            return Verdict.WHOLE


def _later_records(segments: Segments, lsn: int) -> Iterator[tuple[Lsn, Header | None]]:
    """Every valid record beyond *lsn*, and (LSN, None) for every chunk that is not all zeros.

    A record holds its own LSN, so that a candidate is a word that equals its own address: the search compares
    words and asks `unpack` only about those.
    """
    for base, file in segments:
        view, size = file.view(), file.size
        position = max(lsn - base, SEGMENT_HEADER_BYTES)
        while position < size and (position := max(position, file.next_data(position) & -ALIGNMENT)) < size:
            chunk = bytes(view[position : position + SEARCH_CHUNK_BYTES + HEADER_BYTES])
            if chunk.count(0) != len(chunk):
                yield Lsn(base + position), None
                for at in _candidates(chunk, base + position):
                    header = unpack(view, position + at, base + position + at)
                    if isinstance(header, Header):
                        yield header.lsn, header
            position += SEARCH_CHUNK_BYTES


def _candidates(chunk: bytes, lsn: int) -> Iterator[int]:
    words = array("Q", chunk[LSN_FIELD : LSN_FIELD + (len(chunk) - LSN_FIELD) // 8 * 8])
    for index, word in enumerate(words):
        if word == lsn + index * ALIGNMENT:
            yield index * ALIGNMENT
