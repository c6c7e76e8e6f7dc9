"""The directory of a broker in memory: what the journal's Storage promises, for as long as the object lives."""

import mmap
from collections.abc import Callable, Sequence

from journal.errors import StorageFailed
from journal.wal.storage import TMP_SUFFIX
from journal.wal.storage_file import Buffer


class MemoryFile:
    """One file, and its reader. Any thread."""

    is_named = True

    def __init__(self, content: mmap.mmap | bytearray, end: int) -> None:
        """*end*: behind it are zeros alone."""
        self.size = len(content)
        self._content = content
        self._end = end

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            end = position + len(buffer)
            self._content[position:end] = bytes(buffer)
            position = end
        self._end = max(self._end, position)

    def write_direct(self, position: int, data: Buffer) -> None:
        self.write(position, [data])

    def sync(self) -> None:
        """Do nothing: every write is there."""

    def drop_cache(self) -> None:
        """Do nothing: there is none."""

    def reader(self) -> "MemoryFile":
        return self

    def read(self, position: int, size: int) -> bytes:
        return bytes(self._content[position : position + size])

    def read_cached(self, position: int, size: int) -> bytes:
        return self.read(position, size)

    def next_data(self, position: int) -> int:
        return position if position < self._end else self.size

    def close(self) -> None:
        """Do nothing: the directory keeps it."""


class MemoryStorage:
    """One directory. Implements Storage; its methods never wait, and fail only for a name or for want of memory."""

    path = "memory"

    def __init__(self) -> None:
        self._files: dict[str, MemoryFile] = {}

    def names(self) -> list[str]:
        return sorted(self._files)

    def sync_all(self) -> None:
        """Do nothing: everything is there."""

    def create(self, name: str, size: int, head: bytes) -> MemoryFile:
        try:
            content = mmap.mmap(-1, size)  # takes memory only for what is written
        except OSError as error:
            raise StorageFailed(f"{self.path}/{name}: {error.strerror}") from error
        content[: len(head)] = head
        file = self._files[name] = MemoryFile(content, len(head))
        return file

    def preallocate(self, name: str, size: int, head: bytes, skip_prezero: Callable[[], bool]) -> MemoryFile:
        del skip_prezero  # there are no extents to change
        return self.create(name + TMP_SUFFIX, size, head)

    def rename_into_place(self, name: str) -> None:
        self._files[name] = self._find(name + TMP_SUFFIX)
        del self._files[name + TMP_SUFFIX]

    def link(self, name: str, as_name: str) -> None:
        if self._files.setdefault(as_name, file := self._find(name)) is not file:
            raise StorageFailed(f"{self.path}/{as_name}: it is another file already")

    def unshare(self, name: str) -> bool:
        del name
        return False

    def open(self, name: str, *, writable: bool) -> MemoryFile:
        del writable
        return self._find(name)

    def read(self, name: str) -> bytes:
        file = self._find(name)
        return file.read(0, file.size)

    def replace(self, name: str, data: Buffer) -> None:
        self._files[name] = MemoryFile(bytearray(data), len(data))

    def remove(self, name: str) -> None:
        self._find(name)
        del self._files[name]

    def copy_to(self, name: str, directory: str) -> None:
        raise StorageFailed(f"{self.path}/{name}: not copied to {directory}: a broker in memory has no archive")

    def close(self) -> None:
        """Do nothing: nobody else can use it."""

    def _find(self, name: str) -> MemoryFile:
        if (file := self._files.get(name)) is None:
            raise StorageFailed(f"{self.path}/{name}: No such file")
        return file
