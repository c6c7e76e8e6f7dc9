"""One read of messages: at once, if that takes no wait for the disk, or as a worker thread's job."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from journal.open_journal import OpenJournal
from journal.storage import FileReader
from meta_broker.store.partition_index import Place

Data = TypeVar("Data", bytes, memoryview)


class _Together(NamedTuple):
    """Which places are read together, and what is between them thrown away."""

    gap_bytes: int  # no more than that between two of them
    bytes_max: int  # of all, unless one place is longer


# A system call more lets a thread go of the interpreter, which it has to get back; the loop pays for copying what is
# between, in buffers that the processor's cache holds.
IN_THREAD: Final = _Together(64 * 1024, 1024 * 1024)
ON_LOOP: Final = _Together(8 * 1024, 64 * 1024)
# Of one read on the event loop, a millisecond or two. What takes more is for the worker thread.
LOOP_BYTES_MAX: Final = 6 * 1024 * 1024
LOOP_SPANS_MAX: Final = 256


class _Group(NamedTuple):
    """Places in one segment, whose first byte has LSN *base*."""

    base: int
    file: FileReader
    places: list[Place]


class FarRead:
    """The bytes of some places. Made on the loop thread; it holds their segments, though they be deleted meanwhile."""

    def __init__(self, journal: OpenJournal, places: Sequence[Place]) -> None:
        self._groups: list[_Group] = []
        base, end, together = 0, 0, list[Place]()
        for place in places:
            if not base <= place.lsn < end:
                base, file = journal.reader(place.lsn)
                end, together = base + file.size, []
                self._groups.append(_Group(base, file, together))
            together.append(place)

    def run(self) -> bytes:
        """All of them, one after the other. Blocks on the disk; any thread. Raises UnreadableRange, StorageFailed."""
        parts: list[bytes] = []
        for base, file, places in self._groups:
            for span in _spans(places, IN_THREAD):
                start, end = _extent(span)
                parts.append(_cut(span, file.read(start - base, end - start)))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def cached(self) -> list[bytes | memoryview] | None:
        """All of them, in parts, if the disk need not be waited for, and it takes no long time; else None."""
        parts: list[bytes | memoryview] = []
        bytes_left, spans_left = LOOP_BYTES_MAX, LOOP_SPANS_MAX
        for base, file, places in self._groups:
            for span in _spans(places, ON_LOOP):
                start, end = _extent(span)
                bytes_left, spans_left = bytes_left - (end - start), spans_left - 1
                if (bytes_left < 0 and parts) or spans_left < 0:
                    return None
                data = file.read_cached(start - base, end - start)
                if data is None:
                    return None
                parts.append(_cut(span, memoryview(data)))
        return parts


def _extent(span: Sequence[Place]) -> tuple[int, int]:
    last = span[-1]
    return span[0].lsn, last.lsn + last.bytes


def _cut(span: Sequence[Place], data: Data) -> Data | bytes:
    """Of *data*, which begins with the first place of *span*, the places."""
    if len(span) == 1:
        return data
    view, start = memoryview(data), span[0].lsn
    return b"".join([view[lsn - start : lsn - start + size] for lsn, size in span])


def _spans(places: Sequence[Place], together: _Together) -> Iterator[Sequence[Place]]:
    """*places* of a segment in their order, those together that one system call reads."""
    gap_bytes, bytes_max = together
    first, start = 0, places[0].lsn
    end = start
    for at, (lsn, size) in enumerate(places):
        if at > first and not (end <= lsn <= end + gap_bytes and lsn + size - start <= bytes_max):
            yield places[first:at]
            first, start = at, lsn
        end = lsn + size
    yield places[first:]
