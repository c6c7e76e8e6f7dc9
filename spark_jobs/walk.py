"""The records of one segment in LSN order, and the stretches between them that do not read back.

The journal's verdict, segment by segment. In a segment that another one follows everything was fsynced: what does
not read back is rot. In the last one it is rot below the durable LSN of any later valid record; anything else is
the tail that a crash tore, or that a live broker is writing, and the journal ends there. Where a copy was being
received, records name what was fsynced elsewhere, and `journal.copy_mark` what was fsynced here. What the disk does not
give back where a record is expected may have been one, and is told.
"""

from collections.abc import Iterator

from journal.frame import ALIGNMENT, HEADER_BYTES, Bad, Header
from journal.record_window import RecordWindow, Unreadable, read_some
from journal.scan import SEARCH_CHUNK_BYTES, Entry, candidates
from journal.segments import SEGMENT_HEADER_BYTES
from journal.storage import StorageFile
from spark_jobs.directory import Stretch

# The next record mostly stands close to a bad one: small first, so that a million bad records cost no megabyte each.
CHUNK_BYTES_MIN = 4096


class Walk:
    """Iterates once over the records and bad stretches in the first *size* bytes of *file*, a segment that begins at
    LSN *base*.

    PAD records are among them. The bytes may grow meanwhile (a live broker appends); they never change once fsynced.
    """

    def __init__(
        self,
        file: StorageFile,
        size: int,
        base: int,
        *,
        is_last: bool,
        fsynced: int | None = None,
    ) -> None:
        self._file = file
        self._size = size
        self._window = RecordWindow(file, base, size=size)
        self._base = base
        self._is_last = is_last
        self._life = (0, 0)  # epoch and incarnation of the last good record: they never fall
        self._is_told = fsynced is not None  # instead of by records
        self._durable = fsynced or 0  # the highest durable LSN that any valid record was seen to name

    def __iter__(self) -> Iterator[Entry | Stretch]:
        base, size, window = self._base, self._size, self._window
        position = SEGMENT_HEADER_BYTES
        while position + HEADER_BYTES <= size:
            found = self._judge(position)
            if isinstance(found, Header):
                self._life = (found.epoch, found.incarnation)
                self._note(found)
                yield Entry(found, window.view, position - window.start)
                position += found.bytes_total
                continue
            resume = self._resume(position)
            if self._is_last and self._durable <= base + position and not isinstance(found, Unreadable):
                return
            window.forget()
            if isinstance(self._judge(position), Header):
                continue  # it was being written when it was judged, and is whole now
            end = size if resume is None else resume
            yield Stretch(base + position, base + end, found.reason)
            position = end

    def _judge(self, position: int) -> Header | Bad:
        header = self._window.judge(position)
        if isinstance(header, Header) and header.life < self._life:
            return Bad(f"incarnation {header.incarnation} after {self._life[1]}")
        return header

    def _note(self, header: Header) -> None:
        if not self._is_told:
            self._durable = max(self._durable, header.durable)

    def _resume(self, bad: int) -> int | None:
        """The position of the first valid record beyond *bad*; looks on until one proves *bad* was durable."""
        first: int | None = None
        for position in self._candidates(bad + ALIGNMENT):
            header = self._judge(position)
            if isinstance(header, Header):
                first = position if first is None else first
                self._note(header)
                if not self._is_last or self._durable > self._base + bad:
                    break
        return first

    def _candidates(self, position: int) -> Iterator[int]:
        """Positions whose bytes name their own LSN where a header does: the words that are worth judging."""
        file, reader, size = self._file, self._file.reader(), self._size
        chunk_bytes = CHUNK_BYTES_MIN
        while position < size and (position := max(position, file.next_data(position) & -ALIGNMENT)) < size:
            chunk, stopped_at = read_some(reader, position, min(position + chunk_bytes + HEADER_BYTES, size))
            if chunk.count(0) != len(chunk):
                for at in candidates(chunk, self._base + position):
                    yield position + at
            position = stopped_at.end if stopped_at is not None else position + chunk_bytes
            chunk_bytes = min(2 * chunk_bytes, SEARCH_CHUNK_BYTES)
