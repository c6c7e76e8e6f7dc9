"""Reads one segment file in pieces of bounded size, to judge its records, and past unreadable bytes."""

from collections.abc import Iterator
from typing import Final

from journal.errors import UnreadableRange
from journal.records.header import (
    HEADER_BYTES,
    META_BYTES_MAX,
    ExceedsSegment,
    IncompleteHeader,
    InvalidHeader,
    RecordHeader,
    is_intact_header,
    lengths,
    record_bytes,
    unpack,
)
from journal.wal.storage_file import FileReader, StorageFile

WINDOW_BYTES: Final = 1 << 20
LOOK_BYTES: Final = 16 * 1024  # for reads of single records
_NEEDS_MORE: Final = (IncompleteHeader, ExceedsSegment)


class Unreadable(InvalidHeader, frozen=True):
    """Result for a position whose bytes cannot be read: a record may or may not be there."""


class RecordWindow:
    """Judges the content of a segment file whose first byte has LSN *base*. One thread.

    Judges each record by one read of its bytes and those around it: later writes of a live writer show after
    `invalidate`. Reads at least *window_bytes* at once, and all of a longer record.
    """

    def __init__(self, file: StorageFile, base: int, window_bytes: int = WINDOW_BYTES, size: int | None = None) -> None:
        """Make a window; *size*: end of the segment, if other than that of the file."""
        self.size = file.size if size is None else size
        self.view = memoryview(b"")  # of the file, from position *start* on
        self.start = 0
        self._base = base
        self._reader = file.reader()
        self._window_bytes = window_bytes
        self._stopped_at: UnreadableRange | None = None  # the error at which the view ends

    def judge(self, position: int) -> RecordHeader | InvalidHeader:
        """Judge the record at *position*, as `header.unpack` does, or return Unreadable. *view* holds it then."""
        at = position - self.start
        if 0 <= at <= len(self.view) - HEADER_BYTES:
            found = unpack(self.view, at, self._base + position, self.size - self.start)
        else:
            self._read(position, self._window_bytes)
            found = unpack(self.view, 0, self._base + position, self.size - position)
        if isinstance(found, _NEEDS_MORE):
            return self._judge_long(position, found)
        return found

    def invalidate(self) -> None:
        """Drop the view, so that the next judgement reads again."""
        self.view = memoryview(b"")

    def _judge_long(self, position: int, found: InvalidHeader) -> RecordHeader | InvalidHeader:
        """Judge a record that does not end in the view. *found*: the verdict so far."""
        if isinstance(found, IncompleteHeader):
            return self._unless_unreadable(found)
        meta_bytes, body_bytes = lengths(self.view, position - self.start)
        head_bytes = HEADER_BYTES + meta_bytes
        if meta_bytes > META_BYTES_MAX or position + head_bytes + body_bytes > self.size:
            return found
        # Check the header first: invalid lengths must not cause a read of the whole segment.
        if position - self.start + head_bytes > len(self.view):
            self._read(position, max(head_bytes, self._window_bytes))
            if len(self.view) < head_bytes:
                return self._unless_unreadable(found)
        if not is_intact_header(self.view, position - self.start):
            return InvalidHeader("header checksum")
        self._read(position, max(head_bytes + body_bytes, self._window_bytes))
        if len(self.view) < head_bytes + body_bytes:
            return self._unless_unreadable(ExceedsSegment(found.reason, record_bytes(meta_bytes, body_bytes)))
        return unpack(self.view, 0, self._base + position, self.size - position)

    def _unless_unreadable(self, invalid: InvalidHeader) -> InvalidHeader:
        return invalid if self._stopped_at is None else Unreadable(str(self._stopped_at), invalid.bytes_total)

    def _read(self, position: int, size: int) -> None:
        data, self._stopped_at = read_some(self._reader, position, min(position + size, self.size))
        self.view, self.start = memoryview(data), position


def read_some(file: FileReader, position: int, end: int) -> tuple[bytes, UnreadableRange | None]:
    """Return bytes [position, end), or those before the first unreadable one, and the error there."""
    stopped_at = None
    while position < end:
        try:
            return file.read(position, end - position), stopped_at
        except UnreadableRange as error:
            end, stopped_at = error.position, error
    return b"", stopped_at


def read_past(file: FileReader, position: int, end: int) -> Iterator[tuple[int, bytes] | UnreadableRange]:
    """Yield the readable bytes of [position, end), in pieces with their positions, and the unreadable ranges in
    between."""
    while position < end:
        data, stopped_at = read_some(file, position, min(position + WINDOW_BYTES, end))
        if data:
            yield position, data
            position += len(data)
        if stopped_at is not None:
            yield stopped_at
            position = stopped_at.end


def unreadable_ranges(file: FileReader, position: int, end: int) -> list[UnreadableRange]:
    """Return the unreadable blocks that overlap [position, end); adjacent ones as one."""
    found: list[UnreadableRange] = []
    for each in read_past(file, position, end):
        if not isinstance(each, UnreadableRange):
            continue
        if found and (found[-1].end, found[-1].reason) == (each.position, each.reason):
            last = found.pop()
            each = UnreadableRange(each.path, last.position, last.size + each.size, each.reason)
        found.append(each)
    return found
