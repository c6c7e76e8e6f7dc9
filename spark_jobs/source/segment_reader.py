"""Yields the records of one segment in LSN order, and the unreadable ranges between them.

Judges as the journal does, segment by segment. A segment with a successor was fsynced entirely: what does not read back
is corrupt. In the last segment, bytes below the durable LSN of any later valid record are corrupt; anything else is the
torn tail of a crash, or being written by a live broker, and the journal ends there. In a directory that was receiving a
copy, records name the durable LSN of the master, and `journal.wal.marks` the local one. Bytes that the disk
cannot read where a record is expected are reported, since they may have been one.
"""

from collections.abc import Iterator

from journal.records.header import ALIGNMENT, HEADER_BYTES, InvalidHeader, RecordHeader
from journal.wal.record_window import RecordWindow, Unreadable, read_some
from journal.wal.scan import SEARCH_CHUNK_BYTES, ScannedRecord, candidates
from journal.wal.segments import SEGMENT_HEADER_BYTES
from journal.wal.storage_file import StorageFile
from spark_jobs.source.directory import MissingRange
from spark_jobs.source.record_block import BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, RecordBlock, read_block

# The next record mostly stands close to a bad one: small first, so that a million bad records cost no megabyte each.
CHUNK_BYTES_MIN = 4096


class SegmentReader:
    """Iterates once over the records and unreadable ranges in the first *size* bytes of *file*, a segment that begins
    at LSN *base*.

    Includes PAD records. The bytes may grow meanwhile (a live broker appends), but never change once fsynced.

    `blocks` gives the same records, most of them as columns: some ten times as fast. Use one of the two.
    """

    def __init__(
        self,
        file: StorageFile,
        size: int,
        base: int,
        *,
        is_last: bool,
        fsynced: int | None = None,
        start: int = SEGMENT_HEADER_BYTES,
    ) -> None:
        """*start*: position of the first record to read."""
        self._file = file
        self._size = size
        self._window = RecordWindow(file, base, size=size)
        self._base = base
        self._position = start
        self._is_last = is_last
        self._life = (0, 0)  # epoch and incarnation of the last good record: they never fall
        self._is_told = fsynced is not None  # else the records name it
        self._durable = fsynced or 0  # the highest durable LSN of any valid record so far

    def __iter__(self) -> Iterator[ScannedRecord | MissingRange]:
        while (found := self._next()) is not None:
            yield found

    def blocks(self) -> Iterator[RecordBlock | ScannedRecord | MissingRange]:
        """Iterate over the same records, clean stretches of them as blocks."""
        reader, block_bytes = self._file.reader(), BLOCK_BYTES_MIN
        while self._position + HEADER_BYTES <= self._size:
            block = read_block(reader, self._base, self._position, self._size, self._life, block_bytes)
            if block is not None:
                self._position = block.end - self._base
                self._life = block.writer_epoch
                self._raise_durable(int(block.headers["durable"].max()))
                yield block
            elif (found := self._next()) is not None:
                yield found
                if isinstance(found, MissingRange):
                    block_bytes = BLOCK_BYTES_MIN
                    continue
            else:
                return
            block_bytes = min(2 * block_bytes, BLOCK_BYTES_MAX)

    def _next(self) -> ScannedRecord | MissingRange | None:
        """Return what stands at the position, and move past it; None at the end."""
        base, size, window = self._base, self._size, self._window
        while (position := self._position) + HEADER_BYTES <= size:
            found = self._judge(position)
            if isinstance(found, RecordHeader):
                self._life = (found.epoch, found.incarnation)
                self._raise_durable(found.durable)
                self._position += found.bytes_total
                return ScannedRecord(found, window.view, position - window.start)
            resume = self._resume(position)
            if self._is_last and self._durable <= base + position and not isinstance(found, Unreadable):
                return None
            window.invalidate()
            if isinstance(self._judge(position), RecordHeader):
                continue  # it was being written when it was judged, and is whole now
            self._position = size if resume is None else resume
            return MissingRange(base + position, base + self._position, found.reason)
        return None

    def _judge(self, position: int) -> RecordHeader | InvalidHeader:
        header = self._window.judge(position)
        if isinstance(header, RecordHeader) and header.writer_epoch < self._life:
            return InvalidHeader(f"incarnation {header.incarnation} after {self._life[1]}")
        return header

    def _raise_durable(self, durable: int) -> None:
        if not self._is_told:
            self._durable = max(self._durable, durable)

    def _resume(self, bad: int) -> int | None:
        """Return the position of the first valid record beyond *bad*, reading on until one proves that *bad* was
        durable."""
        first: int | None = None
        for position in self._candidates(bad + ALIGNMENT):
            header = self._judge(position)
            if isinstance(header, RecordHeader):
                first = position if first is None else first
                self._raise_durable(header.durable)
                if not self._is_last or self._durable > self._base + bad:
                    break
        return first

    def _candidates(self, position: int) -> Iterator[int]:
        """Yield the positions worth judging: those whose bytes hold their own LSN where a header does."""
        file, reader, size = self._file, self._file.reader(), self._size
        chunk_bytes = CHUNK_BYTES_MIN
        while position < size and (position := max(position, file.next_data(position) & -ALIGNMENT)) < size:
            chunk, stopped_at = read_some(reader, position, min(position + chunk_bytes + HEADER_BYTES, size))
            if chunk.count(0) != len(chunk):
                for at in candidates(chunk, self._base + position):
                    yield position + at
            position = stopped_at.end if stopped_at is not None else position + chunk_bytes
            chunk_bytes = min(2 * chunk_bytes, SEARCH_CHUNK_BYTES)
