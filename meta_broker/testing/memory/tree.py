"""A ZooKeeper tree in memory: nodes, versions, sessions, watches that fire once. Refuses with kazoo's errors. Any
thread."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, assert_never

from kazoo.exceptions import (
    BadArgumentsError,
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)

from zk.tree.nodes import Node
from zk.tree.paths import parent_of
from zk.tree.transactions import Check, Create, NodeTransaction, Operation, Remove, Write

REQUEST_BYTES_MAX: Final = 1024 * 1024 - 1  # a server cuts the connection of a larger one (jute.maxbuffer)

Watch = Callable[[object], None]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    data: bytes
    owner: int  # session of an ephemeral node; 0: none
    version: int = 0
    children: set[str] = field(default_factory=set)

    def node(self) -> Node:
        return Node(self.data, self.owner, self.version)


class Tree:
    """Nodes shared by all sessions of one cluster."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the rest
        self._nodes: dict[str, _Entry] = {"/": _Entry(b"", 0)}
        self._watches: dict[str, dict[tuple[int, Watch], None]] = {}  # on children, by path; a session's once
        self._fired: deque[Watch] = deque()
        self._is_calling = False  # a thread calls those, one after the other
        self._sessions = set[int]()
        self._sessions_count = 0

    def new_session(self) -> int:
        with self._lock:
            self._sessions_count += 1
            self._sessions.add(self._sessions_count)
            return self._sessions_count

    def end_session(self, session_id: int, *, fires: bool) -> None:
        """Remove the ephemeral nodes of a session, and its watches; *fires*: call these, as a lost connection does."""
        with self._lock:
            self._sessions.discard(session_id)
            for watches in self._watches.values():
                for key in [key for key in watches if key[0] == session_id]:
                    del watches[key]
                    self._fired += [key[1]] * fires
            for path in [path for path, entry in self._nodes.items() if entry.owner == session_id]:
                self._do(Remove(path, -1), session_id)
                self._fire((path, parent_of(path)))
        self._call_watches()

    def read(self, path: str, session_id: int) -> Node:
        with self._lock:
            return self._entry(path, session_id).node()

    def children(self, path: str, watch: Watch | None, session_id: int) -> list[str]:
        with self._lock:
            entry = self._entry(path, session_id)
            if watch is not None:
                self._watches.setdefault(path, {})[session_id, watch] = None
            return sorted(entry.children)

    def transact(self, operations: NodeTransaction, session_id: int) -> list[Node | KazooException]:
        """Apply all operations or none. Returns each one's node, or its error in kazoo's form: others' are
        RolledBackError before the refused one, and RuntimeInconsistency after it."""
        if sum(map(_request_bytes, operations)) > REQUEST_BYTES_MAX:
            raise ConnectionLoss
        with self._lock:
            self._check_session(session_id)
            before = {path: self._copy(path) for path in self._touched(operations)}
            done: list[Node | KazooException] = []
            for operation in operations:
                try:
                    done.append(self._do(operation, session_id))
                except KazooException as error:
                    self._restore(before)
                    after = len(operations) - len(done) - 1
                    return [RolledBackError() for _ in done] + [error] + [RuntimeInconsistency() for _ in range(after)]
            for operation in operations:
                match operation:
                    case Create(path):
                        self._fire((parent_of(path),))
                    case Remove(path):
                        self._fire((path, parent_of(path)))
        self._call_watches()
        return done

    def _check_session(self, session_id: int) -> None:
        if session_id not in self._sessions:
            raise SessionExpiredError

    def _entry(self, path: str, session_id: int) -> _Entry:
        self._check_session(session_id)
        return self._at(path)

    def _at(self, path: str, version: int = -1) -> _Entry:
        if (entry := self._nodes.get(path)) is None:
            raise NoNodeError
        if version not in (-1, entry.version):
            raise BadVersionError
        return entry

    def _touched(self, operations: NodeTransaction) -> set[str]:
        paths = {operation.path for operation in operations}
        return paths | {parent_of(path) for path in paths}

    def _copy(self, path: str) -> _Entry | None:
        entry = self._nodes.get(path)
        return None if entry is None else _Entry(entry.data, entry.owner, entry.version, set(entry.children))

    def _restore(self, before: dict[str, _Entry | None]) -> None:
        for path, entry in before.items():
            if entry is None:
                self._nodes.pop(path, None)
            else:
                self._nodes[path] = entry

    def _do(self, operation: Operation, session_id: int) -> Node:
        path = operation.path
        match operation:
            case Create(_, data, ephemeral):
                if path in self._nodes:
                    raise NodeExistsError
                above = self._at(parent_of(path))
                if above.owner:
                    raise NoChildrenForEphemeralsError
                above.children.add(path.rpartition("/")[2])
                entry = self._nodes[path] = _Entry(data, session_id if ephemeral else 0)
            case Write(_, data, version):
                entry = self._at(path, version)
                entry.data, entry.version = data, entry.version + 1
            case Remove(_, version):
                entry = self._at(path, version)
                if entry.children:
                    raise NotEmptyError
                if path == "/":
                    raise BadArgumentsError
                del self._nodes[path]
                self._nodes[parent_of(path)].children.discard(path.rpartition("/")[2])
            case Check(_, version):
                entry = self._at(path, version)
            case _:
                assert_never(operation)
        return entry.node()

    def _fire(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._fired += [watch for _, watch in self._watches.pop(path, {})]

    def _call_watches(self) -> None:
        """Call the watches that fired, in order, unless a thread does: it may be this one, in a watch."""
        while True:
            with self._lock:
                if self._is_calling or not self._fired:
                    return
                self._is_calling = True
                watch = self._fired.popleft()
            try:
                watch(None)
            except Exception:
                _log.exception("a watch failed")  # kazoo's thread outlives it, too
            finally:
                with self._lock:
                    self._is_calling = False


def _request_bytes(operation: Operation) -> int:
    return len(operation.path.encode()) + (len(operation.data) if isinstance(operation, Create | Write) else 0)
