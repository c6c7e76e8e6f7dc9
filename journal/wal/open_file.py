"""A file that stays open while a reader needs it: read by system call, from any thread."""

import errno
import os
from pathlib import Path

from journal.errors import StorageFailed, UnreadableRange

BLOCK_BYTES = 4096  # granularity of unreadable ranges: a sector of a disk, a page of memory
FOLIO_BYTES_MAX = 2 * 1024 * 1024
_NOT_TOLD = (errno.EOPNOTSUPP, errno.EINVAL)  # from file systems that cannot read without waiting
# Errors of a read where the disk fails, or the file system's checksums do.
_UNREADABLE = (errno.EIO, errno.ENODATA, errno.EBADMSG, errno.EUCLEAN, errno.EREMOTEIO, errno.EILSEQ)


class OpenFile:
    """An open descriptor, closed with its last reference: a concurrent read never finds it closed, or another file
    under its number, even if the file is deleted."""

    __slots__ = ("_fd", "_path", "size")

    def __init__(self, path: Path, fd: int, size: int) -> None:
        self.size = size
        self._path = path
        self._fd = fd

    @property
    def links(self) -> int:
        """Number of its names in directories. Raises OSError."""
        return os.fstat(self._fd).st_nlink

    def read(self, position: int, size: int) -> bytes:
        """Return bytes [position, position + size). Blocks on the disk.

        Raises UnreadableRange, with the first unreadable block; StorageFailed, also if the file is shorter.
        """
        parts: list[bytes] = []
        end = position + size
        while position < end:
            try:
                part = os.pread(self._fd, end - position, position)
            except OSError as error:
                part = self._read_block(position, end, error)
            if not part:
                raise StorageFailed(f"{self._path}: it ends at byte {position}, it was truncated")
            parts.append(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_block(self, position: int, end: int, error: OSError) -> bytes:
        """Read the block at *position*, after a longer read failed with *error*, perhaps because of another block.

        The page cache reads, and fails, in folios of up to FOLIO_BYTES_MAX. So its pages there are dropped, and the
        block is read without read-ahead, in a folio of one block.
        """
        if error.errno not in _UNREADABLE:
            raise StorageFailed(f"{self._path}: {error.strerror or error}") from error
        start = position - position % BLOCK_BYTES
        stop = min(start + BLOCK_BYTES, end)
        try:
            folio = start - start % FOLIO_BYTES_MAX
            os.posix_fadvise(self._fd, folio, FOLIO_BYTES_MAX, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)
            return os.pread(self._fd, stop - position, position)
        except OSError as again:
            error = again
        finally:
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_NORMAL)
        size = min(BLOCK_BYTES, self.size - start)
        raise UnreadableRange(self._path, start, size, error.strerror or str(error)) from error

    def read_cached(self, position: int, size: int) -> bytes | bytearray | None:
        """Read without waiting for the disk; None if that is impossible, or fails. Reads anyway on file systems that
        cannot tell."""
        data = bytearray(size)
        try:
            count = os.preadv(self._fd, (data,), position, os.RWF_NOWAIT)
        except OSError as error:
            return self.read(position, size) if error.errno in _NOT_TOLD else None
        return data if count == size else None

    def __del__(self) -> None:
        os.close(self._fd)
