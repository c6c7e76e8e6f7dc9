"""Contents of an archive, as its manifest and the names of its files tell it. Immutable."""

from bisect import bisect_left, bisect_right

from journal.archive.keeper import ArchiveReader, refuse_lost_manifest
from journal.archive.manifest import NAME, ArchivedIndex, ArchivedSegment, ArchiveManifest, decode_archive_manifest
from journal.errors import InvalidContent, StorageFailed


class ArchiveView:
    """An archive. *begin*: LSN below which segments were removed by hand; 0: none were.

    It also begins at its first segment, where the journal's older ones are in another archive.
    """

    def __init__(self, manifest: ArchiveManifest, begin: int = 0) -> None:
        self.manifest = manifest
        self._segments = manifest.entries
        self._bases = [segment.base for segment in self._segments]
        self.begin = max([begin, *self._bases[:1]])
        self.indexes: tuple[ArchivedIndex, ...] = tuple(sorted(manifest.indexes, key=lambda each: each.cut))

    def segment_of(self, lsn: int) -> ArchivedSegment | None:
        """Return the segment with *lsn*; None: it is not listed."""
        at = bisect_right(self._bases, lsn) - 1
        return self._segments[at] if at >= 0 and lsn < self._segments[at].end else None

    def indexes_from(self, lsn: int) -> tuple[ArchivedIndex, ...]:
        """Return the indexes that tell of messages at or above *lsn*, by rising cuts."""
        return self.indexes[bisect_left(self.indexes, lsn, key=lambda each: each.cut) :]


def read_manifest(place: ArchiveReader) -> ArchiveManifest | None:
    """Read the manifest; None: there is none yet. Blocks. Raises StorageFailed."""
    data = place.read(NAME)
    if data is None:
        refuse_lost_manifest(place)
    try:
        return None if data is None else decode_archive_manifest(data)
    except InvalidContent as error:
        raise StorageFailed(f"{place.name}/{error}: restore it from a copy") from error


def kept_from(manifest: ArchiveManifest, place: ArchiveReader, names: set[str]) -> int:
    """Return the LSN from which on segments are kept, by the *names* that *place* lists; 0: all of them.

    Those before the first that is there were removed by hand; what is missing further on is damage. Blocks. Raises
    StorageFailed, also for a listing that is older than the manifest: readers would be moved past what is there.
    """
    segments = manifest.entries
    first = next((at for at, each in enumerate(segments) if each.name in names), len(segments))
    if first and place.has(segments[first - 1].name):
        raise StorageFailed(f"{place.name} does not list {segments[first - 1].name}, which is there: list it again")
    return 0 if not first else segments[first].base if first < len(segments) else manifest.end
