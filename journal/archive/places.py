"""Names of archives: a directory, or the URL of an object store. Stands alone: neither kind knows the other."""

from pathlib import Path

from journal.archive.directory import DirectoryPlace
from journal.archive.object_place import ObjectPlace


def is_url(archive: str) -> bool:
    """Return True if *archive* names an object store and not a directory."""
    return "://" in archive


def archive_place(archive: str) -> DirectoryPlace | ObjectPlace:
    """Return the place that *archive* names. Touches nothing yet."""
    return ObjectPlace(archive) if is_url(archive) else DirectoryPlace(Path(archive))
