"""An archive in an object store, by its URL: whatever fsspec and its drivers speak (s3, gs, abfs, webhdfs).

Credentials and endpoints are the drivers' own: the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL) or fsspec's
configuration files. A put must be atomic, as those of object stores are; for HDFS it is a rename.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from journal.archive.keeper import BLOCK_BYTES
from journal.errors import StorageFailed
from journal.wal.storage import TMP_SUFFIX, Storage
from journal.wal.storage_file import StorageFile

log = logging.getLogger(__name__)

REMEDY: Final = "pip install 'metaq-broker[object-storage]'"


class ObjectPlace:
    """The objects below *url*. One thread."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._opened: tuple[Any, str] | None = None  # fsspec's file system, and the path in it

    @property
    def name(self) -> str:
        return self._url

    def put(self, storage: Storage, name: str, file: StorageFile, sha256: str) -> None:
        """Upload, all or nothing, then read back and compare: what a store acknowledged is not yet what it has."""
        files, at = self._path(name)
        try:
            if self._digest(files, at) == sha256:
                return  # by an attempt that a crash, or a time limit, interrupted
            if _has(files, at):
                raise StorageFailed(f"{self._url}/{name} is there already and is not {storage.path}/{name}")
            reader = file.reader()
            with _writing(files, at) as writer:
                for position in range(0, file.size, BLOCK_BYTES):
                    writer.write(reader.read(position, min(BLOCK_BYTES, file.size - position)))
            if (stored := self._digest(files, at)) != sha256:
                raise StorageFailed(f"{self._url}/{name}: stored as {stored}, sent as {sha256}")
        except Exception as error:
            raise self._failed(name, error) from error

    def read(self, name: str) -> bytes | None:
        files, at = self._path(name)
        try:
            files.invalidate_cache()
            return bytes(files.cat_file(at)) if _has(files, at) else None
        except Exception as error:
            raise self._failed(name, error) from error

    def names(self) -> set[str]:
        files, at = self._path("")
        try:
            files.invalidate_cache()
            return {path.rpartition("/")[2] for path in files.ls(at.rstrip("/"), detail=False)}
        except FileNotFoundError:
            return set()
        except Exception as error:
            raise self._failed("", error) from error

    def has(self, name: str) -> bool:
        files, at = self._path(name)
        try:
            files.invalidate_cache()
            return _has(files, at)
        except Exception as error:
            raise self._failed(name, error) from error

    def download(self, name: str, write: Callable[[bytes], object]) -> bool:
        files, at = self._path(name)
        try:
            files.invalidate_cache()
            with files.open(at, "rb", block_size=BLOCK_BYTES, cache_type="readahead") as reader:
                while block := reader.read(BLOCK_BYTES):
                    write(block)
        except FileNotFoundError:
            return False
        except Exception as error:
            raise self._failed(name, error) from error
        return True

    def replace(self, name: str, data: bytes) -> None:
        files, at = self._path(name)
        try:
            with _writing(files, at) as writer:
                writer.write(data)
        except Exception as error:
            raise self._failed(name, error) from error
        if self.read(name) != data:
            raise StorageFailed(f"{self._url}/{name}: does not read back as it was written")

    def _path(self, name: str) -> tuple[Any, str]:
        if self._opened is None:
            try:
                from fsspec.core import url_to_fs

                self._opened = url_to_fs(self._url, skip_instance_cache=True)
            except ImportError as error:
                raise StorageFailed(f"{self._url}: {error}: {REMEDY}") from error
            except Exception as error:
                raise self._failed("", error) from error
        files, root = self._opened
        return files, f"{root}/{name}"

    def _digest(self, files: Any, at: str) -> str | None:
        """Return the SHA-256 of an object as the store has it; None if there is none."""
        files.invalidate_cache()
        if not _has(files, at):
            return None
        found = hashlib.sha256()
        with files.open(at, "rb", block_size=BLOCK_BYTES, cache_type="readahead") as reader:
            while block := reader.read(BLOCK_BYTES):
                found.update(block)
        return found.hexdigest()

    def _failed(self, name: str, error: Exception) -> StorageFailed:
        """Drivers raise errors of their own, of any class."""
        if isinstance(error, StorageFailed):
            return error
        return StorageFailed(f"{self._url}/{name}: {type(error).__name__}: {error}")


def _has(files: Any, at: str) -> bool:
    """Return whether the store has an object. The `exists` of some drivers, as WebHDFS's, says no of whatever fails: a
    store that is away for a moment would have no manifest, and be given a new one."""
    try:
        files.info(at)
    except FileNotFoundError:
        return False
    return True


@contextmanager
def _writing(files: Any, at: str) -> Iterator[Any]:
    """Open a writer; the object has its name once the block has ended without an error, and is whole then."""
    if "webhdfs" not in files.protocol:
        with files.transaction, files.open(at, "wb", block_size=2 * BLOCK_BYTES) as writer:
            try:
                yield writer
            except BaseException:
                if "abfs" in files.protocol:
                    writer.closed = True  # Azure's driver knows no transactions: to close it would store what is there
                raise
        return
    # HDFS shows what is half written; of a transaction fsspec makes a rename that replaces nothing, and says nothing.
    with files.open(f"{at}{TMP_SUFFIX}", "wb", block_size=2 * BLOCK_BYTES) as writer:
        yield writer
    files._call("RENAME", method="put", path=f"{at}{TMP_SUFFIX}", destination=at, renameoptions="OVERWRITE")
