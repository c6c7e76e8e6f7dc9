"""The seam to the disk: with moving and open_file the only files of this package that call the operating system.

Everything above speaks to the `Storage` and `StorageFile` protocols, so that tests can fail every call in turn
and cut the power. Errors of the system arrive as StorageFailed, translated here, once.
"""

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from journal.errors import DirectoryInUse, StorageFailed
from journal.moving import move, sync_directory
from journal.open_file import OpenFile

IOV_MAX = 1024  # what Linux takes in one pwritev
MIB = 1024 * 1024
PREPARED_SUFFIX = ".tmp"  # of a file that has not got its name yet; never read
# Zeros that wait for the disk at once while a file is warmed: all of it in one fsync would hold up the writer's.
WARM_BYTES = 4 * MIB
Buffer = bytes | bytearray | memoryview


class FileReader(Protocol):
    """Reads a file by system call, not through memory; stays good when the file is closed, and deleted."""

    @property
    def size(self) -> int: ...

    def read(self, position: int, size: int) -> bytes:
        """The bytes [position, position + size). Blocks on the disk; any thread. Raises StorageFailed."""

    def is_cached(self, position: int) -> bool:
        """Whether that byte can be had without waiting for the disk, which this never does. One caller at a time."""


class StorageFile(Protocol):
    """One preallocated file of fixed size."""

    @property
    def size(self) -> int: ...

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write the buffers one after the other from *position*. The OS has them on return; not durable."""

    def sync(self) -> None:
        """Everything written before is durable on return. Never call it again after it failed."""

    def view(self) -> memoryview:
        """The file's bytes, read-only, showing later writes too. Valid until close."""

    def reader(self) -> FileReader:
        """Another way to read it: one that a page fault cannot stall. Raises ValueError once it is closed."""

    def release(self) -> None:
        """Let go of the memory that reading took. What is in the view stays readable; not after close."""

    def next_data(self, position: int) -> int:
        """The first position from *position* on that may hold anything but zeros; *size* if there is none."""

    def close(self) -> None:
        """Idempotent."""


class Storage(Protocol):
    """One directory."""

    @property
    def path(self) -> str:
        """For messages."""

    def names(self) -> list[str]:
        """Names of the files in it, sorted."""

    def create(self, name: str, size: int, head: bytes) -> StorageFile:
        """A new file of *size* zero bytes that begins with *head*; file and name are durable on return."""

    def prepare(self, name: str, size: int, head: bytes, is_hurried: Callable[[], bool]) -> StorageFile:
        """Make what `create` makes ahead of need, under a name that says so; `publish` gives it its own.

        Its zeros are written out, so that later writes change nothing but bytes. That takes a while: it asks
        *is_hurried* now and then, and leaves the rest allocated and unwritten once that is so. Any thread.
        """

    def publish(self, name: str) -> None:
        """Give the file that `prepare` made its name; durable on return."""

    def open(self, name: str, *, writable: bool) -> StorageFile: ...

    def read(self, name: str) -> bytes: ...

    def replace(self, name: str, data: Buffer) -> None:
        """Make *name* hold *data*: all of it or, after a crash, what it held before. Durable on return."""

    def remove(self, name: str) -> None:
        """Durable on return."""

    def archive(self, name: str, directory: str) -> None:
        """Move the file to *directory*, which may be on another disk; durable on return.

        Repeating one that a crash cut short finishes it. Raises StorageFailed, also when another file has the name.
        """


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _failed(path, error) from error


def _failed(path: Path, error: OSError) -> StorageFailed:
    return StorageFailed(f"{path}: {error.strerror or error}")


class MappedFile:
    """A StorageFile on disk: written with pwritev, read through one shared mapping."""

    def __init__(self, path: Path, fd: int, *, writable: bool) -> None:
        self._path = path
        self._fd = fd
        self._writable = writable
        self.size = os.fstat(fd).st_size
        # An empty file cannot be mapped; that it is no segment is for the reader to say.
        self._map = mmap.mmap(fd, self.size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED) if self.size else None
        self._view = memoryview(self._map or b"")
        self._file: OpenFile | None = OpenFile(path, fd, self.size)  # last: until here the caller closes *fd*

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        # What _translated does, without making a context manager each time: these two are called with every commit.
        try:
            for start in range(0, len(buffers), IOV_MAX):
                position = self._write_some(position, buffers[start : start + IOV_MAX])
        except OSError as error:
            raise _failed(self._path, error) from error

    def _write_some(self, position: int, buffers: Sequence[Buffer]) -> int:
        wanted = sum(map(len, buffers))
        written = os.pwritev(self._fd, buffers, position)
        if written < wanted:  # a signal or a nearly full disk: the rest the slow way, until it fits or fails
            rest = memoryview(b"".join(buffers))
            while written < wanted:
                written += os.pwrite(self._fd, rest[written:], position + written)
        return position + wanted

    def sync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise _failed(self._path, error) from error

    def view(self) -> memoryview:
        return self._view

    def reader(self) -> OpenFile:
        if self._file is None:
            raise ValueError(f"{self._path} is closed")
        return self._file

    def release(self) -> None:
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)  # of a file's shared mapping: the page cache still has the bytes

    def next_data(self, position: int) -> int:
        if position >= self.size:
            return self.size
        with _translated(self._path):
            try:
                return os.lseek(self._fd, position, os.SEEK_DATA)  # without holes to tell of, it answers position
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return self.size  # only a hole from here on

    def close(self) -> None:
        if self._fd < 0:
            return
        self._view.release()
        if self._map is not None:
            with suppress(BufferError):  # an answer still being sent pins the mapping; the last slice frees it
                self._map.close()
        self._fd = -1
        self._file = None  # which closes it, once nobody reads from it


