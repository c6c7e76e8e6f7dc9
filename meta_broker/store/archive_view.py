"""What an archive holds, as its manifest and the names of its files tell it. Immutable."""

from bisect import bisect_left, bisect_right

from journal.archive.keeper import ArchiveReader
from journal.archive.manifest import NAME, ArchivedIndex, ArchivedSegment, ArchiveManifest, decode_archive_manifest
from journal.errors import InvalidContent, StorageFailed
from journal.wal.segments import JournalIdentity


class ArchiveView:
    """An archive. *begin*: LSN below which segments were removed by hand; 0: none were."""

    def __init__(self, manifest: ArchiveManifest, begin: int = 0) -> None:
        self.manifest = manifest
        self.begin = begin
        self._segments = manifest.entries
        self._bases = [segment.base for segment in self._segments]
        self.indexes: tuple[ArchivedIndex, ...] = tuple(sorted(manifest.indexes, key=lambda each: each.cut))

    def segment_of(self, lsn: int) -> ArchivedSegment | None:
        """Return the segment with *lsn*; None: it is not listed."""
        at = bisect_right(self._bases, lsn) - 1
        return self._segments[at] if at >= 0 and lsn < self._segments[at].end else None

    def indexes_from(self, lsn: int) -> tuple[ArchivedIndex, ...]:
        """Return the indexes that tell of messages at or above *lsn*, by rising cuts."""
        return self.indexes[bisect_left(self.indexes, lsn, key=lambda each: each.cut) :]


def read_view(place: ArchiveReader, identity: JournalIdentity) -> ArchiveView:
    """Read manifest and names. Blocks. Raises StorageFailed, also for another journal's archive."""
    data = place.read(NAME)
    if data is None:
        return ArchiveView(ArchiveManifest(identity))
    try:
        manifest = decode_archive_manifest(data)
    except InvalidContent as error:
        raise StorageFailed(f"{place.name}/{error}: restore it from a copy") from error
    if manifest.identity != identity:
        raise StorageFailed(f"{place.name} is the archive of {manifest.identity}: give every broker one of its own")
    names, segments = place.names(), manifest.entries
    # What is missing behind the first one that is there is damage, and no removal.
    first = next((at for at, each in enumerate(segments) if each.name in names), len(segments))
    begin = 0 if not first else segments[first].base if first < len(segments) else manifest.end
    return ArchiveView(manifest, begin)
