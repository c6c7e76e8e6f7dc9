"""Journal bytes as they arrive, cut anywhere, put together to whole records and checked before anybody sees them. Pure.

The stream is the journal's address space: LSN by LSN, segment headers included. What no reader looks at, the body of a
PAD and a rest of a segment that is too short for a header, may be left out: the next bytes are then the next segment's.
A segment begins here with its first record, so that a copy never ends in one that holds nothing.
"""

from collections.abc import Iterator
from typing import NamedTuple

from journal.errors import ForeignJournal, ForeignStream
from journal.frame import (
    ALIGNMENT,
    CUT_OFF,
    HEADER_BYTES,
    TOO_LONG,
    Bad,
    Kind,
    Lsn,
    lengths,
    record_bytes,
    unpack,
)
from journal.scan import Entry
from journal.segments import SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENT_HEADER_BYTES, Identity, SegmentHeader
from journal.storage import Buffer

_ZEROS = [bytes(n) for n in range(ALIGNMENT)]
_FIRST_BYTES = SEGMENT_HEADER_BYTES + HEADER_BYTES  # what must be there before a segment can begin


class Piece(NamedTuple):
    """Whole records as they were received, one behind the other. *lsn*: of the first; *data*: from there on.

    *end*: behind them; behind a PAD, whose body is not there, the end of the segment. *segment*: the header of their
    segment, if they are its first.
    """

    lsn: Lsn
    end: Lsn
    data: memoryview
    segment: SegmentHeader | None