class DirectoryStorage:
    """A Storage on a real directory, held by one process at a time."""

    def __init__(self, path: Path, lock_fd: int | None) -> None:
        self._path = path
        self._lock_fd = lock_fd

    @property
    def path(self) -> str:
        return str(self._path)

    @classmethod
    def open_for_writing(cls, path: Path) -> "DirectoryStorage":
        """Create the directory if need be and lock it. Raises DirectoryInUse, StorageFailed."""
        with _translated(path):
            path.mkdir(parents=True, exist_ok=True)
            fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise DirectoryInUse(
                f"{path} is in use by another process: stop that broker first, or give this one its own directory"
            ) from error
        return cls(path, fd)

    @classmethod
    def open_for_reading(cls, path: Path) -> "DirectoryStorage":
        """For tools that look at a directory, live or dead: no lock, no change. Raises StorageFailed."""
        if not path.is_dir():
            raise StorageFailed(f"{path}: not a directory: name the data directory of a broker")
        return cls(path, None)

    def is_held(self) -> bool:
        """Does a process hold the directory for writing? Only looks; False too where Linux does not tell."""
        try:
            lock = (self._path / "lock").stat()
            held = Path("/proc/locks").read_text(encoding="ascii")
        except FileNotFoundError:
            return False
        file = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"
        return any("FLOCK" in line and file in line.split() for line in held.splitlines())

    def names(self) -> list[str]:
        with _translated(self._path):
            return sorted(entry.name for entry in os.scandir(self._path) if entry.is_file())

    def create(self, name: str, size: int, head: bytes) -> MappedFile:
        file = self.prepare(name, size, head, lambda: True)
        try:
            self.publish(name)
        except StorageFailed:
            file.close()
            raise
        return file

    def prepare(self, name: str, size: int, head: bytes, is_hurried: Callable[[], bool]) -> MappedFile:
        path = self._path / name
        with _translated(path):
            fd = os.open(_prepared(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, size)
                _warm(fd, size, is_hurried)
                os.pwrite(fd, head, 0)
                os.fsync(fd)
                return MappedFile(path, fd, writable=True)
            except OSError:
                os.close(fd)
                raise

    def publish(self, name: str) -> None:
        path = self._path / name
        with _translated(path):
            _prepared(path).rename(path)
            self._sync_directory()

    def open(self, name: str, *, writable: bool) -> MappedFile:
        path = self._path / name
        with _translated(path):
            fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
            try:
                return MappedFile(path, fd, writable=writable)
            except (OSError, ValueError) as error:
                os.close(fd)
                raise StorageFailed(f"{path}: {error}") from error

    def read(self, name: str) -> bytes:
        path = self._path / name
        with _translated(path):
            return path.read_bytes()

    def replace(self, name: str, data: Buffer) -> None:
        path, temporary = self._path / name, self._path / f"{name}.tmp"
        with _translated(path):
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
            self._sync_directory()

    def remove(self, name: str) -> None:
        path = self._path / name
        with _translated(path):
            path.unlink()
            self._sync_directory()

    def archive(self, name: str, directory: str) -> None:
        move(self._path / name, Path(directory) / name)

    def _sync_directory(self) -> None:
        sync_directory(self._path)

    def close(self) -> None:
        """Let go of the lock. Idempotent."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


def _prepared(path: Path) -> Path:
    return path.with_name(path.name + PREPARED_SUFFIX)


def _warm(fd: int, size: int, is_hurried: Callable[[], bool]) -> None:
    """Write zeros over allocated blocks: the first write to each would otherwise change the file's extents too."""
    zeros = memoryview(bytes(WARM_BYTES))
    for position in range(0, size, WARM_BYTES):
        if is_hurried():
            return
        os.pwrite(fd, zeros[: min(WARM_BYTES, size - position)], position)
        os.fdatasync(fd)
