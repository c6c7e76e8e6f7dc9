"""A ZooKeeper session on a tree in memory, over those methods of a kazoo client that ZooKeeperSession calls."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from kazoo.exceptions import ConnectionClosedError, KazooException, NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE

from meta_broker.testing.memory.tree import Tree, Watch
from zk.session.lease import now
from zk.session.session import SessionEvent, SessionState, ZooKeeperSession
from zk.tree.nodes import Node
from zk.tree.transactions import Check, Create, Operation, Remove, Write


@dataclass(frozen=True, slots=True)
class MemoryResult:
    """Result of a request, which was done when it was sent."""

    outcome: Any

    def get(self, timeout: float) -> Any:
        if isinstance(self.outcome, KazooException):
            raise self.outcome
        return self.outcome


class MemoryClient:
    """One client and its session. Any thread."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.client_id: tuple[int, bytes] | None = None  # of the session; None: closed

    def begin_session(self) -> None:
        self.client_id = (self._tree.new_session(), b"")

    def end_session(self, *, expires: bool) -> None:
        """End the session by a silence, which *expires* it and fires its watches; or by closing, which is final."""
        assert self.client_id is not None
        session_id = self.client_id[0]
        if not expires:
            self.client_id = None
        self._tree.end_session(session_id, fires=expires)

    def get_async(self, path: str) -> MemoryResult:
        def read(session_id: int) -> tuple[bytes, SimpleNamespace]:
            node = self._tree.read(_absolute(path), session_id)
            return node.data, SimpleNamespace(ephemeralOwner=node.session_id, version=node.version)

        return self._ask(read)

    def exists_async(self, path: str) -> MemoryResult:
        try:
            self.get_async(path).get(0)
        except NoNodeError:
            return MemoryResult(None)
        except KazooException as error:
            return MemoryResult(error)
        return MemoryResult(SimpleNamespace(czxid=0, ctime=0))  # a tree in memory is never replaced

    def get_children_async(self, path: str, watch: Watch | None) -> MemoryResult:
        return self._ask(partial(self._tree.children, _absolute(path), watch))

    def get_acls_async(self, path: str) -> MemoryResult:
        def read(session_id: int) -> tuple[object, Node]:
            return OPEN_ACL_UNSAFE, self._tree.read(_absolute(path), session_id)

        return self._ask(read)

    def create_async(self, path: str, data: bytes | None, *, ephemeral: bool = False) -> MemoryResult:
        return self._change(Create(_absolute(path), data or b"", ephemeral))

    def set_async(self, path: str, data: bytes, version: int = -1) -> MemoryResult:
        return self._change(Write(_absolute(path), data, version))

    def delete_async(self, path: str, version: int) -> MemoryResult:
        return self._change(Remove(_absolute(path), version))

    def transaction(self) -> "MemoryTransaction":
        return MemoryTransaction(self)

    def transact(self, operations: list[Operation]) -> MemoryResult:
        return self._ask(partial(self._tree.transact, tuple(operations)))

    def _change(self, operation: Operation) -> MemoryResult:
        done = self.transact([operation])
        return done if isinstance(done.outcome, KazooException) else MemoryResult(*done.outcome)

    def _ask(self, request: Callable[[int], Any]) -> MemoryResult:
        if (identity := self.client_id) is None:
            return MemoryResult(ConnectionClosedError())
        try:
            return MemoryResult(request(identity[0]))
        except KazooException as error:
            return MemoryResult(error)


class MemoryTransaction:
    """Operations that are applied together, as of kazoo's TransactionRequest."""

    def __init__(self, client: MemoryClient) -> None:
        self._client = client
        self._operations: list[Operation] = []

    def create(self, path: str, data: bytes, *, ephemeral: bool) -> None:
        self._operations.append(Create(_absolute(path), data, ephemeral))

    def set_data(self, path: str, data: bytes, version: int) -> None:
        self._operations.append(Write(_absolute(path), data, version))

    def delete(self, path: str, version: int) -> None:
        self._operations.append(Remove(_absolute(path), version))

    def check(self, path: str, version: int) -> None:
        self._operations.append(Check(_absolute(path), version))

    def commit_async(self) -> MemoryResult:
        return self._client.transact(self._operations)


def _absolute(path: str) -> str:
    """Normalize a path as kazoo does."""
    return "/" + "/".join(part for part in path.split("/") if part)


LEASE_S = 365 * 24 * 3600.0


class MemorySession(ZooKeeperSession):
    """One session of a cluster in memory: the real one's methods over another client, which waits for nothing.

    Events and watches are called before the call that causes them returns, in its thread or in another one's that is
    calling some. Any thread.
    """

    def __init__(self, tree: Tree, enqueue: Callable[[SessionEvent], None] = lambda event: None) -> None:
        super().__init__("memory", enqueue=enqueue)
        self._tree = tree

    def start(self) -> None:
        assert not self._is_open, "already started"
        self._is_open = True
        self._started_client = MemoryClient(self._tree)
        self._connect()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self.lease.end()
            self._client.end_session(expires=False)
            self._state = SessionState.LOST

    def expire(self) -> None:
        """Expire the session, as a long silence does: its nodes are removed, and a new session begins."""
        self._state_changed(SessionState.SUSPENDED)
        self._client.end_session(expires=True)
        self._state_changed(SessionState.LOST)
        self._connect()

    def _connect(self) -> None:
        self._client.begin_session()
        self.lease.granted(now(), LEASE_S)
        self._state_changed(SessionState.CONNECTED)
