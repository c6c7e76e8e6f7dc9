"""Replies of one connection that are not handed to its socket yet. Pure."""

from journal.records.xid import BranchKey


class ReplyQueue:
    """Replies in their order; those about a branch last, where a later one may take them along."""

    __slots__ = ("_buffered", "_pieces", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self._pieces: list[bytes | memoryview] = []
        self._buffered: dict[BranchKey, list[bytes]] = {}  # of this turn, by branch

    def add(self, data: bytes) -> None:
        self._pieces.append(data)
        self.bytes += len(data)

    def add_buffers(self, buffers: list[bytes | memoryview], size: int) -> None:
        """Queue a reply of *size* bytes in pieces."""
        self._pieces.extend(buffers)
        self.bytes += size

    def buffer(self, key: BranchKey, data: bytes) -> None:
        """Queue a reply about a branch, unless `pop_buffered` removes it before `pop_all`."""
        self._buffered.setdefault(key, []).append(data)
        self.bytes += len(data)

    def pop_buffered(self, key: BranchKey) -> bytes:
        if (buffered := self._buffered.pop(key, None)) is None:
            return b""
        data = b"".join(buffered)
        self.bytes -= len(data)
        return data

    def pop_all(self) -> list[bytes | memoryview]:
        if self._buffered:
            for buffered in self._buffered.values():
                self._pieces += buffered
            self._buffered.clear()
        pieces, self._pieces, self.bytes = self._pieces, [], 0
        return pieces
