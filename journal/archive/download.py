"""Downloads a file of an archive, and takes it only if it is the one that the manifest lists."""

import hashlib
from collections.abc import Callable
from typing import Protocol

from journal.archive.keeper import ArchiveReader
from journal.errors import StorageFailed


class ObjectMissing(StorageFailed):
    """The archive lacks a file that its manifest lists."""


class ObjectDamaged(StorageFailed):
    """A file of the archive is not the one its manifest lists. Nothing of it was read."""


class ArchivedFile(Protocol):
    """A file that the manifest lists."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def sha256(self) -> str: ...


def download(place: ArchiveReader, wanted: ArchivedFile, write: Callable[[bytes], object]) -> None:
    """Give *wanted* to *write* in blocks, of which nothing counts until this returns.

    Never writes more than its size. Raises ObjectMissing, ObjectDamaged, StorageFailed if the place is away.
    """
    where = f"{place.name}/{wanted.name}"
    received = _Received(where, wanted.size, write)
    if not place.download(wanted.name, received.add):
        raise ObjectMissing(f"{where} is missing: put it back; what is left of the archive stays readable")
    received.check(wanted.sha256)


class _Received:
    """Bytes that a download has brought so far."""

    def __init__(self, where: str, size: int, write: Callable[[bytes], object]) -> None:
        self._where = where
        self._size = size
        self._write = write
        self._digest = hashlib.sha256()
        self._count = 0

    def add(self, block: bytes) -> None:
        self._count += len(block)
        if self._count > self._size:
            raise ObjectDamaged(f"{self._where} is longer than the {self._size} bytes that the manifest lists")
        self._digest.update(block)
        self._write(block)

    def check(self, sha256: str) -> None:
        """Raise ObjectDamaged if it is not what the manifest lists."""
        if (found := self._digest.hexdigest()) != sha256:
            raise ObjectDamaged(
                f"{self._where} is damaged: {self._count} bytes with SHA-256 {found}, the manifest lists {self._size} "
                f"with {sha256}: restore it from a copy"
            )
