"""Places of a journal's segments: a directory, or the URL of an archive in an object store.

A segment of an object store is downloaded whole, by the task that reads it, to a temporary file without a name, and is
read only if it is the one that the manifest lists.
"""

import os
import tempfile
from pathlib import Path

from journal.archive.download import ObjectDamaged, ObjectMissing, download
from journal.archive.keeper import ArchiveReader
from journal.archive.manifest import NAME, ArchivedSegment, ArchiveManifest
from journal.archive.places import archive_place, is_url
from journal.archive.view import kept_from, read_manifest
from journal.errors import StorageFailed
from journal.wal.segments import SEGMENT_BYTES_MAX, JournalIdentity, segment_name
from journal.wal.storage import DirectoryStorage
from journal.wal.storage_file import DirectoryFile, StorageFile
from spark_jobs.source.directory import LSN_MAX, MissingRange, SegmentSlice, missing_slice, plan_directory

JournalLocation = Path | str  # a directory, or a URL


def location_of(text: str) -> JournalLocation:
    """Return the place that *text* names."""
    return text.rstrip("/") if is_url(text) else Path(text).absolute()


def plan(place: JournalLocation) -> list[SegmentSlice]:
    """Return slices of the journal in *place*, in LSN order without gaps: a missing segment is a slice without a file.

    Raises StorageFailed if *place* holds no journal, ForeignJournal for another version's.
    """
    return plan_directory(place) if isinstance(place, Path) else _plan_archive(place)


def open_segment(place: JournalLocation, segment: SegmentSlice) -> StorageFile:
    """Open the file of *segment*, which has one. Blocks. Raises StorageFailed: read again; of an archive ObjectMissing,
    ObjectDamaged."""
    if isinstance(place, Path):
        name = segment_name(segment.base)
        file = DirectoryStorage.open_for_reading(place).open(name, writable=False)
        if file.size < segment.size:
            file.close()
            raise StorageFailed(f"{place / name}: shrank while it was read: read again")
        return file
    wanted = ArchivedSegment(segment.base, segment.size, segment.sha256, "")
    with tempfile.TemporaryFile() as temporary:
        try:
            download(archive_place(place), wanted, temporary.write)
            temporary.flush()
            return DirectoryFile(Path(f"{place}/{wanted.name}"), os.dup(temporary.fileno()))
        except OSError as error:
            raise StorageFailed(f"{tempfile.gettempdir()}: {error.strerror}: no room for {wanted.name}") from error


def lost_range(segment: SegmentSlice, error: ObjectMissing | ObjectDamaged) -> MissingRange:
    """Return what *error* takes away: all of the segment."""
    return MissingRange(segment.base, segment.end, str(error))


def owner_of(url: str) -> JournalIdentity:
    """Return whose journal the archive at *url* holds. Raises StorageFailed."""
    return _manifest(archive_place(url), url).identity


def _manifest(place: ArchiveReader, url: str) -> ArchiveManifest:
    if (manifest := read_manifest(place)) is None:
        raise StorageFailed(f"{url} holds no {NAME}: name the archive of a broker, as in its [retention] archive")
    return manifest


def _plan_archive(url: str) -> list[SegmentSlice]:
    place = archive_place(url)
    manifest = _manifest(place, url)
    names = place.names()
    begin = kept_from(manifest, place, names)
    slices: list[SegmentSlice] = []
    for each in manifest.entries:
        if each.base < begin:
            continue  # removed by hand
        if each.size > SEGMENT_BYTES_MAX or each.end > LSN_MAX:
            raise StorageFailed(f"{url}/{NAME} lists {each.name} with {each.size} bytes: no segment is so large")
        if slices and slices[-1].end < each.base:
            slices.append(missing_slice(slices[-1].end, each.base, "a segment is missing"))
        # None is the last one that was written: all of each was fsynced.
        if each.name in names:
            slices.append(SegmentSlice(each.base, each.end, each.size, False, sha256=each.sha256))
        else:
            lost = f"{each.name} is listed in {NAME}, and is not there"
            slices.append(missing_slice(each.base, each.end, lost))
    if not slices:
        raise StorageFailed(f"{url}: holds no segment: name an archive that has some")
    return slices
