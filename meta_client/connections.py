"""Connections to brokers: one each, made when asked for, made again after a break."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from meta_client.back_off import BackOff
from meta_client.connection import Connection
from meta_client.deadline import Deadline
from meta_client.errors import ClientClosed, NotConnected
from meta_client.transport import Link
from zk.broker_url import BrokerUrl
from zk.forks import made_here

CONNECT_TIMEOUT_S = 4.0  # a broker of the same data centre answers in milliseconds, or not at all
ATTEMPT_S = 0.5  # what an attempt takes if it succeeds at all, with room to spare


Connect = Callable[[BrokerUrl, float], Link]


@dataclass(slots=True)
class _Slot:
    """What is known of one broker. Everything but the lock is guarded by it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    connection: Link | None = None
    back_off: BackOff = field(default_factory=BackOff)


class Connections:
    """The pool. Any thread may use it; close() once nobody does."""

    def __init__(self, connect: Connect = Connection.open) -> None:
        """*connect* makes a connection within some seconds, or raises NotConnected."""
        self._open = connect
        self._lock = threading.Lock()  # guards what is added to the slots, and that close() takes all
        self._slots: dict[BrokerUrl, _Slot] = {}
        self._closing = threading.Event()
        made_here(self)

    def twin(self) -> "Connections":
        """An empty pool of connections that are made alike."""
        return Connections(self._open)

    def get(self, url: BrokerUrl, timeout_s: float, *, patient: bool = True) -> Link:
        """The live connection to *url*, made now if there is none.

        Tries to connect once at most, after the rest that earlier failures call for; who is not *patient* is
        refused instead of resting, or of waiting long for another thread's attempt. Raises NotConnected,
        ClientClosed.
        """
        slot = self._slots.get(url) or self._slot(url)  # most find both, with every request
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

    def close(self) -> None:
        """Close every connection; what is pending on them fails. Idempotent."""
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
            slot.back_off.lost(time.monotonic(), was_refused=former.is_refused)
        rest_s = slot.back_off.rest_s(time.monotonic())
        if rest_s > (deadline.remaining_s() if patient else 0.0):
            raise NotConnected(f"no connection to {url} after {slot.back_off.failures} attempts: is the broker up?")
        self._closing.wait(rest_s)
        self._check_open()
        try:
            connection = self._open(url, _connect_timeout_s(deadline))
        except NotConnected:
            slot.back_off.failed(time.monotonic())
            raise
        if (
            self._closing.is_set()
        ):  # close() has taken the slots, and waits for this one's lock or missed the connection
            connection.close()
            self._check_open()
        return connection

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise ClientClosed("the client is closed: make a new one")


def _connect_timeout_s(deadline: Deadline) -> float:
    return min(max(deadline.remaining_s(), 0.001), CONNECT_TIMEOUT_S)  # a socket's 0 would mean not to wait at all
