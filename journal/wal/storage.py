"""The seam to the disk: with storage_file, open_file and file_move, the only files here that call the operating system.

All other files use the protocols `Storage` and `StorageFile`, so that tests can fail every call in turn and cut the
power. System errors become StorageFailed here.
"""

import errno
import fcntl
import logging
import os
import pwd
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Protocol

from journal.errors import DirectoryInUse, DirectoryOfAnother, StorageFailed
from journal.wal.file_move import copy, sync_directory, unshare
from journal.wal.storage_file import Buffer, DirectoryFile, StorageFile, drop_clean, translated

log = logging.getLogger(__name__)

MIB = 1024 * 1024
BLOCK_BYTES = 4096  # unit of direct writes that every disk and file system accepts
LOCK_TRIES, LOCK_PAUSE_S = 5, 0.01
_NO_LOCKS = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)  # of a file system that has none
TMP_SUFFIX = ".tmp"  # of a file not renamed into place yet; never read
# Zeros written per fsync while a file is prezeroed: one fsync of the whole file would delay the writer's.
PREZERO_BYTES = 4 * MIB


class Storage(Protocol):
    """One directory."""

    @property
    def path(self) -> str:
        """Path of the directory, for messages."""

    def names(self) -> list[str]:
        """Return the names of the files in it, sorted."""

    def sync_all(self) -> None:
        """Make the directory's content durable: names, bytes, and the directory's name, whatever process wrote them.
        Does not store what an earlier fsync failed to store."""

    def create(self, name: str, size: int, head: bytes) -> StorageFile:
        """Make a file of *size* zero bytes that begins with *head*; file and name are durable on return."""

    def preallocate(self, name: str, size: int, head: bytes, skip_prezero: Callable[[], bool]) -> StorageFile:
        """Make a file like `create`, ahead of need and under a temporary name; `rename_into_place` renames it.

        Writes its zeros out, so that later writes change only bytes. That takes long: it calls *skip_prezero* now and
        then, and once that is true leaves the rest allocated and unwritten. Any thread.
        """

    def rename_into_place(self, name: str) -> None:
        """Rename a file of `preallocate` to its name, replacing another file; durable on return."""

    def link(self, name: str, as_name: str) -> None:
        """Give the file *name* a second name, which it may already have; durable on return. Raises StorageFailed, also
        if another file has that name."""

    def unshare(self, name: str) -> bool:
        """Make *name* a file of its own, if it is linked elsewhere; durable on return. True: open it again."""

    def open(self, name: str, *, writable: bool) -> StorageFile: ...

    def read(self, name: str) -> bytes:
        """Return the whole file, written by `replace`, which renames it only once the disk has it."""

    def replace(self, name: str, data: Buffer) -> None:
        """Make *name* hold *data*: all of it or, after a crash, its former content. Durable on return."""

    def remove(self, name: str) -> None:
        """Delete the file, if it is there; durable on return."""

    def copy_to(self, name: str, directory: str) -> None:
        """Copy the file to *directory*, or link it there on the same disk; durable on return.

        Repeating it finishes a copy that a crash interrupted. Raises StorageFailed, also if another file has the name.
        """

    def close(self) -> None:
        """Let another process use the directory. Idempotent."""


class SegmentArchive(Protocol):
    """Keeps segments that the journal drops. See journal/archive/keeper.py."""

    def kept(self, storage: Storage, name: str, file: StorageFile) -> AbstractContextManager[None]:
        """Keep the segment *name* of *storage*, durably; the block may drop it. Raises StorageFailed: it must stay."""


