"""Connection pool of an event loop: one connection per broker, opened on demand and after a break."""

import asyncio
import time
from dataclasses import dataclass, field

from meta_client.aio.bridge.bridge import wait
from meta_client.aio.net.connection import Connection
from meta_client.errors import ClientClosed, NotConnected
from meta_client.net.backoff import Backoff
from meta_client.net.connections import ATTEMPT_S, CONNECT_TIMEOUT_S
from meta_client.net.security import PLAIN, Security
from zk.forks import invalidate_after_fork
from zk.tree.broker_url import BrokerUrl


@dataclass(slots=True)
class _Slot:
    connecting: asyncio.Lock = field(default_factory=asyncio.Lock)
    connection: Connection | None = None
    backoff: Backoff = field(default_factory=Backoff)


class Connections:
    """Connection pool. Loop thread only; call close() after its users."""

    def __init__(self, security: Security = PLAIN) -> None:
        self._security = security
        self._slots: dict[BrokerUrl, _Slot] = {}
        self._is_closed = False
        self._waiting: set[asyncio.Timeout] = set()  # of tasks that connect, or back off before
        invalidate_after_fork(self)

    def live(self, url: BrokerUrl) -> Connection | None:
        slot = self._slots.get(url)
        return None if slot is None or slot.connection is None or slot.connection.is_broken else slot.connection

    def get(self, url: BrokerUrl, timeout_s: float, *, patient: bool = True) -> Connection:
        """Connect like `connect`, inside `run`."""
        return self.live(url) or wait(self.connect(url, timeout_s, patient=patient))

    def sleep(self, seconds: float) -> None:
        """Wait, inside `run`."""
        wait(asyncio.sleep(seconds))

    async def connect(self, url: BrokerUrl, timeout_s: float, *, patient: bool = True) -> Connection:
        """Return the live connection to *url*, opening it if necessary. Otherwise like connections.Connections.get.

        Raises NotConnected, ClientClosed.
        """
        self._check_open()
        slot = self._slots.setdefault(url, _Slot())
        try:
            async with asyncio.timeout(None) as until_closed:
                self._waiting.add(until_closed)
                try:
                    return await self._connected(url, slot, timeout_s, patient=patient)
                finally:
                    self._waiting.discard(until_closed)
        except TimeoutError:
            self._check_open()
            raise

    async def _connected(self, url: BrokerUrl, slot: _Slot, timeout_s: float, *, patient: bool) -> Connection:
        try:
            async with asyncio.timeout(timeout_s if patient else min(timeout_s, ATTEMPT_S)):
                await slot.connecting.acquire()
        except TimeoutError as error:
            raise NotConnected(f"no connection to {url} yet: is the broker up?") from error
        try:
            return self.live(url) or await self._connect(url, slot, timeout_s if patient else 0.0)
        finally:
            slot.connecting.release()

    async def _connect(self, url: BrokerUrl, slot: _Slot, patience_s: float) -> Connection:
        if (former := slot.connection) is not None:
            slot.connection = None
            slot.backoff.lost(time.monotonic(), was_refused=former.is_refused)
        backoff_s = slot.backoff.backoff_s(time.monotonic())
        if backoff_s > patience_s:
            raise NotConnected(f"no connection to {url} after {slot.backoff.failures} attempts: is the broker up?")
        await asyncio.sleep(backoff_s)
        left_s = patience_s - backoff_s if patience_s else CONNECT_TIMEOUT_S
        try:
            connection = await Connection.open(url, min(max(left_s, 0.001), CONNECT_TIMEOUT_S), self._security)
        except NotConnected:
            slot.backoff.failed(time.monotonic())
            raise
        if self._is_closed:
            connection.close()
            await connection.wait_closed()
            self._check_open()
        slot.connection = connection
        return connection

    async def close(self) -> None:
        """Close every connection; pending requests fail. Idempotent."""
        self._is_closed = True
        slots, self._slots = self._slots, {}
        for until_closed in self._waiting:
            until_closed.reschedule(asyncio.get_running_loop().time())
        connections = [slot.connection for slot in slots.values() if slot.connection is not None]
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.wait_closed()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the client is closed: make a new one")
