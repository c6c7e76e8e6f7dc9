"""Assembles a stream of journal bytes, split anywhere, into whole, checked records. Pure.

The stream is the journal's address space: LSN by LSN, segment headers included. Bytes without meaning, the body of a
PAD and a rest of a segment too short for a header, may be omitted: the next bytes are then the next segment's. A
segment begins here with its first record, so that a copy never ends in an empty segment.
"""

from collections.abc import Iterator
from typing import NamedTuple

from journal.errors import ForeignJournal, ForeignStream, InvalidContent
from journal.records.header import (
    ALIGNMENT,
    HEADER_BYTES,
    ExceedsSegment,
    IncompleteHeader,
    InvalidHeader,
    Lsn,
    RecordType,
    lengths,
    record_bytes,
    unpack,
)
from journal.wal.scan import ScannedRecord
from journal.wal.segments import (
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
    SEGMENT_HEADER_BYTES,
    JournalIdentity,
    SegmentHeader,
)
from journal.wal.storage_file import Buffer

_ZEROS = [bytes(n) for n in range(ALIGNMENT)]
_FIRST_BYTES = SEGMENT_HEADER_BYTES + HEADER_BYTES  # what must be there before a segment can begin


class RecordChunk(NamedTuple):
    """Contiguous whole records as received. *lsn*: of the first; *data*: from there on.

    *end*: after them; after a PAD, whose body is omitted, the end of the segment. *segment*: the header of their
    segment, if they are its first.
    """

    lsn: Lsn
    end: Lsn
    data: memoryview
    segment: SegmentHeader | None


