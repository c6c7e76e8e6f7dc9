"""A ZooKeeper tree in memory: nodes, versions, owners, watches that fire once. Any thread."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

from zk.tree.nodes import Node
from zk.tree.transactions import (
    Check,
    Create,
    NodeTransaction,
    Operation,
    RefusalReason,
    Remove,
    TransactionRefused,
    Write,
)

Watch = Callable[[object], None]


@dataclass(slots=True)
class _Entry:
    data: bytes
    owner: int  # session of an ephemeral node; 0: none
    version: int = 0
    children: set[str] = field(default_factory=set)


class Tree:
    """Nodes shared by all sessions of one cluster."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards the rest
        self._nodes: dict[str, _Entry] = {"/": _Entry(b"", 0)}
        self._watches: dict[str, dict[Watch, None]] = {}  # on children, by path; in order, without duplicates
        self._fired: list[Watch] = []  # to be called once the lock is free
        self._sessions = 0

    def new_session(self) -> int:
        with self._lock:
            self._sessions += 1
            return self._sessions

    def end_session(self, session_id: int) -> None:
        """Remove the ephemeral nodes of a session, deepest first."""
        with self._lock:
            owned = [path for path, entry in self._nodes.items() if entry.owner == session_id]
            for path in sorted(owned, key=len, reverse=True):
                self._do(Remove(path, -1), session_id)
        self._call_watches()

    def read(self, path: str) -> Node | None:
        with self._lock:
            entry = self._nodes.get(path)
            return None if entry is None else Node(entry.data, entry.owner, entry.version)

    def children(self, path: str, watch: Watch | None) -> list[str]:
        """Return the children; none, and no watch is set, if the node does not exist."""
        with self._lock:
            if (entry := self._nodes.get(path)) is None:
                return []
            if watch is not None:
                self._watches.setdefault(path, {})[watch] = None
            return sorted(entry.children)

    def ensure(self, path: str) -> None:
        """Create a node without data, and its parents, unless they exist."""
        with self._lock:
            if path not in self._nodes:
                self.ensure(parent_of(path))
                self._do(Create(path, b""), 0)
        self._call_watches()

    def transact(self, operations: NodeTransaction, session_id: int) -> TransactionRefused | None:
        """Apply all operations or none; return the first refused one, with the reason."""
        with self._lock:
            before = {path: self._copy(path) for path in self._touched(operations)}
            for operation in operations:
                if (why := self._do(operation, session_id)) is not None:
                    self._restore(before)
                    return TransactionRefused(operation, why)
        self._call_watches()
        return None

    def _touched(self, operations: NodeTransaction) -> set[str]:
        paths = {operation.path for operation in operations}
        return paths | {parent_of(path) for path in paths}

    def _copy(self, path: str) -> _Entry | None:
        entry = self._nodes.get(path)
        return None if entry is None else _Entry(entry.data, entry.owner, entry.version, set(entry.children))

    def _restore(self, before: dict[str, _Entry | None]) -> None:
        """Undo. Watches fire all the same, and find nothing new."""
        for path, entry in before.items():
            if entry is None:
                self._nodes.pop(path, None)
            else:
                self._nodes[path] = entry

    def _do(self, operation: Operation, session_id: int) -> RefusalReason | None:
        path, entry = operation.path, self._nodes.get(operation.path)
        match operation:
            case Create(_, data, ephemeral):
                if entry is not None:
                    return RefusalReason.EXISTS
                if (above := self._nodes.get(parent_of(path))) is None:
                    return RefusalReason.MISSING
                above.children.add(path.rpartition("/")[2])
                self._nodes[path] = _Entry(data, session_id if ephemeral else 0)
                self._fire(parent_of(path))
            case Write(_, data, version):
                if entry is None or version not in (-1, entry.version):
                    return RefusalReason.MISSING if entry is None else RefusalReason.VERSION
                entry.data, entry.version = data, entry.version + 1
            case Remove(_, version):
                if entry is None or version not in (-1, entry.version):
                    return RefusalReason.MISSING if entry is None else RefusalReason.VERSION
                if entry.children:
                    return RefusalReason.EXISTS
                del self._nodes[path]
                self._nodes[parent_of(path)].children.discard(path.rpartition("/")[2])
                self._fire(parent_of(path))
                self._fire(path)
            case Check(_, version):
                if entry is None or version not in (-1, entry.version):
                    return RefusalReason.MISSING if entry is None else RefusalReason.VERSION
            case _:
                assert_never(operation)
        return None

    def _fire(self, path: str) -> None:
        self._fired += self._watches.pop(path, {})

    def _call_watches(self) -> None:
        """Call the watches that fired; they only enqueue, as kazoo's do."""
        with self._lock:
            fired, self._fired = self._fired, []
        for watch in fired:
            watch(None)


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"
