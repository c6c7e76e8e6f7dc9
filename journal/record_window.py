"""One segment file as whoever looks for records sees it: read in pieces of bounded size, and past bytes that the disk
does not give back."""

from collections.abc import Iterator
from typing import Final

from journal.errors import UnreadableRange
from journal.frame import (
    CUT_OFF,
    HEADER_BYTES,
    META_BYTES_MAX,
    TOO_LONG,
    Bad,
    Header,
    is_intact_header,
    lengths,
    record_bytes,
    unpack,
)
from journal.storage import FileReader, StorageFile

WINDOW_BYTES: Final = 1 << 20
LOOK_BYTES: Final = 16 * 1024  # for who looks at one record, here or there
_NEEDS_MORE: Final = (CUT_OFF, TOO_LONG)


class Unreadable(Bad):
    """Why nobody can tell whether a record is there: its bytes are not given back."""

    __slots__ = ()


class RecordWindow:
    """Judges what stands in a segment file whose first byte has LSN *base*. One thread.

    Each record is judged by one reading of its bytes, together with those around it: what a live writer adds later
    shows after `forget`. At least *window_bytes* are read at once, and all of a record that is longer.
    """

    def __init__(self, file: StorageFile, base: int, window_bytes: int = WINDOW_BYTES, size: int | None = None) -> None:
        """*size*: where the segment ends, if not with the file."""
        self.size = file.size if size is None else size
        self.view = memoryview(b"")  # of the file, from position *start* on
        self.start = 0
        self._base = base
        self._reader = file.reader()
        self._window_bytes = window_bytes
        self._stopped_at: UnreadableRange | None = None  # why the view ends where it does

    def judge(self, position: int) -> Header | Bad:
        """The record at *position*, as `frame.unpack` judges it, or Unreadable. *view* holds it then."""
        at = position - self.start
        if 0 <= at <= len(self.view) - HEADER_BYTES:
            found = unpack(self.view, at, self._base + position, self.size - self.start)
        else:
            self._read(position, self._window_bytes)
            found = unpack(self.view, 0, self._base + position, self.size - position)
        if not isinstance(found, Bad) or found.reason not in _NEEDS_MORE:
            return found
        return self._judge_more(position, found)

    def forget(self) -> None:
        """Read again what is judged next."""
        self.view = memoryview(b"")

    def _judge_more(self, position: int, found: Bad) -> Header | Bad:
        """Judge a record that does not end in the view. *found*: the verdict on it."""
        if found.reason == CUT_OFF:
            return self._unless_unreadable(found)
        meta_bytes, body_bytes = lengths(self.view, position - self.start)
        head_bytes = HEADER_BYTES + meta_bytes
        if meta_bytes > META_BYTES_MAX or position + head_bytes + body_bytes > self.size:
            return found
        # First the header: lengths that nobody wrote must not make us read all of the segment.
        if position - self.start + head_bytes > len(self.view):
            self._read(position, max(head_bytes, self._window_bytes))
            if len(self.view) < head_bytes:
                return self._unless_unreadable(found)
        if not is_intact_header(self.view, position - self.start):
            return Bad("header checksum")
        self._read(position, max(head_bytes + body_bytes, self._window_bytes))
        if len(self.view) < head_bytes + body_bytes:
            return self._unless_unreadable(Bad(found.reason, record_bytes(meta_bytes, body_bytes)))
        return unpack(self.view, 0, self._base + position, self.size - position)

    def _unless_unreadable(self, bad: Bad) -> Bad:
        return bad if self._stopped_at is None else Unreadable(str(self._stopped_at), bad.bytes_total)

    def _read(self, position: int, size: int) -> None:
        data, self._stopped_at = read_some(self._reader, position, min(position + size, self.size))
        self.view, self.start = memoryview(data), position


def read_some(file: FileReader, position: int, end: int) -> tuple[bytes, UnreadableRange | None]:
    """The bytes [position, end), or those before the first of them that cannot be read, and what is wrong there."""
    stopped_at = None
    while position < end:
        try:
            return file.read(position, end - position), stopped_at
        except UnreadableRange as error:
            end, stopped_at = error.position, error
    return b"", stopped_at


def read_past(file: FileReader, position: int, end: int) -> Iterator[tuple[int, bytes] | UnreadableRange]:
    """All bytes [position, end) that can be read, in pieces and where each begins; between them what cannot be."""
    while position < end:
        data, stopped_at = read_some(file, position, min(position + WINDOW_BYTES, end))
        if data:
            yield position, data
            position += len(data)
        if stopped_at is not None:
            yield stopped_at
            position = stopped_at.end


def unreadable_ranges(file: FileReader, position: int, end: int) -> list[UnreadableRange]:
    """The blocks with bytes of [position, end) that cannot be read; those side by side as one."""
    found: list[UnreadableRange] = []
    for each in read_past(file, position, end):
        if not isinstance(each, UnreadableRange):
            continue
        if found and (found[-1].end, found[-1].reason) == (each.position, each.reason):
            last = found.pop()
            each = UnreadableRange(each.path, last.position, last.size + each.size, each.reason)
        found.append(each)
    return found
