"""An archive in a directory, on the same disk or another."""

import os
from pathlib import Path

from journal.errors import StorageFailed
from journal.wal.file_move import sync_directory
from journal.wal.storage import TMP_SUFFIX, Storage
from journal.wal.storage_file import StorageFile


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

    def replace(self, name: str, data: bytes) -> None:
        target, temporary = self._path / name, self._path / (name + TMP_SUFFIX)
        try:
            with temporary.open("wb") as writer:
                writer.write(data)
                writer.flush()
                os.fsync(writer.fileno())
            temporary.rename(target)
            sync_directory(self._path)
        except OSError as error:
            raise StorageFailed(f"{target}: not written: {error.strerror}") from error
