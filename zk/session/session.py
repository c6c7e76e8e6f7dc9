"""One ZooKeeper session: connects and answers in bounded time, and reports its state changes to its owner.

The only file, with multi.py, that uses kazoo for nodes; the rest of the package sees typed values and two errors.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Self

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from kazoo.protocol.states import KazooState

from zk.errors import RefusedNode, ZooKeeperError, ZooKeeperUnavailable
from zk.forks import invalidate_after_fork
from zk.session.lease import Lease
from zk.session.lease_keeper import BoundedHandler, LeaseKeeper
from zk.session.malformed import MalformedNodes
from zk.session.multi import UNANSWERED, bytes_of, refusal_of, send_transaction, unanswered
from zk.session.newcomer import close_client, finds_less, new_client
from zk.session.security import PLAIN, SessionCredentials, ZooKeeperSecurity, is_open
from zk.session.seen_tree import SeenTree
from zk.tree.nodes import Node
from zk.tree.paths import Paths, check_path, parent_of
from zk.tree.transactions import NodeTransaction, TransactionRefused

SESSION_TIMEOUT_MS = 30_000  # spec 6.1; a client's code shares the interpreter with its user's, a broker's does not
CONNECT_TIMEOUT_MS = 15_000
PIPELINE_MAX = 256  # requests in flight at once when many nodes are read or written

_log = logging.getLogger("zk.kazoo")
_log.addHandler(logging.NullHandler())  # without configured logging, kazoo's retries are not printed


class SessionState(Enum):
    """CONNECTED; SUSPENDED: no connection, the session may survive; LOST: it expired with all its ephemerals."""

    CONNECTED = KazooState.CONNECTED
    SUSPENDED = KazooState.SUSPENDED
    LOST = KazooState.LOST


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """A change of the session's state. *epoch* counts sessions from 1: when a CONNECTED has a higher epoch than the
    last one, make every ephemeral node and watch again."""

    state: SessionState
    epoch: int


class ZooKeeperSession:
    """Owner of one client. Use as a context manager, or start() and close(), which may be repeated.

    *connect* is ``host:port,...`` with an optional ``/chroot``, made when missing; *root* is the tree's root.
    *enqueue* gets every SessionEvent, including the first CONNECTED, on kazoo's thread: it must only hand the event
    over (``SimpleQueue().put``, or ``partial(loop.call_soon_threadsafe, queue.put_nowait)``).
    The other methods may be called from any thread except that one. They wait at most the session timeout, then raise
    ZooKeeperUnavailable; the request may still take effect.
    """

    def __init__(
        self,
        connect: str,
        root: str = "/meta",
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        *,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        enqueue: Callable[[SessionEvent], None] = lambda event: None,
        security: ZooKeeperSecurity = PLAIN,
    ) -> None:
        self.connect = connect
        self.security = security
        self.paths = Paths(root)
        self.session_timeout_s = session_timeout_ms / 1000
        self.lease = Lease()  # check it before acting as a node's owner: it ends before the ephemeral node does
        self.malformed = MalformedNodes()  # nodes that readers skipped
        self.tree = SeenTree(connect, self.paths.root)
        self.epoch = 0  # written by kazoo's connection thread alone
        self._connect_timeout_ms = connect_timeout_ms
        self._enqueue = enqueue
        self._state = SessionState.LOST
        self._started_client: Any = None
        self._keeper: LeaseKeeper  # start() makes it, with the client
        self._is_open = False
        invalidate_after_fork(self)

    def start(self) -> None:
        """Connect. Returns with a live session, or raises ZooKeeperUnavailable and leaves nothing open."""
        assert not self._is_open, "already started"
        handler = BoundedHandler()
        invalidate_after_fork(self, handler.detach)
        self._started_client, has_chroot = new_client(self.connect, self.session_timeout_s, handler, self.security)
        self._is_open = True
        is_behind = partial(finds_less, self.connect, self.security)
        self._keeper = LeaseKeeper(self._client, handler, self.lease, self.tree, is_behind)
        self._client.add_listener(self._on_state)
        self._keeper.start()
        try:
            if not self._client.start_async().wait(self._connect_timeout_ms / 1000):
                raise ZooKeeperUnavailable(
                    f"no ZooKeeper at {self.connect} within {self._connect_timeout_ms / 1000:g} s: "
                    "start one with `metaq zookeeper`, or name another with --zk"
                )
            if has_chroot:
                self.ensure("/")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the session, and with it its ephemeral nodes. No event follows, and no watch is called. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        self._keeper.stop()
        self._client.remove_listener(self._on_state)
        self.lease.end()
        self._client.handler.hush()
        close_client(self._client, self.connect)
        self._state = SessionState.LOST  # last: until here kazoo's thread may set it

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _client(self) -> Any:
        if self._started_client is None:
            raise ZooKeeperUnavailable(f"the session with ZooKeeper at {self.connect} was never started: start() it")
        return self._started_client

    @property
    def credentials(self) -> SessionCredentials:
        """Credentials of the session. Raises ZooKeeperUnavailable while there is no connection."""
        identity: tuple[int, bytes] | None = self._client.client_id
        if identity is None or identity[0] is None:
            raise ZooKeeperUnavailable(f"not connected to ZooKeeper at {self.connect}: wait for it to return")
        return SessionCredentials(*identity)

    @property
    def session_id(self) -> int:
        """Id of the session, as in Node.session_id. Raises ZooKeeperUnavailable while there is no connection."""
        return self.credentials.session_id

    @property
    def is_connected(self) -> bool:
        """True if kazoo last reported the session connected. Any thread."""
        return self._state is SessionState.CONNECTED

    def read(self, path: str) -> Node | None:
        """Read a node; None if it does not exist."""
        return self.read_many([path]).get(path)

    def read_many(self, paths: Collection[str]) -> dict[str, Node]:
        """Read many nodes, pipelined. Omits those that do not exist. Raises RefusedNode."""
        nodes, refused = self.read_readable(paths)
        if refused:
            raise next(iter(refused.values()))
        return nodes

    def read_readable(self, paths: Collection[str]) -> tuple[dict[str, Node], dict[str, RefusedNode]]:
        """Read many nodes, pipelined; returns those that exist, and the errors of those that access rules deny."""
        found, refused = self._read_readable(paths, self._client.get_async)
        # kazoo gives both the owner and the session id as signed int64.
        nodes = {path: Node(data or b"", stat.ephemeralOwner, stat.version) for path, (data, stat) in found.items()}
        return nodes, refused

    def children_readable(self, paths: Collection[str]) -> tuple[dict[str, list[str]], dict[str, RefusedNode]]:
        """Return the names of many nodes' children as read_readable does."""
        return self._read_readable(paths, lambda path: self._client.get_children_async(path, None))

    def _read_readable(
        self, paths: Collection[str], send: Callable[[str], Any]
    ) -> tuple[dict[str, Any], dict[str, RefusedNode]]:
        found, refused = dict[str, Any](), dict[str, RefusedNode]()
        for path, result in self._pipelined(paths, send):
            try:
                if (read := self._wait(result, path, NoNodeError)) is not None:
                    found[path] = read
            except RefusedNode as error:
                refused[path] = error
        return found, refused

    def look_at_tree(self) -> int:
        """Return how often the tree was replaced by now while this object saw it."""
        self.tree.saw(self._wait(self._client.exists_async(self.tree.root), self.tree.root))
        return self.tree.replaced

    def children(self, path: str, watch: Callable[[Any], None] | None = None) -> list[str]:
        """Return the names of a node's children; of a missing node none, and no watch is set."""
        names: list[str] | None = self._wait(
            self._client.get_children_async(check_path(path), watch), path, NoNodeError
        )
        return names or []

    def create(self, path: str, data: bytes | None = None, *, ephemeral: bool = False) -> bool:
        """Create a node, with missing parents as persistent nodes without data. Returns False if it exists."""
        try:
            sent = self._client.create_async(check_path(path), data, ephemeral=ephemeral)
            self._wait(sent, path, bytes_sent=len(data or b""))
        except NodeExistsError:
            return False
        except NoNodeError:
            self.ensure(parent_of(path))
            return self.create(path, data, ephemeral=ephemeral)
        return True

    def ensure(self, path: str) -> None:
        """Make a persistent node without data, and its parents, unless it exists."""
        try:
            self._wait(self._client.create_async(check_path(path), None), path)
        except NodeExistsError:
            return
        except NoNodeError:
            if path == "/":  # the chroot itself lacks a parent: only a client without chroot can make that
                servers, _, chroot = self.connect.partition("/")
                with ZooKeeperSession(servers, "/", security=self.security) as whole_tree:
                    whole_tree.ensure(f"/{chroot.rstrip('/')}")
                return
            self.ensure(parent_of(path))
            self.ensure(path)

    def write(self, path: str, data: bytes) -> None:
        """Set a node's data; create it, persistent, when missing."""
        self.write_many({path: data})

    def write_many(self, data: Mapping[str, bytes]) -> None:
        """Set the data of nodes, pipelined; create those that are missing. If it raises, any subset may be written."""
        missing = self.update_many(data)
        largest = max(map(len, data.values()), default=0)
        while missing:
            again = []
            for path, result in self._pipelined(missing, lambda path: self._client.create_async(path, data[path])):
                try:
                    self._wait(result, path, bytes_sent=largest)
                except NodeExistsError:
                    again.append(path)  # another writer made it meanwhile
                except NoNodeError:
                    self.ensure(parent_of(path))
                    again.append(path)
            missing = self.update_many({path: data[path] for path in again})

    def update_many(self, data: Mapping[str, bytes]) -> list[str]:
        """Set the data of existing nodes, pipelined. Returns the paths that do not exist."""
        sent = self._pipelined(data, lambda path: self._client.set_async(path, data[path]))
        largest = max(map(len, data.values()), default=0)
        return [path for path, result in sent if self._wait(result, path, NoNodeError, bytes_sent=largest) is None]

    def exchange(self, path: str, data: bytes, version: int | None) -> int | None:
        """Compare and set: write a persistent node if it is at *version* (None: if it is missing, with its parents).
        Returns the new version, or None without a change if the version differs."""
        if version is None:
            return 0 if self.create(path, data) else None
        sent = self._client.set_async(check_path(path), data, version)
        stat = self._wait(sent, path, NoNodeError, BadVersionError, bytes_sent=len(data))
        return None if stat is None else int(stat.version)

    def is_open(self, path: str) -> bool:
        """Return whether anybody may change or delete a node by its access rules; False if it is gone."""
        found = self._wait(self._client.get_acls_async(check_path(path)), path, NoNodeError)
        return found is not None and is_open(found[0])

    def ensure_parents(self, paths: Iterable[str]) -> None:
        """Make the parents of *paths*, each once, as ensure does."""
        for parent in sorted({parent_of(path) for path in paths}):
            self.ensure(parent)

    def transact_many(self, transactions: Sequence[NodeTransaction]) -> list[TransactionRefused | None]:
        """Do transactions as transact_each does. Raises RefusedNode for one that access rules deny."""
        outcomes = self.transact_each(transactions)
        for outcome in outcomes:
            if isinstance(outcome, RefusedNode):
                raise outcome
        return [outcome for outcome in outcomes if not isinstance(outcome, RefusedNode)]

    def transact_each(self, transactions: Sequence[NodeTransaction]) -> list[TransactionRefused | RefusedNode | None]:
        """Do each transaction atomically, pipelined. Returns the refusal or None for each, in order.

        If it raises, any of them may have been done. An empty one is done without ZooKeeper.
        """
        outcomes: list[TransactionRefused | RefusedNode | None] = [None] * len(transactions)
        asked = [number for number, operations in enumerate(transactions) if operations]
        largest = max((bytes_of(transactions[number]) for number in asked), default=0)
        for start in range(0, len(asked), PIPELINE_MAX):
            part = asked[start : start + PIPELINE_MAX]
            sent = [(number, send_transaction(self._client, transactions[number])) for number in part]
            for number, result in sent:
                operations = transactions[number]
                outcomes[number] = refusal_of(operations, self._wait(result, operations[0].path, bytes_sent=largest))
        return outcomes

    def delete(self, path: str, version: int = -1) -> bool:
        """Delete a node. Returns False if it is missing, has children, or is not at *version* (-1: any)."""
        result = self._client.delete_async(check_path(path), version)
        return self._wait(result, path, NoNodeError, NotEmptyError, BadVersionError) is not None

    def _pipelined(self, paths: Collection[str], send: Callable[[str], Any]) -> Iterator[tuple[str, Any]]:
        waiting = list(paths)
        for start in range(0, len(waiting), PIPELINE_MAX):
            yield from [(path, send(check_path(path))) for path in waiting[start : start + PIPELINE_MAX]]

    def _wait(self, result: Any, path: str, *none: type[KazooException], bytes_sent: int = 0) -> Any:
        """Wait for a result, turning kazoo's errors into this package's, and those of *none* into None. *bytes_sent*:
        data in the largest request that was sent together with it."""
        try:
            return result.get(timeout=self.session_timeout_s)
        except none:
            return None
        except UNANSWERED as error:
            raise unanswered(self.connect, path, error, bytes_sent) from error
        except (NoNodeError, NodeExistsError):
            raise  # callers make the parents, or take the node for made
        except NoAuthError as error:
            raise RefusedNode(path, error) from error
        except KazooException as error:
            raise ZooKeeperError(f"ZooKeeper at {self.connect} refused {path} ({type(error).__name__})") from error

    def _on_state(self, state: str) -> None:
        """Tell the lease's keeper and the owner. kazoo's connection thread, hence nothing else."""
        self._keeper.connection_changed(is_connected=state == KazooState.CONNECTED)
        self._state_changed(SessionState(state))

    def _state_changed(self, new: SessionState) -> None:
        """Count sessions, end the lease of one that expired, and hand the event over."""
        if new is SessionState.LOST:
            self.lease.end()
        if new is SessionState.CONNECTED and self._state is SessionState.LOST:
            self.epoch += 1
        self._state = new
        self._enqueue(SessionEvent(new, self.epoch))
