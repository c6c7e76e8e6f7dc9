"""Stores a segment in an archive, then lists it in the manifest, and its index, before the journal drops it.

Each step may be repeated: a crash between two of them leaves a segment in both places, or stored and not listed, and
the next attempt goes on. A segment that is listed is stored.
"""

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from journal.archive.manifest import (
    INDEX_SUFFIX,
    NAME,
    ArchiveManifest,
    archived_index_name,
    decode_archive_manifest,
)
from journal.errors import InvalidContent, StorageFailed
from journal.wal.segments import JournalIdentity, read_header
from journal.wal.storage import Storage
from journal.wal.storage_file import StorageFile

log = logging.getLogger(__name__)

BLOCK_BYTES: Final = 4 * 1024 * 1024
REMEDY: Final = "restore it from a copy, or name a new place in [retention] archive"


class ArchivePlace(Protocol):
    """A directory or an object store. Methods block, and raise StorageFailed, with the place, if it is away."""

    @property
    def name(self) -> str:
        """Name of the place, for messages."""

    def put(self, storage: Storage, name: str, file: StorageFile, sha256: str) -> None:
        """Store the file *name* of *storage*; durable and verified on return. Repeatable. Raises StorageFailed, also
        if other content has the name."""

    def read(self, name: str) -> bytes | None:
        """Return a whole file; None if there is none."""

    def names(self) -> set[str]:
        """Return the names of all files; none, if the place does not exist."""

    def replace(self, name: str, data: bytes) -> None:
        """Make *name* hold *data*: all of it or, after a crash, its former content. Durable on return."""


class ArchiveReader(Protocol):
    """Reads from a directory or an object store. Methods block, for minutes if a store does not answer, and
    raise StorageFailed, with the place, if it is away."""

    @property
    def name(self) -> str:
        """Name of the place, for messages."""

    def read(self, name: str) -> bytes | None:
        """Return a whole file; None if there is none."""

    def names(self) -> set[str]:
        """Return the names of all files; none, if the place does not exist."""

    def has(self, name: str) -> bool:
        """Return whether there is a file of that name, whatever a listing says."""

    def download(self, name: str, write: Callable[[bytes], object]) -> bool:
        """Give a file to *write*, in blocks. False: there is none."""


class IndexSource(Protocol):
    """The archived indexes that are not in the archive yet."""

    def waiting(self) -> list[tuple[Storage, str, int]]:
        """Return them in the order of their cuts: storage, file name and cut. Listed ones may be among them."""

    def listed(self, manifest: ArchiveManifest) -> None:
        """Record that the archive holds what *manifest* lists, durably. Any thread."""


class SegmentKeeper:
    """Keeps the segments of one journal in one place. One thread at a time, except `close`."""

    def __init__(
        self, place: ArchivePlace, refusal: Callable[[], str | None] = lambda: None, indexes: IndexSource | None = None
    ) -> None:
        """*refusal*: why no segment may be dropped now; asked before each is stored, and again before it goes.
        *indexes*: of what is dropped, stored and listed before the first segment goes."""
        self._place = place
        self._refusal = refusal
        self._indexes = indexes
        self._manifest: ArchiveManifest | None = None
        self._stored: bytes | None = None  # its bytes in the place
        self._using_storage = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        """Stop: no segment is dropped from now on, though an upload may still run. Returns at once; any thread."""
        with self._using_storage:
            self._is_closed = True

    @contextmanager
    def kept(self, storage: Storage, name: str, file: StorageFile) -> Iterator[None]:
        """Store and list the segment *name* of *storage*, durably; the block may drop it. Raises StorageFailed."""
        try:
            header = read_header(file, f"{storage.path}/{name}")
        except InvalidContent as error:
            raise StorageFailed(f"not archived: {error}") from error
        self._check(storage, name)
        base = header.base
        manifest = self._read_manifest(header.identity)
        sha256 = digest(file)
        listed = manifest.find(base)
        if listed is not None and (listed.size, listed.sha256) != (file.size, sha256):
            raise StorageFailed(f"{self._place.name}/{NAME} lists another {name}: give every broker its own archive")
        self._place.put(storage, name, file, sha256)
        if listed is None:
            try:
                manifest = manifest.with_segment(base, file.size, sha256)
            except ValueError as error:
                raise StorageFailed(f"{self._place.name}: {error}: give every broker its own archive") from error
            self._write_manifest(manifest)
        if self._indexes is not None:
            # Behind the segment: an archive that belongs to another history has refused that.
            self._keep_indexes(manifest, self._indexes)
        with self._using_storage:
            self._check(storage, name)
            yield

    def _keep_indexes(self, manifest: ArchiveManifest, indexes: IndexSource) -> None:
        known = {entry.name for entry in manifest.indexes}
        for storage, name, cut in indexes.waiting():
            if name in known:
                continue
            file = storage.open(name, writable=False)
            try:
                sha256 = digest(file)
                if archived_index_name(cut, sha256) != name:
                    raise StorageFailed(f"{storage.path}/{name}: does not read back as it was written")
                self._place.put(storage, name, file, sha256)
                manifest = manifest.with_index(cut, file.size, sha256)
            finally:
                file.close()
            self._write_manifest(manifest)
        indexes.listed(manifest)

    def _write_manifest(self, manifest: ArchiveManifest) -> None:
        """Replace the manifest, unless somebody else has meanwhile. Checked, not locked: places have no locks."""
        data = manifest.encode()
        found = self._place.read(NAME)
        if found == data:  # written by an attempt whose answer was lost
            self._manifest, self._stored = manifest, data
            return
        if found != self._stored:
            self._manifest = None  # read again with the next attempt
            raise StorageFailed(
                f"{self._place.name}/{NAME} was changed since it was read: stop the other broker that archives there"
            )
        self._place.replace(NAME, data)
        self._manifest, self._stored = manifest, data

    def _check(self, storage: Storage, name: str) -> None:
        reason = "the broker stops" if self._is_closed else self._refusal()
        if reason is not None:
            raise StorageFailed(f"{storage.path}/{name}: kept, {reason}")

    def _read_manifest(self, identity: JournalIdentity) -> ArchiveManifest:
        if self._manifest is None:
            data = self._stored = self._place.read(NAME)
            if data is None:
                refuse_lost_manifest(self._place)
            try:
                self._manifest = ArchiveManifest(identity) if data is None else decode_archive_manifest(data)
            except InvalidContent as error:
                raise StorageFailed(f"{self._place.name}/{error}: {REMEDY}") from error
        if self._manifest.identity != identity:
            owner, self._manifest = self._manifest.identity, None
            raise StorageFailed(f"{self._place.name} is the archive of {owner}: give every broker one of its own")
        return self._manifest


def refuse_lost_manifest(place: ArchivePlace | ArchiveReader) -> None:
    """Raise StorageFailed if *place*, which has no manifest, had one: an archived index comes after it. A new manifest
    would begin behind everything that is archived, and readers with it."""
    if any(name.endswith(INDEX_SUFFIX) for name in place.names()):
        raise StorageFailed(f"{place.name} has lost its {NAME}: {REMEDY}")


def digest(file: StorageFile) -> str:
    """Return the SHA-256 of a segment's file. Blocks on the disk. Raises StorageFailed."""
    found, reader = hashlib.sha256(), file.reader()
    for position in range(0, file.size, BLOCK_BYTES):
        found.update(reader.read(position, min(BLOCK_BYTES, file.size - position)))
    return found.hexdigest()
