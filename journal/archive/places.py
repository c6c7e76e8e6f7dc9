"""Places of archives: a directory, on the same disk or another, or what a URL of an object store names."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from journal.archive.object_place import ObjectPlace
from journal.errors import StorageFailed
from journal.wal.file_move import replace
from journal.wal.storage import Storage
from journal.wal.storage_file import StorageFile

BLOCK_BYTES: Final = 1024 * 1024


class DirectoryPlace:
    """A directory, made when it is first used."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def name(self) -> str:
        return str(self._path)

    def put(self, storage: Storage, name: str, file: StorageFile, sha256: str) -> None:
        del file, sha256  # the same bytes, by a link; or a copy that is fsynced
        storage.copy_to(name, self.name)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageFailed(f"{self._path / name}: {error.strerror}") from error

    def names(self) -> set[str]:
        try:
            return {entry.name for entry in self._path.iterdir()}
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise StorageFailed(f"{self._path}: {error.strerror}") from error

    def has(self, name: str) -> bool:
        return name in self.names()

    def download(self, name: str, write: Callable[[bytes], object]) -> bool:
        try:
            with (self._path / name).open("rb") as reader:
                while block := reader.read(BLOCK_BYTES):
                    write(block)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageFailed(f"{self._path / name}: {error.strerror}") from error
        return True

    def replace(self, name: str, data: bytes) -> None:
        try:
            replace(self._path / name, data)
        except OSError as error:
            raise StorageFailed(f"{self._path / name}: not written: {error.strerror}") from error


def is_url(archive: str) -> bool:
    """Return True if *archive* names an object store and not a directory."""
    return "://" in archive


def archive_place(archive: str) -> DirectoryPlace | ObjectPlace:
    """Return the place that *archive* names. Touches nothing yet."""
    return ObjectPlace(archive) if is_url(archive) else DirectoryPlace(Path(archive))
