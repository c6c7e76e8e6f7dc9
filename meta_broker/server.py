"""The listening socket, the connections it made, and the journal's progress that wakes them."""

import asyncio
import logging
from collections.abc import Callable

from journal.errors import StorageFailed
from meta_broker.connection import Connection
from meta_broker.errors import CannotListen
from meta_broker.processors.dispatch import Dispatcher

log = logging.getLogger(__name__)

BACKLOG = 1000
TICK_S = 0.5  # the resolution of transaction timeouts (spec 2.6)


class Server:
    """Serves one store to any number of peers. Loop thread only, but for `wake`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_failure: Callable[[StorageFailed], None]) -> None:
        self._loop = loop
        self._on_failure = on_failure
        self._dispatcher: Dispatcher | None = None
        self._connections: set[Connection] = set()
        self._stalled = False
        self._is_woken = False
        self._has_failed = False
        self._server: asyncio.Server | None = None

    async def listen(self, dispatcher: Dispatcher, host: str, port: int) -> int:
        """Open the port and return it. Raises CannotListen."""
        self._dispatcher = dispatcher
        unsent_bytes_max = dispatcher.context.config.broker.unsent_bytes_max

        def connect() -> Connection:
            return Connection(self, dispatcher, self._loop, unsent_bytes_max)

        try:
            self._server = await self._loop.create_server(connect, host, port, backlog=BACKLOG)
        except OSError as error:
            reason = error.strerror or str(error)
            raise CannotListen(
                f"cannot listen on {host}:{port}: {reason}: stop what uses that port, or choose another with --port "
                f"(0: any free one)"
            ) from error
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def wake(self) -> None:
        """The journal made progress. Called on its writer thread; one call a turn reaches the loop."""
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._progress)

    def _progress(self) -> None:
        self._is_woken = False  # before looking: progress made from here on wakes again
        if self._dispatcher is None or self._has_failed:
            return
        try:
            self._dispatcher.context.store.advance()
        except StorageFailed as error:
            self.failed(error)
            return
        if self._stalled and not self.is_journal_full():
            self._stalled = False
            for connection in list(self._connections):
                connection.resume()

    def tick(self) -> None:
        """What is due twice a second: expired branches, connections gone silent."""
        assert self._dispatcher is not None
        context = self._dispatcher.context
        self._dispatcher.transactions.expire()
        silent_since = self._loop.time() - context.config.broker.idle_seconds_max
        for connection in [c for c in self._connections if c.last_active < silent_since]:
            connection.abort()

    # -- connection.ConnectionOwner ---------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        if self._dispatcher is not None:
            self._dispatcher.context.counters.connections += 1

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if self._dispatcher is not None:
            self._dispatcher.context.counters.connections -= 1

    def is_journal_full(self) -> bool:
        assert self._dispatcher is not None
        context = self._dispatcher.context
        if context.store.journal.queued_bytes <= context.config.broker.queued_bytes_max:
            return False
        self._stalled = True
        return True

    def failed(self, error: StorageFailed) -> None:
        """Nothing can be promised any more: drop everybody, once, and tell the broker to end."""
        if not self._has_failed:
            self._has_failed = True
            log.critical("journal stopped error=%s", error)
            for connection in list(self._connections):
                connection.abort()
            self._on_failure(error)

    @property
    def has_connections(self) -> bool:
        return bool(self._connections)

    # -- the end ----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Take no more connections; send what is queued to the ones there are, then close them. Idempotent."""
        if self._server is not None:
            self._server.close()
            for connection in list(self._connections):
                connection.close()
            await self._server.wait_closed()
            self._server = None
