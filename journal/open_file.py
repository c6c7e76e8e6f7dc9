"""A file that stays open for as long as somebody reads from it: read by system call, in any thread."""

import errno
import os
from pathlib import Path

from journal.errors import StorageFailed

_NOT_TOLD = (errno.EOPNOTSUPP, errno.EINVAL)  # what file systems answer that cannot look without waiting


class OpenFile:
    """An open descriptor. The last reference to it closes it, as the last slice frees a mapping: a read in another
    thread never finds it closed, or another file under its number, whatever was deleted meanwhile."""

    __slots__ = ("_fd", "_look", "_path", "size")

    def __init__(self, path: Path, fd: int, size: int) -> None:
        self.size = size
        self._path = path
        self._fd = fd
        self._look = (bytearray(1),)

    def read(self, position: int, size: int) -> bytes:
        """The bytes [position, position + size). Blocks on the disk. Raises StorageFailed, also if there are fewer."""
        parts: list[bytes] = []
        end = position + size
        while position < end:
            try:
                part = os.pread(self._fd, end - position, position)
            except OSError as error:
                raise StorageFailed(f"{self._path}: {error.strerror or error}") from error
            if not part:
                raise StorageFailed(f"{self._path}: it ends at byte {position}, somebody cut it")
            parts.append(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def is_cached(self, position: int) -> bool:
        """Whether the byte at *position* can be had without waiting for the disk, which this never does; True where
        the system does not tell. False for what cannot be had at all: `read` says why. One caller at a time."""
        try:
            return os.preadv(self._fd, self._look, position, os.RWF_NOWAIT) == 1
        except OSError as error:
            return error.errno in _NOT_TOLD

    def __del__(self) -> None:
        os.close(self._fd)
