"""One TCP connection to a broker in an event loop: many requests in flight. The twin of net/connection.py."""

import asyncio
import functools
import logging
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Self, cast

from meta_client.aio.bridge.bridge import is_inside, run, wait
from meta_client.errors import (
    ClientClosed,
    ConnectionLost,
    InvalidSecurity,
    NotConnected,
    ReplyTimeout,
)
from meta_client.net.connection import RECEIVE_BYTES
from meta_client.net.login import log_in
from meta_client.net.pending_reply import OnDone, PendingReply, RequestsInFlight
from meta_client.net.security import PLAIN, Security
from meta_client.net.wakeups import wake
from meta_client.protocol.encoder import encode_flight
from meta_client.protocol.errors import RemoteProtocolError
from meta_client.protocol.requests import Body, Request
from meta_client.protocol.responses import Response
from zk.forks import detach_descriptor, invalidate_after_fork
from zk.tree.broker_url import BrokerUrl

_log = logging.getLogger(__name__)


class Connection(RequestsInFlight, asyncio.BufferedProtocol):
    """A TCP connection; once broken it stays broken. Loop thread only; other threads may also wait for a reply."""

    def __init__(self, url: BrokerUrl) -> None:
        super().__init__(url)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()  # the loop's
        self._transport: asyncio.Transport | None = None
        self._awaited: dict[int, list[asyncio.Future[None]]] = {}  # by opaque, replies that tasks wait for
        self._gone = self._loop.create_future()  # the socket is closed
        self._received = memoryview(bytearray(RECEIVE_BYTES))  # what does not go into the body of a large answer
        self._is_body = False
        self._active_at = self._loop.time()  # last byte in or out
        self._beat_due: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, url: BrokerUrl, timeout_s: float, security: Security = PLAIN) -> Self:
        """Connect, and log in if *security* has credentials. Raises NotConnected (LoginFailed)."""
        loop = asyncio.get_running_loop()
        try:
            context = None if security.tls is None else security.tls.context()
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(lambda: cls(url), url.host, url.port, ssl=context)
        except InvalidSecurity as error:
            raise NotConnected(f"no connection to {url}: {error}") from error
        except (OSError, TimeoutError) as error:
            why = str(error) or f"nothing within {timeout_s:g} s"
            raise NotConnected(f"no connection to {url} ({why}): is the broker up and its port reachable?") from error
        if security.credentials is not None:
            try:
                await run(log_in, connection, security.credentials, timeout_s)
            except BaseException:
                connection.close()
                raise
        return connection

    @property
    def is_broken(self) -> bool:
        """True if nothing can be sent any more."""
        return self._failure is not None

    def _submit(self, requests: Sequence[Request], on_done: OnDone | None, *, is_urgent: bool) -> list[PendingReply]:
        del is_urgent  # requests of one loop iteration are sent together
        pieces = encode_flight(requests)
        replies = self._add_pending(requests, on_done)
        self._active_at = self._loop.time()
        self._write(pieces)
        return replies

    def abandon(self, opaque: int) -> bool:
        """Drop a pending request; return False if it has been answered or failed already."""
        return self._pending.pop(opaque, None) is not None

    def expire(self, opaque: int, after_s: float) -> None:
        if threading.get_ident() != self._thread and not self._loop.is_closed():
            with suppress(RuntimeError):  # the loop is closed, so no callback runs
                self._loop.call_soon_threadsafe(self.expire, opaque, after_s)
                return
        if (reply := self._pending.pop(opaque, None)) is not None:
            reply.fail(ReplyTimeout(f"{after_s:g} s"))
            self._wake(reply)

    def close(self) -> None:
        """Fail what is pending with ConnectionLost and begin to close the socket. Idempotent."""
        self._break(ClientClosed(f"the connection to {self.url} was closed by this client"))

    async def wait_closed(self) -> None:
        """Return once the socket of a broken connection is closed."""
        await asyncio.shield(self._gone)

    # -- waiting -----------------------------------------------------------------------------------------------

    def read_for(self, reply: PendingReply, deadline: float) -> None:
        """Wait, inside `run`. In other threads do nothing: the loop reads."""
        if not reply.is_done and is_inside():
            wait(self._until_here(reply, deadline))

    async def _until_here(self, reply: PendingReply, deadline: float) -> None:
        awaited = self._loop.create_future()
        self._awaited.setdefault(reply.opaque, []).append(awaited)
        timer = self._loop.call_at(deadline, self._wake, reply)  # the loop's clock is time.monotonic
        try:
            await awaited
        finally:
            timer.cancel()

    def _wake(self, reply: PendingReply) -> None:
        for awaited in self._awaited.pop(reply.opaque, ()):
            if not awaited.done():
                awaited.set_result(None)
        if reply.is_done and reply.waiters:
            wake((reply,))

    # -- asyncio.Protocol --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        invalidate_after_fork(self, functools.partial(detach_descriptor, transport.get_extra_info("socket")))
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._schedule_heartbeat()

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        room = self._decoder.body_room
        self._is_body = room is not None
        return self._received if room is None else room

    def buffer_updated(self, nbytes: int) -> None:
        self._active_at = self._loop.time()
        try:
            if self._is_body:
                self._deliver(self._decoder.body_received(nbytes))
            else:
                self._deliver(self._decoder.receive_data(bytes(self._received[:nbytes])))
        except RemoteProtocolError as error:
            self._deliver(self._decoder.completed_before_failure)
            self._break(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._break(exc or ConnectionLost("the broker closed it"))
        self._gone.set_result(None)

    def _deliver(self, responses: list[Response]) -> None:
        for response in responses:
            if (reply := self._pending.pop(response.opaque, None)) is not None:
                reply.succeed(response)
                if self._awaited or reply.waiters:
                    self._wake(reply)
            else:
                self._on_unawaited(response)

    # -- heartbeats --------------------------------------------------------------------------------------------

    def _schedule_heartbeat(self) -> None:
        wait_s = self._beat.wait_s(self._active_at, self._loop.time())
        self._beat_due = self._loop.call_later(wait_s, self._check_heartbeat)

    def _check_heartbeat(self) -> None:
        self._obey(self._beat.check(self._active_at, self._loop.time()))
        if self._failure is None:
            self._schedule_heartbeat()

    def _write(self, pieces: list[Body]) -> None:
        if self._transport is not None:
            self._transport.writelines(pieces)

    def _break(self, failure: BaseException) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        pending, self._pending = self._pending, {}
        if self._beat_due is not None:
            self._beat_due.cancel()
        if self._transport is not None:
            invalidate_after_fork(self)  # the descriptor may be reused from here on
            self._transport.abort()
        for reply in pending.values():
            reply.fail(failure)
            self._wake(reply)
        if not isinstance(failure, ClientClosed):
            _log.info("connection lost broker=%s pending=%d error=%s", self.url, len(pending), failure)