class RecordStream:
    """Cuts a stream of bytes into records. Any one thread.

    Call `add`, go through each buffer it gives with `records`, then `take` what was passed. A record is passed when the
    next one is asked for: who raises at a record has not passed it.
    """

    def __init__(self, identity: Identity, end: int, segment_end: int, life: tuple[int, int]) -> None:
        """*end*: behind the last record or PAD; *segment_end*: of its segment. Where nothing is, both are the LSN at
        which the first segment is to begin."""
        self.end = Lsn(end)  # behind what was passed
        self.received = self.end  # LSN of the next byte of the stream; it may also begin anew at `end`, at any time
        self.life = life  # epoch and incarnation of the last record
        self._identity = identity
        self._segment_end = segment_end
        # The beginning of a record, and in front of it the header of its segment, if it is the first there.
        self._held: list[memoryview] = []
        self._held_bytes = 0
        self._wanted = 0  # so many must be there before more can be said about it
        # Of the buffer that is gone through: what was passed, [begun, passed), and not yet made a piece.
        self._view = memoryview(b"")
        self._begun = self._passed = 0
        self._begun_lsn = self.end
        self._begun_segment: SegmentHeader | None = None
        self._pieces: list[Piece] = []

    def forget_rest(self) -> None:
        """Drop what is there of a record that is not whole: the stream goes on at `end`."""
        self._held.clear()
        self._held_bytes = 0
        self.received = self.end

    def add(self, lsn: int, data: Buffer) -> Iterator[memoryview]:
        """The buffers to go through, now that *data* has arrived; *lsn* is that of its first byte.

        Raises ForeignStream unless the stream goes on there. *data* must not change until it is written.
        """
        view = memoryview(data).cast("B")
        is_at_rest = not self._held and self._is_rest(self.end)
        if lsn == self.end != self.received:
            self.forget_rest()
        elif lsn != self.received and not (is_at_rest and lsn == self._segment_end):
            raise ForeignStream(lsn, f"it goes on at LSN {self.received}, or anew at {self.end}")
        self.received = Lsn(lsn + len(view))
        while self._held:
            missing = self._wanted - self._held_bytes
            if len(view) < missing:
                self._hold(view, self._wanted)
                return
            whole = memoryview(b"".join((*self._held, view[:missing])))
            view = view[missing:]
            self._held.clear()
            self._held_bytes = 0
            yield whole
        if self._is_rest(self.end):  # up to where the next segment begins
            view = view[max(self._segment_end - (self.received - len(view)), 0) :]
        if len(view):
            yield view

    def records(self, view: memoryview) -> Iterator[Entry]:
        """The records of a buffer that `add` gave; what is no whole one is held. Raises ForeignStream."""
        at, size = 0, len(view)
        lsn, segment_end = self.end, self._segment_end
        self._view, self._begun, self._passed, self._begun_lsn = view, 0, 0, lsn
        while at < size:
            position, segment = at, None
            if segment_end - lsn < HEADER_BYTES:
                position += SEGMENT_HEADER_BYTES
                if size - at < _FIRST_BYTES:
                    self._hold(view[at:], _FIRST_BYTES)
                    return
                segment = self._judge_segment(view[at:position], segment_end)
                lsn, segment_end = Lsn(segment.base + SEGMENT_HEADER_BYTES), segment.base + segment.size
            header = unpack(view, position, lsn, position + segment_end - lsn)
            if isinstance(header, Bad):
                self._hold(view[at:], position - at + _bytes_wanted(header, view, position, lsn, segment_end))
                return
            end, is_pad = header.end, header.kind == Kind.PAD
            stop = position + (HEADER_BYTES if is_pad else end - lsn)
            if end > segment_end or (is_pad and end != segment_end):
                raise ForeignStream(lsn, f"a record up to LSN {end} in a segment that ends at {segment_end}")
            if stop > size:  # it lacks zeros up to the alignment
                self._hold(view[at:], stop - at)
                return
            if (life := header.life) < self.life:
                raise ForeignStream(lsn, f"epoch and incarnation {life} after {self.life}")
            if not is_pad:
                if (zeros := -(header.meta_bytes + header.body_bytes) % ALIGNMENT) and view[
                    stop - zeros : stop
                ] != _ZEROS[zeros]:
                    raise ForeignStream(lsn, "something but zeros behind the record")
                yield Entry(header, view, position)
            if segment is not None:
                self._end_piece(position, lsn, segment)
                self._segment_end = segment_end
            self.end, self.life, self._passed = end, life, stop
            at, lsn = stop, end
            if segment_end - lsn < HEADER_BYTES:  # what is left of the segment says nothing
                at += min(segment_end - header.lsn - (stop - position), size - stop)

    def take(self) -> list[Piece]:
        """What was passed since the last time, in order."""
        self._end_piece(self._passed, self.end, None)
        pieces, self._pieces = self._pieces, []
        return pieces

    def _end_piece(self, begin: int, lsn: Lsn, segment: SegmentHeader | None) -> None:
        """What was passed is one; the next one begins at position *begin*."""
        if self._passed > self._begun:
            data = self._view[self._begun : self._passed]
            self._pieces.append(Piece(self._begun_lsn, self.end, data, self._begun_segment))
        self._begun, self._begun_lsn, self._begun_segment = begin, lsn, segment

    def _is_rest(self, lsn: int) -> bool:
        """Is what the segment has left from *lsn* on nothing that a reader looks at?"""
        return self._segment_end - lsn < HEADER_BYTES

    def _hold(self, view: memoryview, wanted: int) -> None:
        self._held.append(view)
        self._held_bytes += len(view)
        self._wanted = wanted

    def _judge_segment(self, raw: memoryview, base: int) -> SegmentHeader:
        try:
            header = SegmentHeader.unpack(raw, f"the segment at LSN {base} of the stream")
        except ForeignJournal as error:
            raise ForeignStream(base, str(error)) from error
        if isinstance(header, str):
            raise ForeignStream(base, header)
        if header.identity != self._identity:
            raise ForeignStream(base, f"it is of {header.identity}, this is a copy of {self._identity}")
        if header.base != base or not SEGMENT_BYTES_MIN <= header.size <= SEGMENT_BYTES_MAX or header.size % 4096:
            raise ForeignStream(base, f"a segment of {header.size} bytes at LSN {header.base}")
        if header.pack() != raw:
            raise ForeignStream(base, "something but zeros in a segment header")
        return header


def _bytes_wanted(bad: Bad, view: memoryview, position: int, lsn: int, segment_end: int) -> int:
    """How many bytes must be there before the record at *position* can be judged. Raises ForeignStream if no more of
    them make it good."""
    if bad.reason == CUT_OFF:
        return HEADER_BYTES
    size = record_bytes(*lengths(view, position))
    if bad.reason != TOO_LONG or size <= len(view) - position or size > segment_end - lsn:
        raise ForeignStream(lsn, bad.reason)
    return size
