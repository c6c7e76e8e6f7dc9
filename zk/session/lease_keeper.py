"""Keeps a session's lease: bounds each connect, pings continuously, and cuts a connection without replies.

kazoo counts each request as a heartbeat and waits for a reply only when it has sent none: a busy client never notices
that replies stopped. So the keeper always has a request in flight, whose reply renews the lease, and cuts a connection
that gave no reply for as long as the lease lasts; kazoo then tries another server.
"""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, SessionExpiredError
from kazoo.handlers.threading import SequentialThreadingHandler

from zk.forks import detach_descriptor
from zk.session.lease import LEASE_FRACTION, PING_FRACTION, Lease, now
from zk.session.seen_tree import SeenTree

TCP_CONNECT_TIMEOUT_S = 5.0  # kazoo would wait a whole session timeout for a host that drops packets
CHECKS_WITHOUT_REPLY_MAX = round(LEASE_FRACTION / PING_FRACTION)

_log = logging.getLogger("zk.kazoo")


class BoundedHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo is untyped
    """kazoo's threads, with a time limit on TCP connects, access to the last connection, and an end of watches."""

    connected: socket.socket | None = None
    _is_hushed = False

    def create_connection(self, *arguments: Any, **options: Any) -> Any:
        options["timeout"] = min(options["timeout"], TCP_CONNECT_TIMEOUT_S)
        self.connected = super().create_connection(*arguments, **options)
        return self.connected

    def detach(self) -> None:
        """Detach a forked process from its parent's connection."""
        if (connected := self.connected) is not None:
            detach_descriptor(connected)

    def hush(self) -> None:
        """Call no more watches, as kazoo does with those that are left once a session is closed."""
        self._is_hushed = True

    def dispatch_callback(self, callback: Any) -> None:
        if not self._is_hushed:
            super().dispatch_callback(callback)

    def cut(self) -> None:
        """Shut the connection down; kazoo makes a new one."""
        if (connected := self.connected) is not None:
            with contextlib.suppress(OSError):  # it is closed already
                connected.shutdown(socket.SHUT_RDWR)


class LeaseKeeper:
    """Keeps the lease of one client's sessions while it is connected. Its owner calls start() and stop()."""

    def __init__(
        self,
        client: KazooClient,
        handler: BoundedHandler,
        lease: Lease,
        tree: SeenTree,
        is_behind: Callable[[int], bool],
    ) -> None:
        """*is_behind*: whether ZooKeeper lacks a change with this number. Blocks for a moment."""
        self._is_behind = is_behind
        self._client = client
        self._handler = handler
        self._lease = lease
        self._tree = tree
        self._is_connected = False
        self._pending: Any = None  # the ping in flight, if any; owned by this thread, like the next
        self._checks_without_reply = 0  # since that ping was sent
        self._woken = threading.Event()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="metaq zookeeper lease", daemon=True)
        self._watch_grants()

    def start(self) -> None:
        """Start the thread; call it before the client starts."""
        self._thread.start()

    def stop(self) -> None:
        """Stop and join the thread, which never blocks. Idempotent."""
        self._is_stopped = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()

    def connection_changed(self, *, is_connected: bool) -> None:
        """Note that the connection came or went. kazoo's thread."""
        self._is_connected = is_connected
        self._woken.set()

    def _watch_grants(self) -> None:
        """Wrap kazoo's connect to learn the granted session timeout, which kazoo does not expose; and to end a session
        that no server knows. A server that lacks a change that the client has seen hangs up, and kazoo would try
        without end: it lags for a moment, or it was replaced by an empty one, or restored from a back-up."""
        connection = self._client._connection
        connect: Callable[..., tuple[float, float]] = connection._connect

        def connect_and_tell(*arguments: Any) -> tuple[float, float]:
            asked_at = now()
            try:
                read_timeout_ms, connect_timeout_ms = connect(*arguments)
            except ConnectionDropped:
                was_refused = connection._socket is not None and self._client.last_zxid > 0
                if was_refused and self._lease.is_over() and self._is_behind(self._client.last_zxid):
                    self._tree.went_back()
                    raise SessionExpiredError from None
                raise
            self._lease.granted(asked_at, read_timeout_ms / 1000 * 1.5)  # kazoo reads for two thirds of it
            self._woken.set()  # it may have looked already: kazoo tells of the connection first
            return read_timeout_ms, connect_timeout_ms

        connection._connect = connect_and_tell

    def _run(self) -> None:
        while not self._is_stopped:
            is_time = not self._woken.wait(self._lease.timeout_s * PING_FRACTION or None)
            self._woken.clear()
            if self._is_connected and self._lease.timeout_s and not self._is_stopped:
                self._check(is_time=is_time)

    def _check(self, *, is_time: bool) -> None:
        """Send a ping, or count a check without its reply. Checks are counted instead of seconds: after the process was
        stopped, the reply may have arrived unread."""
        if self._pending is None or self._pending.ready():
            asked_at = now()
            self._pending = self._client.exists_async(self._tree.root)
            self._pending.rawlink(lambda answer: self._on_reply(answer, asked_at))
            self._checks_without_reply = 0
            return
        self._checks_without_reply += is_time
        if self._checks_without_reply >= CHECKS_WITHOUT_REPLY_MAX:
            _log.warning("no reply for %.1f s, reconnecting", self._lease.timeout_s * LEASE_FRACTION)
            self._pending = None
            self._handler.cut()

    def _on_reply(self, answer: Any, asked_at: float) -> None:
        """Renew the lease. A kazoo thread."""
        if answer.successful():
            self._tree.saw(answer.value)
            self._lease.renew(asked_at)