class RecordStream:
    """Splits a stream of bytes into records. Any one thread.

    Call `add`, iterate over each buffer it gives with `records`, then call `drain` for the records passed. A record is
    passed when the next one is requested: a caller that raises at a record has not passed it.
    """

    def __init__(self, identity: JournalIdentity, end: int, segment_end: int, writer_epoch: tuple[int, int]) -> None:
        """Begin at *end*, after the last record or PAD; *segment_end*: of its segment. In an empty copy, both are the
        LSN of the first segment."""
        self.end = Lsn(end)  # after the last record passed
        self.received = self.end  # LSN of the next byte of the stream; it may restart at `end` at any time
        self.writer_epoch = writer_epoch  # epoch and incarnation of the last record
        self._identity = identity
        self._segment_end = segment_end
        # The beginning of a record, after the header of its segment if it is the first there.
        self._buffered: list[memoryview] = []
        self._buffered_bytes = 0
        self._wanted = 0  # bytes needed before it can be judged
        # The current buffer: records passed, [begun, passed), and not yet made a chunk.
        self._view = memoryview(b"")
        self._begun = self._passed = 0
        self._begun_lsn = self.end
        self._begun_segment: SegmentHeader | None = None
        self._chunks: list[RecordChunk] = []

    def discard_partial(self) -> None:
        """Drop the bytes of an incomplete record: the stream continues at `end`."""
        self._buffered.clear()
        self._buffered_bytes = 0
        self.received = self.end

    def add(self, lsn: int, data: Buffer) -> Iterator[memoryview]:
        """Accept *data*, whose first byte has LSN *lsn*, and yield the buffers to iterate over.

        Raises ForeignStream unless the stream continues there. *data* must not change until it is written.
        """
        view = memoryview(data).cast("B")
        is_at_rest = not self._buffered and self._is_rest(self.end)
        if lsn == self.end != self.received:
            self.discard_partial()
        elif lsn != self.received and not (is_at_rest and lsn == self._segment_end):
            raise ForeignStream(lsn, f"it continues at LSN {self.received}, or restarts at {self.end}")
        self.received = Lsn(lsn + len(view))
        while self._buffered:
            missing = self._wanted - self._buffered_bytes
            if len(view) < missing:
                self._buffer(view, self._wanted)
                return
            whole = memoryview(b"".join((*self._buffered, view[:missing])))
            view = view[missing:]
            self._buffered.clear()
            self._buffered_bytes = 0
            yield whole
        if self._is_rest(self.end):  # up to where the next segment begins
            view = view[max(self._segment_end - (self.received - len(view)), 0) :]
        if len(view):
            yield view

    def records(self, view: memoryview) -> Iterator[ScannedRecord]:
        """Yield the records of a buffer from `add`; keeps an incomplete one. Raises ForeignStream."""
        at, size = 0, len(view)
        lsn, segment_end = self.end, self._segment_end
        self._view, self._begun, self._passed, self._begun_lsn = view, 0, 0, lsn
        while at < size:
            position, segment = at, None
            if segment_end - lsn < HEADER_BYTES:
                position += SEGMENT_HEADER_BYTES
                if size - at < _FIRST_BYTES:
                    self._buffer(view[at:], _FIRST_BYTES)
                    return
                segment = self._judge_segment(view[at:position], segment_end)
                lsn, segment_end = Lsn(segment.base + SEGMENT_HEADER_BYTES), segment.base + segment.size
            header = unpack(view, position, lsn, position + segment_end - lsn)
            if isinstance(header, InvalidHeader):
                self._buffer(view[at:], position - at + _bytes_wanted(header, view, position, lsn, segment_end))
                return
            end, is_pad = header.end, header.record_type == RecordType.PAD
            stop = position + (HEADER_BYTES if is_pad else end - lsn)
            if end > segment_end or (is_pad and end != segment_end):
                raise ForeignStream(lsn, f"a record up to LSN {end} in a segment that ends at {segment_end}")
            if stop > size:  # it lacks zeros up to the alignment
                self._buffer(view[at:], stop - at)
                return
            if (writer_epoch := header.writer_epoch) < self.writer_epoch:
                raise ForeignStream(lsn, f"epoch and incarnation {writer_epoch} after {self.writer_epoch}")
            if not is_pad:
                if (zeros := -(header.meta_bytes + header.body_bytes) % ALIGNMENT) and view[
                    stop - zeros : stop
                ] != _ZEROS[zeros]:
                    raise ForeignStream(lsn, "something but zeros behind the record")
                yield ScannedRecord(header, view, position)
            if segment is not None:
                self._end_chunk(position, lsn, segment)
                self._segment_end = segment_end
            self.end, self.writer_epoch, self._passed = end, writer_epoch, stop
            at, lsn = stop, end
            if segment_end - lsn < HEADER_BYTES:  # what is left of the segment says nothing
                at += min(segment_end - header.lsn - (stop - position), size - stop)

    def drain(self) -> list[RecordChunk]:
        """Return the records passed since the last call, in order."""
        self._end_chunk(self._passed, self.end, None)
        chunks, self._chunks = self._chunks, []
        return chunks

    def _end_chunk(self, begin: int, lsn: Lsn, segment: SegmentHeader | None) -> None:
        """End a chunk with the records passed; the next one begins at position *begin*."""
        if self._passed > self._begun:
            data = self._view[self._begun : self._passed]
            self._chunks.append(RecordChunk(self._begun_lsn, self.end, data, self._begun_segment))
        self._begun, self._begun_lsn, self._begun_segment = begin, lsn, segment

    def _is_rest(self, lsn: int) -> bool:
        """Return True if the segment holds nothing meaningful from *lsn* on."""
        return self._segment_end - lsn < HEADER_BYTES

    def _buffer(self, view: memoryview, wanted: int) -> None:
        self._buffered.append(view)
        self._buffered_bytes += len(view)
        self._wanted = wanted

    def _judge_segment(self, raw: memoryview, base: int) -> SegmentHeader:
        try:
            header = SegmentHeader.unpack(raw, f"the segment at LSN {base} of the stream")
        except (ForeignJournal, InvalidContent) as error:
            raise ForeignStream(base, str(error)) from error
        if header.identity != self._identity:
            raise ForeignStream(base, f"it is of {header.identity}, this is a copy of {self._identity}")
        if header.base != base or not SEGMENT_BYTES_MIN <= header.size <= SEGMENT_BYTES_MAX or header.size % 4096:
            raise ForeignStream(base, f"a segment of {header.size} bytes at LSN {header.base}")
        if header.pack() != raw:
            raise ForeignStream(base, "something but zeros in a segment header")
        return header


def _bytes_wanted(invalid: InvalidHeader, view: memoryview, position: int, lsn: int, segment_end: int) -> int:
    """Return the bytes needed before the record at *position* can be judged. Raises ForeignStream if more bytes cannot
    make it valid."""
    if isinstance(invalid, IncompleteHeader):
        return HEADER_BYTES
    size = record_bytes(*lengths(view, position))
    if not isinstance(invalid, ExceedsSegment) or size <= len(view) - position or size > segment_end - lsn:
        raise ForeignStream(lsn, invalid.reason)
    return size
