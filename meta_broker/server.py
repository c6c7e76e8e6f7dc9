"""The listening socket, the connections it made, and the journal's progress that wakes them."""

import asyncio
import contextlib
import errno
import functools
import logging
import socket
from collections.abc import Callable
from typing import Any

from journal.errors import StorageFailed
from journal.turns import Turns
from meta_broker.budget import Budget
from meta_broker.connection import Connection
from meta_broker.connection_owner import ConnectionBounds
from meta_broker.descriptors import room_for
from meta_broker.errors import CannotListen
from meta_broker.lookout import Lookout
from meta_broker.processors.dispatch import Dispatcher
from meta_broker.refusal import REFUSED_MAX, refusal_line, refuse
from meta_client.protocol.limits import Limits

log = logging.getLogger(__name__)

BACKLOG = 1000
GOODBYE_S = 2.0  # at a stop, for peers to take what is queued for them
LAST_WORD_S = 0.5  # after that, for those whose answers had to be given up
TICK_S = 0.5  # the resolution of transaction timeouts (spec 2.6)


class Server:
    """Serves one store to any number of peers. Loop thread only, but for `wake`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_failure: Callable[[StorageFailed], None]) -> None:
        self._loop = loop
        self._on_failure = on_failure
        self._dispatcher: Dispatcher | None = None
        self._connections: set[Connection] = set()
        self._receiving: Budget[Connection] = Budget(0)  # bounds: see `listen`
        self._sending: Budget[Connection] = Budget(0)
        self._connections_max = 0
        self._is_crowded = False  # it was said once that there are too many
        self._refused: set[asyncio.Transport] = set()  # of connections too many that are being told so
        self._stalled = False
        self._is_woken = False
        self._lookout = Lookout(loop.call_soon)
        self._unflushed: list[Connection] | None = None  # while the fence moves: who has answers by it
        self._has_failed = False
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._deserted = asyncio.Event()  # set while there is no connection
        self._deserted.set()

    def reserve(self, host: str, port: int) -> int:
        """Take the address, before anything else is touched, and return the port; `listen` lets peers in.

        Raises CannotListen.
        """
        absent: OSError | None = None
        try:
            for family, kind, protocol, _, address in _addresses(host, port):
                try:
                    taken = _bound(family, kind, protocol, (address[0], port, *address[2:]))
                except OSError as error:
                    if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                        raise
                    absent = error  # a name's IPv6 address where IPv6 is off, say: the others may do
                else:
                    self._sockets.append(taken)
                    port = taken.getsockname()[1]  # 0 was any free one: the same for every address of the host
            if absent is not None and not self._sockets:
                raise absent
        except OSError as error:
            self._release()
            raise _cannot_listen(host, port, error) from error
        return port

    async def listen(self, dispatcher: Dispatcher) -> None:
        """Let peers in. Raises CannotListen."""
        self._dispatcher = dispatcher
        section = dispatcher.context.config.broker
        self._connections_max = room_for(section.connections_max, dispatcher.context.store.indexes.unopened)
        self._receiving = Budget(section.received_bytes_total_max)
        self._sending = Budget(section.unsent_bytes_total_max)
        bounds = ConnectionBounds(
            decoder=Limits(line_bytes_max=section.line_bytes_max, body_bytes_max=section.body_bytes_max),
            unsent_bytes_max=section.unsent_bytes_max,
            requests_in_flight_max=section.requests_in_flight_max,
        )

        def connect() -> Connection:
            return Connection(self, dispatcher, self._loop, bounds)

        while self._sockets:
            host, port = self._sockets[0].getsockname()[:2]
            try:
                self._servers.append(await self._loop.create_server(connect, sock=self._sockets[0], backlog=BACKLOG))
            except OSError as error:  # somebody reserved it at the same moment and was faster
                raise _cannot_listen(host, port, error) from error
            self._sockets.pop(0)

    def wake(self) -> None:
        """The journal made progress. Called on its writer thread; one call a turn reaches the loop."""
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self.progress)

    def turns(self) -> Turns:
        """What this loop does for the journal that it appends to."""
        return Turns(self._defer, self._turn_written)

    def _defer(self, action: Callable[[], None]) -> None:
        self._lookout.came()
        self._loop.call_soon(action)

    def _turn_written(self) -> None:
        if self.progress():
            self._lookout.answered()

    def progress(self) -> bool:
        """Let the fence move as far as it may; whether answers left for that. Loop thread."""
        self._is_woken = False  # before looking: progress made from here on wakes again
        if self._dispatcher is None or self._has_failed:
            return False
        unflushed: list[Connection] = []
        self._unflushed = unflushed
        if (master := self._dispatcher.context.master) is not None:
            master.pump()  # first: slaves fsync while this broker answers
        try:
            if not self._dispatcher.context.store.advance():
                self._loop.call_soon(self.progress)
        except StorageFailed as error:
            self.failed(error)
            return False
        finally:
            self._unflushed = None
        for connection in unflushed:
            connection.flush()
        if master is not None:
            master.fence_moved()
        elif (slave := self._dispatcher.context.slave) is not None:
            slave.progress()
        self._maybe_resume()
        return bool(unflushed)

    def _maybe_resume(self) -> None:
        if self._stalled and not self.is_journal_full():
            self._stalled = False
            for connection in list(self._connections):
                connection.resume()

    def expire(self) -> bool:
        """Roll back some of what has run out of time; due twice a second. True: go on, once others had their turn.

        Raises StorageFailed once the journal has stopped.
        """
        assert self._dispatcher is not None
        return self._dispatcher.expire() and not self.is_journal_full()

    def tick(self) -> None:
        """What is due twice a second: connections gone silent, and how much the others hold."""
        assert self._dispatcher is not None
        context = self._dispatcher.context
        silent_since = self._loop.time() - context.config.broker.idle_seconds_max
        for connection in list(self._connections):
            if connection.last_active < silent_since:
                connection.abort()
            else:
                connection.note_unsent(gets_on=False)
        self._maybe_resume()  # slaves that are late refuse what they held up before

    # -- connection.ConnectionOwner ---------------------------------------------------------------------------

    def flush_later(self, connection: Connection) -> None:
        if self._unflushed is None:
            self._loop.call_soon(connection.flush)
        else:
            self._unflushed.append(connection)

    def opened(self, connection: Connection, transport: asyncio.Transport) -> bool:
        assert self._dispatcher is not None
        context = self._dispatcher.context
        if len(self._connections) >= self._connections_max:
            self._refuse(transport)
            return False
        self._is_crowded = False
        self._connections.add(connection)
        self._deserted.clear()
        context.counters.connections += 1
        return True

    def _refuse(self, transport: asyncio.Transport) -> None:
        if not self._is_crowded:
            self._is_crowded = True
            log.warning("connections refused open=%d", self._connections_max)
        if len(self._refused) >= REFUSED_MAX:
            transport.abort()
            return
        self._refused.add(transport)
        ended = functools.partial(self._refused.discard, transport)
        refuse(self._loop, transport, refusal_line(self._connections_max), ended)

    def received(self, connection: Connection, held: int, *, gets_on: bool) -> None:
        budget = self._receiving
        budget.note(connection, held, gets_on=gets_on)
        while (stalled := budget.excess()) is not None:
            stalled.drop_body(
                f"requests that are not all here hold {budget.total} bytes: send it again later, "
                f"received_bytes_total_max is {budget.bytes_max}"
            )

    def unsent(self, connection: Connection, held: int, *, gets_on: bool) -> None:
        budget = self._sending
        budget.note(connection, held, gets_on=gets_on)
        while (deaf := budget.excess()) is not None:
            if (left := deaf.unsent_bytes) < budget.held_by(deaf):  # it has taken some since: no news reached us
                budget.note(deaf, left, gets_on=True)
                continue
            reason = f"{budget.total} bytes of answers wait, unsent_bytes_total_max is {budget.bytes_max}"
            budget.note(deaf, 0, gets_on=False)
            deaf.drop(reason)

    def closed(self, connection: Connection) -> None:
        if connection not in self._connections:
            return  # one too many, dropped without a word
        assert self._dispatcher is not None
        self._dispatcher.context.counters.connections -= 1
        self._connections.remove(connection)
        if not self._connections:
            self._deserted.set()

    def is_journal_full(self) -> bool:
        assert self._dispatcher is not None
        context = self._dispatcher.context
        if context.store.journal.queued_bytes <= context.config.broker.queued_bytes_max and (
            context.master is None or not context.master.is_full
        ):
            return False
        self._stalled = True
        return True

    def failed(self, error: StorageFailed) -> None:
        """Nothing can be promised any more: drop everybody, once, and tell the broker to end."""
        if not self._has_failed:
            self._has_failed = True
            log.critical("journal stopped error=%s", error)
            self._release()
            for connection in list(self._connections):
                connection.abort()
            self._on_failure(error)

    @property
    def has_connections(self) -> bool:
        return bool(self._connections)

    # -- the end ----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Take no more connections; answer and close the ones there are, and drop who does not listen. Idempotent."""
        self._release()
        for connection in list(self._connections):
            connection.close()
        await self._wait_deserted(GOODBYE_S)
        if self._dispatcher is not None:
            await self._dispatcher.close()
        await self._wait_deserted(LAST_WORD_S)
        for connection in list(self._connections):
            connection.abort()
        for transport in list(self._refused):
            transport.abort()
        await self._deserted.wait()

    async def _wait_deserted(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._deserted.wait(), seconds)

    def _release(self) -> None:
        """Give the address back."""
        for server in self._servers:
            server.close()
        while self._sockets:
            self._sockets.pop().close()


def _addresses(host: str, port: int) -> list[tuple[Any, ...]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys(found))


def _bound(family: int, kind: int, protocol: int, address: tuple[Any, ...]) -> socket.socket:
    """A socket on *address*, which nobody can connect to yet. Raises OSError and leaves nothing open."""
    taken = socket.socket(family, kind, protocol)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        taken.bind(address)
    except OSError:
        taken.close()
        raise
    return taken


def _cannot_listen(host: str, port: int, error: OSError) -> CannotListen:
    if error.errno in (errno.EADDRINUSE, errno.EACCES):
        remedy = "stop what uses that port, or choose another with --port (0: any free one)"
    else:
        remedy = "set broker.host to a name or address of this machine"
    return CannotListen(f"cannot listen on {host}:{port}: {error.strerror or error}: {remedy}")
