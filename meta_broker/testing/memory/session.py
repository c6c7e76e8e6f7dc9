"""A ZooKeeper session on a tree in memory: connected until it is closed or expired."""

from collections.abc import Callable

from meta_broker.testing.memory.tree import Tree
from meta_broker.testing.memory.zookeeper_client import MemoryClient
from zk.session.lease import now
from zk.session.session import SessionEvent, SessionState, ZooKeeperSession

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
