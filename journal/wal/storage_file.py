"""One preallocated file of fixed size: the protocol, and a file on a real disk."""

import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from journal.errors import StorageFailed
from journal.wal.open_file import OpenFile

IOV_MAX = 1024  # limit of Linux for one pwritev
Buffer = bytes | bytearray | memoryview


class FileReader(Protocol):
    """Reads a file; stays valid when the file is closed or deleted."""

    @property
    def size(self) -> int: ...

    def read(self, position: int, size: int) -> bytes:
        """Return bytes [position, position + size). Blocks on the disk; any thread. Raises UnreadableRange,
        StorageFailed."""

    def read_cached(self, position: int, size: int) -> bytes | bytearray | None:
        """Return the bytes if that needs no wait for the disk; else None: call `read` for the bytes or the error."""


class StorageFile(Protocol):
    """One preallocated file of fixed size."""

    @property
    def size(self) -> int: ...

    @property
    def is_named(self) -> bool:
        """False once it was deleted, or another file was put in its place. Any thread. Raises StorageFailed."""

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write the buffers contiguously from *position*. Handed to the OS on return; not durable."""

    def write_direct(self, position: int, data: Buffer) -> None:
        """Write *data* past the page cache, dropping cached pages there; durable after `sync`.

        Both position and length are multiples of BLOCK_BYTES. Raises StorageFailed.
        """

    def sync(self) -> None:
        """Make all earlier writes durable. Never call it again after it failed."""

    def reader(self) -> FileReader:
        """Return a reader. Raises ValueError once the file is closed."""

    def drop_cache(self) -> None:
        """Write dirty pages back, then drop cached ones: later reads show the disk's content.

        After a failed fsync Linux keeps the pages, readable and clean, though the disk never got them. Raises
        StorageFailed.
        """

    def next_data(self, position: int) -> int:
        """Return the first position at or after *position* that may hold other bytes than zeros; *size* if there is
        none."""

    def close(self) -> None:
        """Close the file. Idempotent."""


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise StorageFailed for an OSError."""
    try:
        yield
    except OSError as error:
        raise _failed(path, error) from error


def _failed(path: Path, error: OSError) -> StorageFailed:
    return StorageFailed(f"{path}: {error.strerror or error}")


class DirectoryFile:
    """A StorageFile on a real disk."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd
        self.size = os.fstat(fd).st_size
        self._file: OpenFile | None = OpenFile(path, fd, self.size)  # last: until here the caller closes *fd*

    @property
    def is_named(self) -> bool:
        file = self._file  # not closed meanwhile
        with translated(self._path):
            return file is None or file.links > 0

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        # What translated does, without making a context manager each time: these two are called with every commit.
        try:
            for start in range(0, len(buffers), IOV_MAX):
                position = self._write_some(position, buffers[start : start + IOV_MAX])
        except OSError as error:
            raise _failed(self._path, error) from error

    def _write_some(self, position: int, buffers: Sequence[Buffer]) -> int:
        wanted = sum(map(len, buffers))
        written = os.pwritev(self._fd, buffers, position)
        if written < wanted:  # a signal or a nearly full disk: write the rest in a loop, until done or failed
            rest = memoryview(b"".join(buffers))
            while written < wanted:
                written += os.pwrite(self._fd, rest[written:], position + written)
        return position + wanted

    def write_direct(self, position: int, data: Buffer) -> None:
        with translated(self._path), mmap.mmap(-1, len(data)) as aligned:
            aligned[:] = data
            try:
                fd = os.open(f"/proc/self/fd/{self._fd}", os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.write(position, [data])  # a file system in memory, say, which no disk fails
                return
            try:
                written = 0
                with memoryview(aligned) as view:
                    while written < len(data):
                        with view[written:] as rest:
                            written += os.pwritev(fd, [rest], position + written)
            finally:
                os.close(fd)

    def sync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise _failed(self._path, error) from error

    def reader(self) -> OpenFile:
        if self._file is None:
            raise ValueError(f"{self._path} is closed")
        return self._file

    def drop_cache(self) -> None:
        with translated(self._path):
            os.fdatasync(self._fd)
            drop_clean(self._fd)

    def next_data(self, position: int) -> int:
        if position >= self.size:
            return self.size
        with translated(self._path):
            try:
                return os.lseek(self._fd, position, os.SEEK_DATA)  # returns position if the file system has no holes
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return self.size  # only a hole from here on

    def close(self) -> None:
        self._fd = -1
        self._file = None  # closed with the last reader


def drop_clean(fd: int) -> None:
    """Drop clean pages from the page cache: after a failed fsync, the disk lacks some of them."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
