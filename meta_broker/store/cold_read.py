"""One read of messages: at once if the page cache has them, else as a worker thread's job."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from journal.wal.open_journal import OpenJournal
from journal.wal.storage_file import FileReader
from meta_broker.store.partition_index import JournalSlice

_Data = TypeVar("_Data", bytes, memoryview)


class _ReadMerging(NamedTuple):
    """Limits for reading neighbouring slices with one system call, discarding the bytes between them."""

    gap_bytes: int  # at most, between two slices
    bytes_max: int  # at most, unless one slice is longer


# A thread pays for each system call by reacquiring the interpreter lock; the loop pays for copying the gaps, in
# buffers that fit the processor's cache.
IN_THREAD: Final = _ReadMerging(64 * 1024, 1024 * 1024)
ON_LOOP: Final = _ReadMerging(8 * 1024, 64 * 1024)
# Limits of one read on the event loop, a millisecond or two. The worker thread does larger ones.
LOOP_BYTES_MAX: Final = 6 * 1024 * 1024
LOOP_SPANS_MAX: Final = 256


class _Group(NamedTuple):
    """Places in one segment, whose first byte has LSN *base*."""

    base: int
    file: FileReader
    places: list[JournalSlice]


class SegmentReaders(Protocol):
    """A journal, or the tier that has its archived segments, too."""

    def reader(self, lsn: int) -> tuple[int, FileReader]:
        """Return the base of the segment that holds *lsn*, and a reader of its file."""


class ColdRead:
    """Read of some slices. Constructed on the loop thread; keeps their segments open, even if they are deleted
    meanwhile.
    """

    def __init__(self, segments: SegmentReaders, places: Sequence[JournalSlice]) -> None:
        self._groups: list[_Group] = []
        base, end, merging = 0, 0, list[JournalSlice]()
        for place in places:
            if not base <= place.lsn < end:
                base, file = segments.reader(place.lsn)
                end, merging = base + file.size, []
                self._groups.append(_Group(base, file, merging))
            merging.append(place)

    def run(self) -> bytes:
        """Read all slices, concatenated. Blocks on the disk; any thread. Raises UnreadableRange, StorageFailed."""
        parts: list[bytes] = []
        for base, file, places in self._groups:
            for span in _spans(places, IN_THREAD):
                start, end = _bounds(span)
                parts.append(_pick(span, file.read(start - base, end - start)))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def cached(self) -> list[bytes | memoryview] | None:
        """Return all slices, in parts, if that is quick and needs no disk; else None."""
        parts: list[bytes | memoryview] = []
        bytes_left, spans_left = LOOP_BYTES_MAX, LOOP_SPANS_MAX
        for base, file, places in self._groups:
            for span in _spans(places, ON_LOOP):
                start, end = _bounds(span)
                bytes_left, spans_left = bytes_left - (end - start), spans_left - 1
                if (bytes_left < 0 and parts) or spans_left < 0:
                    return None
                data = file.read_cached(start - base, end - start)
                if data is None:
                    return None
                parts.append(_pick(span, memoryview(data)))
        return parts


def _bounds(span: Sequence[JournalSlice]) -> tuple[int, int]:
    last = span[-1]
    return span[0].lsn, last.lsn + last.bytes


def _pick(span: Sequence[JournalSlice], data: _Data) -> _Data | bytes:
    """Cut the slices of *span* out of *data*, which begins with the first one."""
    if len(span) == 1:
        return data
    view, start = memoryview(data), span[0].lsn
    return b"".join([view[lsn - start : lsn - start + size] for lsn, size, _ in span])


def _spans(places: Sequence[JournalSlice], merging: _ReadMerging) -> Iterator[Sequence[JournalSlice]]:
    """Group the *places* of a segment, in their order, into runs that one system call reads."""
    gap_bytes, bytes_max = merging
    first, start = 0, places[0].lsn
    end = start
    for at, (lsn, size, _) in enumerate(places):
        if at > first and not (end <= lsn <= end + gap_bytes and lsn + size - start <= bytes_max):
            yield places[first:at]
            first, start = at, lsn
        end = lsn + size
    yield places[first:]


class PageCacheWindow:
    """The end of the journal that is likely in the page cache. Loop thread only; never waits."""

    def __init__(self, journal: OpenJournal, hot_bytes: float) -> None:
        self._journal = journal
        self.hot_bytes = hot_bytes  # bytes before the end that count as hot

    def is_hot(self, places: Sequence[JournalSlice]) -> bool:
        """Return whether the bytes of *places*, at least one, may be in memory. `ColdRead.cached` finds out."""
        lsn = min(places[0].lsn, places[-1].lsn)  # ascending, except within a transaction
        return self._journal.end - lsn <= self.hot_bytes
