"""One ZooKeeper session: connects in bounded time, answers in bounded time, tells its owner when it changes.

The only file that speaks to kazoo about nodes; the rest of the package sees typed values and two errors.
"""

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Self, assert_never

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.hosts import collect_hosts
from kazoo.protocol.states import KazooState

from zk.credentials import SessionCredentials
from zk.errors import ZooKeeperError, ZooKeeperUnavailable
from zk.forks import made_here
from zk.lease import Lease
from zk.link import BoundedHandler, LeaseKeeper
from zk.nodes import Node
from zk.paths import Paths
from zk.transactions import Check, Create, Refused, Remove, Transaction, Why, Write

SESSION_TIMEOUT_MS = 30_000  # spec 6.1; a client's code shares the interpreter with its user's, a broker's does not
CONNECT_TIMEOUT_MS = 15_000
RECONNECT_DELAY_S_MAX = 1.0  # kazoo backs off to a minute: longer than the session it should save
PIPELINE_MAX = 256  # requests in flight at once when many nodes are read or written

_log = logging.getLogger("zk.kazoo")
_log.addHandler(logging.NullHandler())  # who configured no logging gets our errors, not kazoo's retries

_REASONS = ((NodeExistsError, Why.EXISTS), (NoNodeError, Why.MISSING), (BadVersionError, Why.VERSION))
_GONE = (ConnectionLoss, SessionExpiredError, ConnectionClosedError, OperationTimeoutError, KazooTimeoutError)


class SessionState(Enum):
    """CONNECTED; SUSPENDED: no connection, the session may survive; LOST: it expired with all its ephemerals."""

    CONNECTED = KazooState.CONNECTED
    SUSPENDED = KazooState.SUSPENDED
    LOST = KazooState.LOST


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """The session's state changed. *epoch* counts sessions from 1: a CONNECTED of a higher epoch than the one
    known means that every ephemeral node and watch must be made again."""

    state: SessionState
    epoch: int