class DirectoryStorage:
    """A Storage on a real directory, locked by one process at a time.

    Uses the directory's descriptor, not its path: a directory that is moved stays this storage's, and a new one at the
    path is another.
    """

    def __init__(self, path: Path, fd: int | None) -> None:
        self._path = path
        self._fd = fd  # of the directory, locked; None for a reader
        # A reader of an unlocked directory diagnoses a disk: it must not see pages that only memory has.
        self._distrusts_cache = fd is None and not self.is_held()

    @property
    def path(self) -> str:
        return str(self._path)

    @classmethod
    def open_for_writing(cls, path: Path) -> "DirectoryStorage":
        """Lock the directory, making it, for this user alone, if missing. Raises DirectoryInUse, DirectoryOfAnother,
        StorageFailed."""
        with translated(path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            _check_owner(path, status.st_uid)
            if status.st_mode & 0o022:
                log.warning(
                    "others may change this directory path=%s mode=%o: chmod go-w it", path, status.st_mode & 0o777
                )
            _lock(fd)
        except DirectoryOfAnother:
            os.close(fd)
            raise
        except BlockingIOError as error:
            os.close(fd)
            raise DirectoryInUse(
                f"{path} is in use by another process: stop that broker first, or give this one its own directory"
            ) from error
        except OSError as error:
            os.close(fd)
            raise StorageFailed(f"{path}: cannot be locked: {error.strerror or error}") from error
        return cls(path, fd)

    @classmethod
    def open_for_reading(cls, path: Path) -> "DirectoryStorage":
        """Open a directory, live or dead, for tools: no lock, no change. Raises StorageFailed."""
        if not path.is_dir():
            raise StorageFailed(f"{path}: not a directory: name the data directory of a broker")
        return cls(path, None)

    def is_held(self) -> bool:
        """Return True if a process has the directory locked, also one of another container. Takes a shared lock for a
        moment: /proc/locks shows no process of another PID namespace. Raises StorageFailed."""
        with translated(self._path):
            try:
                fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                return False  # nobody can hold it
            finally:
                os.close(fd)
        return False

    def names(self) -> list[str]:
        with translated(self._path):
            if self._fd is None:
                return _file_names(self._path)
            # Another descriptor: two scans of one would share its position.
            fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)
            try:
                return _file_names(fd)
            finally:
                os.close(fd)

    def sync_all(self) -> None:
        for name in self.names():
            with translated(self._path / name):
                fd = self._open(name, os.O_RDONLY)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
        with translated(self._path):
            self._sync_directory()
            _sync_ancestors(self._path)

    def create(self, name: str, size: int, head: bytes) -> DirectoryFile:
        file = self.preallocate(name, size, head, lambda: True)
        try:
            self.rename_into_place(name)
        except StorageFailed:
            file.close()
            raise
        return file

    def preallocate(self, name: str, size: int, head: bytes, skip_prezero: Callable[[], bool]) -> DirectoryFile:
        with translated(self._path / name):
            fd = self._open(name + TMP_SUFFIX, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            try:
                os.posix_fallocate(fd, 0, size)
                _prezero(fd, size, skip_prezero)
                os.pwrite(fd, head, 0)
                os.fsync(fd)
                return DirectoryFile(self._path / name, fd)
            except OSError:
                os.close(fd)
                raise

    def rename_into_place(self, name: str) -> None:
        with translated(self._path / name):
            self._rename(name + TMP_SUFFIX, name)
            self._sync_directory()

    def link(self, name: str, as_name: str) -> None:
        source, target = self._place(name), self._place(as_name)
        with translated(self._path / as_name):
            try:
                os.link(source, target, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            except FileExistsError as error:
                if not os.path.samestat(os.stat(source, dir_fd=self._fd), os.stat(target, dir_fd=self._fd)):
                    raise StorageFailed(
                        f"{self._path / as_name}: it is another file already: move it away first"
                    ) from error
            self._sync_directory()

    def unshare(self, name: str) -> bool:
        with translated(self._path / name):
            return unshare(self._here / name)

    def open(self, name: str, *, writable: bool) -> DirectoryFile:
        path = self._path / name
        with translated(path):
            fd = self._open(name, os.O_RDWR if writable else os.O_RDONLY)
            try:
                if self._distrusts_cache:
                    drop_clean(fd)
                return DirectoryFile(path, fd)
            except OSError:
                os.close(fd)
                raise

    def read(self, name: str) -> bytes:
        with translated(self._path / name), os.fdopen(self._open(name, os.O_RDONLY), "rb") as file:
            return file.read()

    def replace(self, name: str, data: Buffer) -> None:
        temporary = f"{name}.tmp"
        with translated(self._path / name):
            with os.fdopen(self._open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            self._rename(temporary, name)
            self._sync_directory()

    def remove(self, name: str) -> None:
        with translated(self._path / name):
            with suppress(FileNotFoundError):
                os.unlink(self._place(name), dir_fd=self._fd)
            self._sync_directory()

    def copy_to(self, name: str, directory: str) -> None:
        copy(self._here / name, Path(directory) / name, self._path / name)

    @property
    def _here(self) -> Path:
        """The directory by its descriptor, too: the path may hold another process's by now."""
        return self._path if self._fd is None else Path(f"/proc/self/fd/{self._fd}")

    def _place(self, name: str) -> str:
        return name if self._fd is not None else str(self._path / name)

    def _open(self, name: str, flags: int) -> int:
        return os.open(self._place(name), flags | os.O_CLOEXEC, 0o600, dir_fd=self._fd)

    def _rename(self, source: str, target: str) -> None:
        os.rename(self._place(source), self._place(target), src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def _sync_directory(self) -> None:
        if self._fd is not None:
            os.fsync(self._fd)
        else:
            sync_directory(self._path)

    def close(self) -> None:
        """Release the lock. Idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _check_owner(path: Path, owner: int) -> None:
    """Check that root is not at work for another user. Others are kept out by the permissions. Raises
    DirectoryOfAnother."""
    if os.geteuid() == 0 != owner:
        raise DirectoryOfAnother(
            f"{path} belongs to the user {_name_of(owner)}, who could not read what root writes there: run this as "
            f"that user, e.g. with `sudo -u '{_name_of(owner)}'`"
        )


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"#{user}"


def _lock(fd: int) -> None:
    """Lock a directory, after those who look whether it is locked. Raises BlockingIOError if it is, OSError."""
    for left in reversed(range(LOCK_TRIES)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not left:
                raise
            time.sleep(LOCK_PAUSE_S)
        else:
            return


def _file_names(directory: Path | int) -> list[str]:
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries if entry.is_file())


def _sync_ancestors(path: Path) -> None:
    """Make the names that lead to *path* durable, up to its mount point: a killed start may have made them."""
    device = path.stat().st_dev
    for parent in path.resolve().parents:
        if parent.stat().st_dev != device:
            return
        with suppress(PermissionError):  # made by another user, hence without a name made here
            sync_directory(parent)


def _prezero(fd: int, size: int, skip_prezero: Callable[[], bool]) -> None:
    """Write zeros over allocated blocks: otherwise the first write to each would also change the file's extents."""
    zeros = memoryview(bytes(PREZERO_BYTES))
    for position in range(0, size, PREZERO_BYTES):
        if skip_prezero():
            return
        os.pwrite(fd, zeros[: min(PREZERO_BYTES, size - position)], position)
        os.fdatasync(fd)
