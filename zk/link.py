"""The TCP connection below a session, where kazoo leaves gaps: how long to wait for it, and when it is silent.

kazoo counts each request as a heart-beat and looks for an answer only when it has sent none: who asks often enough
never notices that nobody answers. So the session is asked something all the time, answers renew its lease, and a
connection without any for as long as the lease lasts is cut: kazoo then looks for another server.
"""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler

from zk.forks import blank
from zk.lease import ASK_PART, LEASE_PART, Lease, now

TCP_CONNECT_TIMEOUT_S = 5.0  # kazoo would wait a whole session timeout for a host that swallows packets
LOOKS_MAX = round(LEASE_PART / ASK_PART)

_log = logging.getLogger("zk.kazoo")


class BoundedHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo is untyped
    """kazoo's threads, with an upper bound on one TCP connect, and the last connection at hand."""

    connected: socket.socket | None = None

    def create_connection(self, *arguments: Any, **options: Any) -> Any:
        options["timeout"] = min(options["timeout"], TCP_CONNECT_TIMEOUT_S)
        self.connected = super().create_connection(*arguments, **options)
        return self.connected

    def let_go(self) -> None:
        """In a forked process: have nothing to do with the parent's connection."""
        if (connected := self.connected) is not None:
            blank(connected)

    def cut(self) -> None:
        """End the connection; kazoo makes a new one."""
        if (connected := self.connected) is not None:
            with contextlib.suppress(OSError):  # it is closed already
                connected.shutdown(socket.SHUT_RDWR)


class LeaseKeeper:
    """Keeps the lease of one client's sessions while it is connected. start() and stop() by its owner."""

    def __init__(self, client: KazooClient, handler: BoundedHandler, lease: Lease) -> None:
        self._client = client
        self._handler = handler
        self._lease = lease
        self._is_connected = False
        self._asked: Any = None  # the answer that is due, if one is; this thread's, like the next
        self._looks = 0  # at an answer that was not there yet
        self._woken = threading.Event()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="metaq zookeeper lease", daemon=True)
        self._watch_grants()

    def start(self) -> None:
        """Begin, before the client does."""
        self._thread.start()

    def stop(self) -> None:
        """End. Idempotent; waits for the thread, which waits for nothing."""
        self._is_stopped = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()

    def connection_changed(self, *, is_connected: bool) -> None:
        """On kazoo's thread."""
        self._is_connected = is_connected
        self._woken.set()

    def _watch_grants(self) -> None:
        """Hear of each session that a server grants. kazoo tells nobody which timeout the server made of ours."""
        connection = self._client._connection
        connect: Callable[..., tuple[float, float]] = connection._connect

        def connect_and_tell(*arguments: Any) -> tuple[float, float]:
            asked_at = now()
            read_timeout_ms, connect_timeout_ms = connect(*arguments)
            self._lease.granted(asked_at, read_timeout_ms / 1000 * 1.5)  # kazoo reads for two thirds of it
            return read_timeout_ms, connect_timeout_ms

        connection._connect = connect_and_tell

    def _run(self) -> None:
        while not self._is_stopped:
            is_time = not self._woken.wait(self._lease.timeout_s * ASK_PART or None)
            self._woken.clear()
            if self._is_connected and self._lease.timeout_s and not self._is_stopped:
                self._look(is_time=is_time)

    def _look(self, *, is_time: bool) -> None:
        """Ask, or see how long an answer has been due. Looks are counted, not seconds: this process may have been
        stopped, and the answer be here, unread."""
        if self._asked is None or self._asked.ready():
            asked_at = now()
            self._asked = self._client.exists_async("/")
            self._asked.rawlink(lambda answer: self._on_answer(answer, asked_at))
            self._looks = 0
            return
        self._looks += is_time
        if self._looks >= LOOKS_MAX:
            _log.warning("no answer for %.1f s, connecting anew", self._lease.timeout_s * LEASE_PART)
            self._asked = None
            self._handler.cut()

    def _on_answer(self, answer: Any, asked_at: float) -> None:
        """On a thread of kazoo's."""
        if answer.successful():
            self._lease.renew(asked_at)