class ZooKeeperSession:
    """Owner of one client. Use as a context manager, or start() and close(), which may be repeated.

    *connect* is ``host:port,...`` with an optional ``/chroot``, made when missing; *root* is the tree's root.
    *enqueue* gets every SessionEvent, first CONNECTED included, on kazoo's thread: it must only hand it over
    (``SimpleQueue().put``, or ``partial(loop.call_soon_threadsafe, queue.put_nowait)``).
    Every other method may be called from any thread but that one, waits at most the session timeout, and
    raises ZooKeeperUnavailable then; the request may still act.
    """

    def __init__(
        self,
        connect: str,
        root: str = "/meta",
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        *,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        enqueue: Callable[[SessionEvent], None] = lambda event: None,
    ) -> None:
        self.connect = connect
        self.paths = Paths(root)
        self.session_timeout_s = session_timeout_ms / 1000
        self.lease = Lease()  # who acts on an ephemeral node's behalf asks it first: it ends before the node does
        self.epoch = 0  # written by kazoo's connection thread alone
        self._connect_timeout_ms = connect_timeout_ms
        self._enqueue = enqueue
        self._state = SessionState.LOST
        self._client: Any = None
        self._keeper: LeaseKeeper  # start() makes it, with the client
        self._is_open = False
        made_here(self)

    def start(self) -> None:
        """Connect. Returns with a live session, or raises ZooKeeperUnavailable and leaves nothing open."""
        assert not self._is_open, "already started"
        handler = BoundedHandler()
        made_here(self, handler.let_go)
        try:
            _, chroot = collect_hosts(self.connect)
            self._client = KazooClient(
                self.connect,
                timeout=self.session_timeout_s,
                handler=handler,
                connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": RECONNECT_DELAY_S_MAX},
                logger=_log,
            )
        except ValueError as error:
            raise ZooKeeperError(
                f"{self.connect!r} is no ZooKeeper connect string ({error}): give host:port[,host:port...][/chroot]"
            ) from error
        self._is_open = True
        self._keeper = LeaseKeeper(self._client, handler, self.lease)
        self._client.add_listener(self._on_state)
        self._keeper.start()
        try:
            if not self._client.start_async().wait(self._connect_timeout_ms / 1000):
                raise ZooKeeperUnavailable(
                    f"no ZooKeeper at {self.connect} within {self._connect_timeout_ms / 1000:g} s: "
                    "start one with `metaq zookeeper`, or name another with --zk"
                )
            if chroot:
                self.ensure("/")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the session, and with it its ephemeral nodes. No event follows. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        self._keeper.stop()
        self._client.remove_listener(self._on_state)
        try:
            self._client.stop()
        except KazooException:
            # Its thread still waits for a server that does not answer; it is a daemon and ends by itself.
            _log.warning("session not closed cleanly connect=%s", self.connect)
        else:
            self._client.close()
        self._state = SessionState.LOST  # last: until here kazoo's thread may have said something else

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def credentials(self) -> SessionCredentials:
        """Who this session is; raises ZooKeeperUnavailable while there is no connection."""
        identity: tuple[int, bytes] | None = self._client.client_id
        if identity is None or identity[0] is None:
            raise ZooKeeperUnavailable(f"not connected to ZooKeeper at {self.connect}: wait for it to return")
        return SessionCredentials(*identity)

    @property
    def session_id(self) -> int:
        """The session's id as Node.session_id shows it. Raises as `credentials`."""
        return self.credentials.session_id

    @property
    def is_connected(self) -> bool:
        """Whether it was connected when last heard of. Any thread."""
        return self._state is SessionState.CONNECTED

    def read(self, path: str) -> Node | None:
        """A node's data and facts; None when there is no such node."""
        return self.read_many([path]).get(path)

    def read_many(self, paths: Collection[str]) -> dict[str, Node]:
        """Read many nodes, pipelined; those that do not exist are left out."""
        found = {}
        for path, result in self._pipelined(paths, lambda path: self._client.get_async(path)):
            with contextlib.suppress(NoNodeError):
                data, stat = self._wait(result, path)
                # An ephemeral owner is an int64 that kazoo shows signed in both places.
                found[path] = Node(data or b"", stat.ephemeralOwner, stat.version)
        return found

    def children(self, path: str, watch: Callable[[Any], None] | None = None) -> list[str]:
        """Names of a node's children; none for a node that does not exist (no watch is left then)."""
        try:
            names: list[str] = self._wait(self._client.get_children_async(path, watch), path)
        except NoNodeError:
            return []
        return names

    def create(self, path: str, data: bytes | None = None, *, ephemeral: bool = False) -> bool:
        """Create a node, missing parents as persistent nodes without data; False when it exists."""
        try:
            self._wait(self._client.create_async(path, data, ephemeral=ephemeral), path)
        except NodeExistsError:
            return False
        except NoNodeError:
            self.ensure(_parent(path))
            return self.create(path, data, ephemeral=ephemeral)
        return True

    def ensure(self, path: str) -> None:
        """Make a persistent node without data, and its parents, unless it exists."""
        try:
            self._wait(self._client.create_async(path, None), path)
        except NodeExistsError:
            return
        except NoNodeError:
            if path == "/":  # the chroot itself lacks a parent: only a client without chroot can make that
                servers, _, chroot = self.connect.partition("/")
                with ZooKeeperSession(servers, "/", connect_timeout_ms=self._connect_timeout_ms) as whole_tree:
                    whole_tree.ensure(f"/{chroot.rstrip('/')}")
                return
            self.ensure(_parent(path))
            self.ensure(path)

    def write(self, path: str, data: bytes) -> None:
        """Set a node's data; create it, persistent, when missing."""
        self.write_many({path: data})

    def write_many(self, data: Mapping[str, bytes]) -> None:
        """As write, pipelined. When it raises, any subset may have been written."""
        missing = self.update_many(data)
        while missing:
            again = []
            for path, result in self._pipelined(missing, lambda path: self._client.create_async(path, data[path])):
                try:
                    self._wait(result, path)
                except NodeExistsError:
                    again.append(path)  # another writer made it meanwhile
                except NoNodeError:
                    self.ensure(_parent(path))
                    again.append(path)
            missing = self.update_many({path: data[path] for path in again})

    def update_many(self, data: Mapping[str, bytes]) -> list[str]:
        """Set the data of nodes that exist, pipelined; returns those that do not."""
        missing = []
        for path, result in self._pipelined(data, lambda path: self._client.set_async(path, data[path])):
            try:
                self._wait(result, path)
            except NoNodeError:
                missing.append(path)
        return missing

    def exchange(self, path: str, data: bytes, version: int | None) -> int | None:
        """Compare and set: write a persistent node that is at *version* (None: that is not there, nor need its parents
        be). Returns its new version; None, and nothing is changed, when somebody else was faster."""
        if version is None:
            return 0 if self.create(path, data) else None
        try:
            return int(self._wait(self._client.set_async(path, data, version), path).version)
        except (NoNodeError, BadVersionError):
            return None

    def ensure_parents(self, paths: Iterable[str]) -> None:
        """As ensure, for what *paths* stand in; each parent once."""
        for parent in sorted({_parent(path) for path in paths}):
            self.ensure(parent)

    def transact_many(self, transactions: Sequence[Transaction]) -> list[Refused | None]:
        """Do each transaction, whole or not at all, pipelined; what was refused comes with its reason.

        When it raises, any of them may have been done.
        """
        outcomes: list[Refused | None] = []
        for start in range(0, len(transactions), PIPELINE_MAX):
            part = transactions[start : start + PIPELINE_MAX]
            sent = [(operations, self._send_transaction(operations)) for operations in part]
            outcomes += [_refusal(operations, self._wait(result, operations[0].path)) for operations, result in sent]
        return outcomes

    def _send_transaction(self, operations: Transaction) -> Any:
        request = self._client.transaction()
        for operation in operations:
            match operation:
                case Create(path, data, ephemeral):
                    request.create(path, data, ephemeral=ephemeral)
                case Write(path, data, version):
                    request.set_data(path, data, version)
                case Remove(path, version):
                    request.delete(path, version)
                case Check(path, version):
                    request.check(path, version)
                case _:
                    assert_never(operation)
        return request.commit_async()

    def delete(self, path: str, version: int = -1) -> bool:
        """Delete a node; False when it is missing, has children, or is not at *version* (-1: any)."""
        try:
            self._wait(self._client.delete_async(path, version), path)
        except (NoNodeError, NotEmptyError, BadVersionError):
            return False
        return True

    def _pipelined(self, paths: Collection[str], send: Callable[[str], Any]) -> Iterator[tuple[str, Any]]:
        waiting = list(paths)
        for start in range(0, len(waiting), PIPELINE_MAX):
            yield from [(path, send(path)) for path in waiting[start : start + PIPELINE_MAX]]

    def _wait(self, result: Any, path: str) -> Any:
        """The one place where an answer is waited for, and where kazoo's errors become ours."""
        try:
            return result.get(timeout=self.session_timeout_s)
        except _GONE as error:
            raise ZooKeeperUnavailable(
                f"ZooKeeper at {self.connect} did not answer for {path} ({type(error).__name__}): "
                "is it running? the request is safe to repeat"
            ) from error
        except (NoNodeError, NodeExistsError, NotEmptyError, BadVersionError):
            raise  # answers, not failures: each caller has a value for them
        except KazooException as error:
            raise ZooKeeperError(
                f"ZooKeeper at {self.connect} refused {path} ({type(error).__name__}): check its access rules"
            ) from error

    def _on_state(self, state: str) -> None:
        """On kazoo's connection thread: count the session and hand the event over, nothing else."""
        new = SessionState(state)
        if new is SessionState.CONNECTED and self._state is SessionState.LOST:
            self.epoch += 1
        self._state = new
        self._keeper.connection_changed(is_connected=new is SessionState.CONNECTED)
        self._enqueue(SessionEvent(new, self.epoch))


def _refusal(operations: Transaction, results: Sequence[object]) -> Refused | None:
    """What kazoo's results say: one an operation, all exceptions if one of them is refused."""
    for operation, result in zip(operations, results, strict=True):
        if (why := next((why for kind, why in _REASONS if isinstance(result, kind)), None)) is not None:
            return Refused(operation, why)
        if isinstance(result, KazooException) and not isinstance(result, RolledBackError):
            raise ZooKeeperError(
                f"ZooKeeper refused {operation.path} ({type(result).__name__}): check its access rules"
            ) from result
    return None


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
