"""One read of messages that are not in memory, perhaps: what a worker thread does for it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from journal.open_journal import OpenJournal
from journal.storage import FileReader
from meta_broker.store.partition_index import Place

# Places with no more than this between them are read at once, the rest thrown away: a system call each would let go of
# the interpreter, and get it back, once for every small message.
GAP_BYTES = 64 * 1024
SPAN_BYTES_MAX = 1024 * 1024  # of what is read at once, unless one place is longer


class _Piece(NamedTuple):
    """A place, in the segment that holds it."""

    file: FileReader
    position: int
    size: int

    @property
    def end(self) -> int:
        return self.position + self.size


class FarRead:
    """The bytes of some places. Made on the loop thread; it holds their segments, though they be deleted meanwhile."""

    def __init__(self, journal: OpenJournal, places: Sequence[Place]) -> None:
        self._pieces: list[_Piece] = []
        base, file = journal.reader(places[0].lsn)
        for place in places:
            if not base <= place.lsn < base + file.size:
                base, file = journal.reader(place.lsn)
            self._pieces.append(_Piece(file, place.lsn - base, place.bytes))

    def run(self) -> bytes:
        """All of them, one after the other. Blocks on the disk; any thread. Raises StorageFailed."""
        parts: list[bytes | memoryview] = []
        for span in _spans(self._pieces):
            first = span[0].position
            data = span[0].file.read(first, span[-1].end - first)
            if len(span) == 1:
                parts.append(data)
            else:
                view = memoryview(data)
                parts += [view[piece.position - first : piece.end - first] for piece in span]
        return parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else b"".join(parts)


def _spans(pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
    """*pieces* in their order, those together that one system call reads."""
    span = [pieces[0]]
    for piece in pieces[1:]:
        last = span[-1]
        is_next = piece.file is last.file and last.end <= piece.position <= last.end + GAP_BYTES
        if is_next and piece.end - span[0].position <= SPAN_BYTES_MAX:
            span.append(piece)
        else:
            yield span
            span = [piece]
    yield span
