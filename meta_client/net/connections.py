"""Pool of connections: one per broker, made on demand and again after a break."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from meta_client.errors import ClientClosed, NotConnected
from meta_client.net.backoff import Backoff
from meta_client.net.connection import Connection
from meta_client.net.deadline import Deadline
from meta_client.net.security import Security
from meta_client.net.transport import Link
from zk.forks import invalidate_after_fork
from zk.tree.broker_url import BrokerUrl

CONNECT_TIMEOUT_S = 4.0  # a broker of the same data centre answers in milliseconds, or not at all
ATTEMPT_S = 0.5  # a successful attempt takes less


MakeLink = Callable[[BrokerUrl, float], Link]


@dataclass(slots=True)
class _Slot:
    """State of one broker. The lock guards all other fields."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    connection: Link | None = None
    backoff: Backoff = field(default_factory=Backoff)


class Connections:
    """Connection pool. Any thread may use it; close() once no thread does."""

    def __init__(self, connect: MakeLink = Connection.open) -> None:
        """*connect* makes a connection within the given seconds, or raises NotConnected."""
        self._open = connect
        self._lock = threading.Lock()  # guards additions to the slots, so that close() takes all
        self._slots: dict[BrokerUrl, _Slot] = {}
        self._closing = threading.Event()
        invalidate_after_fork(self)

    @classmethod
    def secured(cls, security: Security) -> "Connections":
        """Return a pool whose connections are made with *security*. Raises InvalidSecurity."""
        return cls(partial(Connection.open, security=security.check()))

    def twin(self) -> "Connections":
        """Return an empty pool with the same connection factory."""
        return Connections(self._open)

    def get(self, url: BrokerUrl, timeout_s: float, *, patient: bool = True) -> Link:
        """Return the live connection to *url*; connect if there is none.

        Connects once at most, after the back-off of earlier failures. A caller that is not *patient* gets NotConnected
        instead of waiting for the back-off, or long for another thread's attempt. Raises NotConnected, ClientClosed.
        """
        slot = self._slots.get(url) or self._slot(url)  # without the lock: this runs with every request
        connection = slot.connection
        if connection is not None and not connection.is_broken:
            return connection
        deadline = Deadline(timeout_s)
        if not slot.lock.acquire(timeout=timeout_s if patient else min(timeout_s, ATTEMPT_S)):
            raise NotConnected(f"no connection to {url} yet: is the broker up?")
        try:
            if slot.connection is None or slot.connection.is_broken:
                slot.connection = self._connect(url, slot, deadline, patient=patient)
            return slot.connection
        finally:
            slot.lock.release()

    def sleep(self, seconds: float) -> None:
        """Wait, at most until `close`."""
        self._closing.wait(seconds)

    def close(self) -> None:
        """Close every connection and fail its pending replies. Idempotent."""
        with self._lock:
            self._closing.set()
            slots, self._slots = list(self._slots.values()), {}
        for slot in slots:
            with slot.lock:
                if slot.connection is not None:
                    slot.connection.close()

    def _slot(self, url: BrokerUrl) -> _Slot:
        with self._lock:
            self._check_open()
            return self._slots.setdefault(url, _Slot())

    def _connect(self, url: BrokerUrl, slot: _Slot, deadline: Deadline, *, patient: bool) -> Link:
        if (former := slot.connection) is not None:
            slot.connection = None
            slot.backoff.lost(time.monotonic(), was_refused=former.is_refused)
        backoff_s = slot.backoff.backoff_s(time.monotonic())
        if backoff_s > (deadline.remaining_s() if patient else 0.0):
            raise NotConnected(f"no connection to {url} after {slot.backoff.failures} attempts: is the broker up?")
        self._closing.wait(backoff_s)
        self._check_open()
        try:
            connection = self._open(url, _connect_timeout_s(deadline))
        except NotConnected:
            slot.backoff.failed(time.monotonic())
            raise
        # close() may have taken the slots meanwhile: it waits for this one's lock, or missed the connection.
        if self._closing.is_set():
            connection.close()
            self._check_open()
        return connection

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise ClientClosed("the client is closed: make a new one")


def _connect_timeout_s(deadline: Deadline) -> float:
    return min(max(deadline.remaining_s(), 0.001), CONNECT_TIMEOUT_S)  # a socket's 0 would mean not to wait at all
