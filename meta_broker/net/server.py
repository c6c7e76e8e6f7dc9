"""The listening socket, its connections, and the journal's progress that wakes them."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

from journal.errors import StorageFailed
from journal.wal.inline_commit import LoopHooks
from meta_broker.access.accounts import Limit, QuotaAccount
from meta_broker.access.principal import Principal
from meta_broker.access.rules import Principals
from meta_broker.fd_limits import connections_allowed
from meta_broker.handlers.dispatch import Dispatcher
from meta_broker.handlers.gate import LOGIN_S_MAX
from meta_broker.net.budget import Budget
from meta_broker.net.busy_poll import BusyPoll
from meta_broker.net.connection import ClientConnection
from meta_broker.net.connection_limit import ConnectionLimit
from meta_broker.net.connection_owner import ConnectionBounds
from meta_broker.net.listening import cannot_listen, reserved
from meta_broker.net.tls_listener import PortTls, TlsListener
from meta_broker.net.turns import Turns
from meta_client.protocol.body_buffers import BodyBuffers
from meta_client.protocol.limits import Limits

log = logging.getLogger(__name__)

BACKLOG = 1000
GOODBYE_S = 2.0  # at a stop, for peers to read what is queued
LAST_WORD_S = 0.5  # after that, for peers whose requests were refused
RECEIVE_BYTES = 64 * 1024  # at a time, of requests that are not large
KEPT_BYTES_MAX = 8 * 1024 * 1024  # of buffers for large ones
TICK_S = 0.5  # the resolution of transaction timeouts (spec 2.6)


class Server:
    """Serves one store to its peers. Loop thread only, except `wake`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_failure: Callable[[StorageFailed], None],
        tls: PortTls | None = None,
    ) -> None:
        self._loop = loop
        self.tls = tls
        self._on_failure = on_failure
        self._dispatcher: Dispatcher | None = None
        self._connections: set[ClientConnection] = set()
        self.receiving: Budget[ClientConnection] = Budget(0)  # bounds: see `listen`; any thread may read the totals
        self.sending: Budget[ClientConnection] = Budget(0)
        self.limit = ConnectionLimit(loop, 0, 0)
        self._stalled = False
        self._is_woken = False
        self.buffers = BodyBuffers(KEPT_BYTES_MAX)
        self.received_chunk = memoryview(bytearray(RECEIVE_BYTES))
        self.turns = Turns(loop.call_soon)
        self._busy_poll = BusyPoll(loop.call_soon)
        self._unflushed: list[ClientConnection] | None = None  # connections with new replies, while progress() runs
        self._has_failed = False
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server | TlsListener] = []
        self._no_connections = asyncio.Event()  # set while there is no connection
        self._no_connections.set()

    def reserve(self, host: str, port: int) -> int:
        """Bind the address and return the port, before anything else is opened; `listen` accepts connections.

        Raises CannotListen.
        """
        self._sockets = reserved(host, port)
        return int(self._sockets[0].getsockname()[1])

    async def listen(self, dispatcher: Dispatcher) -> None:
        """Accept connections. Raises CannotListen."""
        self._dispatcher = dispatcher
        section = dispatcher.context.config.broker
        unopened = dispatcher.context.store.indexes.unopened
        allowed = connections_allowed(section.connections_max, unopened)
        self.limit = ConnectionLimit(self._loop, allowed, section.connections_per_address_max)
        self.receiving = Budget(section.received_bytes_total_max)
        self.sending = Budget(section.unsent_bytes_total_max)
        bounds = ConnectionBounds(
            decoder=Limits(line_bytes_max=section.line_bytes_max, body_bytes_max=section.body_bytes_max),
            unsent_bytes_max=section.unsent_bytes_max,
            requests_in_flight_max=section.requests_in_flight_max,
        )

        def connect() -> ClientConnection:
            return ClientConnection(self, dispatcher, self._loop, bounds)

        while self._sockets:
            host, port = self._sockets[0].getsockname()[:2]
            try:
                if self.tls is not None:
                    self._sockets[0].listen(BACKLOG)
                    self._servers.append(TlsListener(self._loop, self._sockets[0], self.tls, connect))
                    self._sockets.pop(0)
                    continue
                self._servers.append(await self._loop.create_server(connect, sock=self._sockets[0], backlog=BACKLOG))
            except OSError as error:  # another process listened on it first
                raise cannot_listen(host, port, error) from error
            self._sockets.pop(0)

    def wake(self) -> None:
        """Schedule `progress` after progress of the journal. For its writer thread; at most one call a turn reaches
        the loop.
        """
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self.progress)

    def loop_hooks(self) -> LoopHooks:
        """Return the hooks of this loop for the journal it appends to."""
        return LoopHooks(self._defer, self._commit_done)

    def _defer(self, action: Callable[[], None]) -> None:
        self._busy_poll.on_request()
        self._loop.call_soon(action)

    def _commit_done(self) -> None:
        if self.progress():
            self._busy_poll.on_reply()

    def progress(self) -> bool:
        """Advance the high watermark; return whether replies were sent. Loop thread."""
        self._is_woken = False  # first: later progress wakes the loop again
        if self._dispatcher is None or self._has_failed:
            return False
        unflushed: list[ClientConnection] = []
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
            master.on_high_watermark()
        elif (slave := self._dispatcher.context.slave) is not None:
            for topic in slave.progress():
                self._dispatcher.topic_decided(topic)
        self._maybe_continue()
        return bool(unflushed)

    def _maybe_continue(self) -> None:
        if self._stalled and not self.is_journal_full():
            self._stalled = False
            for connection in list(self._connections):
                connection.handle_queued()

    def expire(self) -> bool:
        """Roll back some of the branches that timed out. Call it twice a second. True: call again, after others'
        turn.

        Raises StorageFailed once the journal has stopped.
        """
        assert self._dispatcher is not None
        return self._dispatcher.expire() and not self.is_journal_full()

    def tick(self) -> None:
        """Abort silent connections and update the others' budgets. Call it twice a second."""
        assert self._dispatcher is not None
        context = self._dispatcher.context
        silent_since = self._loop.time() - context.config.broker.idle_seconds_max
        unknown_since = self._loop.time() - LOGIN_S_MAX if self._dispatcher.gate is not None else 0.0
        for connection in list(self._connections):
            if connection.last_active < silent_since:
                connection.abort()
            elif connection.principal is None and connection.opened_at < unknown_since:
                connection.abort_with(f"no login within {LOGIN_S_MAX:g} s")
            else:
                connection.report_unsent(made_progress=False)
        context.accounts.sweep()
        self._maybe_continue()  # once slaves are late, waiting writes are refused

    def renew_access(self, rules: Principals | None) -> None:
        """Use *rules*, and the quotas of the configuration, from now on: connections and links of principals that
        changed end, and connections that belong to another one now."""
        assert self._dispatcher is not None
        if (gate := self._dispatcher.gate) is not None and rules is not None:
            gate.renew(rules)
        for connection in list(self._connections):
            connection.login = None  # begun by the former rules: it starts over, which fails
            if gate is not None and gate.has_changed(connection):
                connection.abort_with("the rights of its principal have changed")
            else:
                connection.use_account(self._account_of(connection, connection.principal))

    def _account_of(self, connection: ClientConnection, principal: Principal | None) -> QuotaAccount | None:
        """Return the account that *connection* uses as *principal*; None: it has no limit."""
        assert self._dispatcher is not None
        context, gate = self._dispatcher.context, self._dispatcher.gate
        if principal is None or gate is None:
            return context.accounts.of_address(connection.network, context.config.address_quota)
        return context.accounts.of_principal(principal.name, gate.rules.quota_of(principal))

    # -- connection_owner.ConnectionOwner --------------------------------------------------------------------

    def flush_later(self, connection: ClientConnection) -> None:
        if self._unflushed is None:
            self._loop.call_soon(connection.flush)
        else:
            self._unflushed.append(connection)

    def opened(self, connection: ClientConnection, transport: asyncio.Transport) -> bool:
        assert self._dispatcher is not None
        connection.identify(transport, self._dispatcher.gate)
        account = self._account_of(connection, connection.principal)
        if not self.limit.admits(transport, connection, account, len(self._connections)):
            return False
        self._connections.add(connection)
        connection.use_account(account)
        self._no_connections.clear()
        self._dispatcher.context.counters.connections += 1
        return True

    def received(self, connection: ClientConnection, held: int, *, made_progress: bool) -> None:
        budget = self.receiving
        budget.record(connection, held, made_progress=made_progress)
        while (stalled := budget.excess()) is not None:
            stalled.drop_body(
                f"requests that are not all here hold {budget.total} bytes: send it again later, "
                f"received_bytes_total_max is {budget.bytes_max}"
            )

    def unsent(self, connection: ClientConnection, held: int, *, made_progress: bool) -> None:
        budget = self.sending
        budget.record(connection, held, made_progress=made_progress)
        while (slowest := budget.excess()) is not None:
            if (left := slowest.unsent_bytes) < budget.held_by(slowest):  # it has read some since the last report
                budget.record(slowest, left, made_progress=True)
                continue
            reason = f"{budget.total} bytes of answers wait, unsent_bytes_total_max is {budget.bytes_max}"
            budget.record(slowest, 0, made_progress=False)
            slowest.abort_with(reason)

    def closed(self, connection: ClientConnection) -> None:
        if connection not in self._connections:
            return  # beyond the limit, dropped
        assert self._dispatcher is not None
        self._dispatcher.context.counters.connections -= 1
        self._connections.remove(connection)
        self.limit.closed(connection.network)
        if not self._connections:
            self._no_connections.set()

    def become(self, connection: ClientConnection, principal: Principal) -> str:
        account = self._account_of(connection, principal)
        if account is not None and account is not connection.account and (why := account.why_no_connection()):
            account.refused(Limit.CONNECTIONS, self._loop.time(), connection.name)
            return why
        connection.use_account(account)
        return ""

    def is_journal_full(self) -> bool:
        assert self._dispatcher is not None
        context = self._dispatcher.context
        journal = context.store.journal
        if (
            journal.queued_bytes <= context.config.broker.queued_bytes_max
            # Else records wait for a segment that is not there yet: on a full disk the reserve has room for one.
            and journal.end <= journal.segments.end
            and (context.master is None or not context.master.is_full)
        ):
            return False
        self._stalled = True
        return True

    def failed(self, error: StorageFailed) -> None:
        """Drop all connections, once, and end the broker: nothing can be acknowledged any more."""
        if not self._has_failed:
            log.critical("journal stopped error=%s", error)
            self.abort()
            self._on_failure(error)

    def abort(self) -> None:
        """Drop all connections, accept no more, and answer nothing, as the end of the process does; then call
        `close`."""
        self._has_failed = True
        self._release()
        for connection in list(self._connections):
            connection.abort()

    @property
    def has_connections(self) -> bool:
        return bool(self._connections)

    # -- the end ---------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop accepting; answer and close the connections, aborting those whose peers do not read. Idempotent."""
        self._release()
        for connection in list(self._connections):
            connection.quit()
        await self._wait_no_connections(GOODBYE_S)
        if self._dispatcher is not None:
            await self._dispatcher.close()
        await self._wait_no_connections(LAST_WORD_S)
        for connection in list(self._connections):
            connection.abort()
        self.limit.abort()
        await self._no_connections.wait()

    async def _wait_no_connections(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._no_connections.wait(), seconds)

    def _release(self) -> None:
        for server in self._servers:
            server.close()
        while self._sockets:
            self._sockets.pop().close()
