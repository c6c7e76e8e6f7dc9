"""A ZooKeeper session on a tree in memory: always connected until it is closed or expired."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from meta_broker.testing.memory.tree import Tree, parent_of
from zk.errors import RefusedNode
from zk.session.lease import now
from zk.session.security import SessionCredentials
from zk.session.session import SessionEvent, SessionState, ZooKeeperSession
from zk.tree.nodes import Node
from zk.tree.transactions import Create, NodeTransaction, Remove, TransactionRefused, Write

LEASE_S = 365 * 24 * 3600.0


class MemorySession(ZooKeeperSession):
    """One session of a cluster in memory. Methods as of ZooKeeperSession, never unavailable; any thread."""

    def __init__(self, tree: Tree, enqueue: Callable[[SessionEvent], None] = lambda event: None) -> None:
        super().__init__("memory", enqueue=enqueue)
        self._tree = tree
        self._id = 0

    def start(self) -> None:
        assert not self._is_open, "already started"
        self._is_open = True
        self._connect()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._tree.end_session(self._id)

    def expire(self) -> None:
        """Expire the session, as a long silence does: its nodes are removed, and a new session begins."""
        self._state = SessionState.LOST
        self._tree.end_session(self._id)
        self._enqueue(SessionEvent(SessionState.LOST, self.epoch))
        self._connect()

    def _connect(self) -> None:
        self._id = self._tree.new_session()
        self.lease.granted(now(), LEASE_S)
        self.epoch += 1
        self._state = SessionState.CONNECTED
        self._enqueue(SessionEvent(SessionState.CONNECTED, self.epoch))

    @property
    def credentials(self) -> SessionCredentials:
        return SessionCredentials(self._id, b"")

    def read_readable(self, paths: Collection[str]) -> tuple[dict[str, Node], dict[str, RefusedNode]]:
        return {path: node for path in paths if (node := self._tree.read(path)) is not None}, {}

    def children(self, path: str, watch: Callable[[Any], None] | None = None) -> list[str]:
        return self._tree.children(path, watch)

    def create(self, path: str, data: bytes | None = None, *, ephemeral: bool = False) -> bool:
        self._tree.ensure(parent_of(path))
        return self._tree.transact((Create(path, data or b"", ephemeral),), self._id) is None

    def ensure(self, path: str) -> None:
        self._tree.ensure(path)

    def write_many(self, data: Mapping[str, bytes]) -> None:
        for path in self.update_many(data):
            if not self.create(path, data[path]):
                self.update_many({path: data[path]})

    def update_many(self, data: Mapping[str, bytes]) -> list[str]:
        return [path for path, text in data.items() if self._tree.transact((Write(path, text),), self._id) is not None]

    def exchange(self, path: str, data: bytes, version: int | None) -> int | None:
        if version is None:
            return 0 if self.create(path, data) else None
        return version + 1 if self._tree.transact((Write(path, data, version),), self._id) is None else None

    def transact_each(self, transactions: Sequence[NodeTransaction]) -> list[TransactionRefused | RefusedNode | None]:
        return [self._tree.transact(operations, self._id) for operations in transactions]

    def delete(self, path: str, version: int = -1) -> bool:
        return self._tree.transact((Remove(path, version),), self._id) is None
