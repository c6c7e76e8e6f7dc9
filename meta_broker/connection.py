"""One client's connection: bytes to requests, answers to bytes, and when to stop reading."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from journal.errors import StorageFailed
from journal.transaction_store import Transaction
from journal.xid import LocalKey
from meta_broker.processors.dispatch import Dispatcher
from meta_client.protocol.decoder import RequestDecoder
from meta_client.protocol.errors import RemoteProtocolError
from meta_client.protocol.requests import Request

log = logging.getLogger(__name__)

# Of one connection, before the others have their turn: a receive buffer holds thousands of short requests.
REQUESTS_PER_TURN = 128


class ConnectionOwner(Protocol):
    """The server, as a connection sees it."""

    def opened(self, connection: "Connection") -> None: ...

    def closed(self, connection: "Connection") -> None: ...

    def is_journal_full(self) -> bool:
        """Whether so much waits to be written that sockets must not be read; `resume` follows when it is over."""

    def failed(self, error: StorageFailed) -> None:
        """The journal has stopped: so must the broker."""


class Connection(asyncio.Protocol):
    """Handles the requests of one peer in their order. Loop thread only.

    Answers of one turn of the loop leave in one write. What is unsent is bounded: beyond the bound requests
    wait, undone, and the socket is not read, so that a peer that does not read costs a bounded amount.
    """

    def __init__(
        self,
        owner: ConnectionOwner,
        dispatcher: Dispatcher,
        loop: asyncio.AbstractEventLoop,
        unsent_bytes_max: int,
    ) -> None:
        self.local_transactions: dict[LocalKey, Transaction] = {}
        self.last_active = loop.time()
        self._owner = owner
        self._dispatch: Callable[[Request, Connection], None] = dispatcher.handle
        self._dispatcher = dispatcher
        self._loop = loop
        self._unsent_bytes_max = unsent_bytes_max
        self._decoder = RequestDecoder()
        self._transport: asyncio.Transport | None = None
        self._requests: deque[Request] = deque()
        self._answers: list[bytes | memoryview] = []
        self._answer_bytes = 0
        self._is_flush_due = False
        self._is_work_due = False
        self._is_reading = True
        self._can_write = True
        self._is_deaf = False  # nothing more is read: what was asked is answered, then the connection closes
        self._is_quitting = False  # nothing more is handled
        self._is_leaving = False  # nothing more is to be sent
        self._name = "?"

    # -- asyncio.Protocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._unsent_bytes_max)
        self._name = str(self._transport.get_extra_info("peername"))
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        self.last_active = self._loop.time()
        try:
            self._requests.extend(self._decoder.receive_data(data))
        except RemoteProtocolError as error:
            if not self._is_deaf:
                log.warning("connection closed peer=%s reason=%s", self._name, error)
                self._requests.extend(self._decoder.completed_before_failure)
            self._is_deaf = True
        self._work()

    def pause_writing(self) -> None:
        self._can_write = False

    def resume_writing(self) -> None:
        self._can_write = True
        self.last_active = self._loop.time()
        self._flush()
        self._work()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # a reset is an ordinary goodbye: genuine clients close with SO_LINGER 0
        self._transport = None
        self._requests.clear()
        self._answers.clear()
        try:
            self._dispatcher.peer_gone(self)
        except StorageFailed as error:
            self._owner.failed(error)
        self._owner.closed(self)

    # -- processors.context.Peer ------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Queue an answer; dropped when the peer has gone."""
        if self._transport is not None:
            self._answers.append(data)
            self._answer_bytes += len(data)
            if not self._is_flush_due:
                self._is_flush_due = True
                self._loop.call_soon(self._flush)

    def send_buffers(self, buffers: list[bytes | memoryview], size: int) -> None:
        """Queue an answer in pieces that are not copied."""
        if self._transport is not None:
            self._answers.extend(buffers)
            self._answer_bytes += size
            if not self._is_flush_due:
                self._is_flush_due = True
                self._loop.call_soon(self._flush)

    def again(self, request: Request) -> None:
        """Handle a request that has waited, after the ones that are here."""
        if self._transport is not None:
            self._requests.append(request)
            self._work()

    def quit(self) -> None:
        """Handle nothing more; close once everything asked before is answered, at the fence, and sent."""
        if not self._is_quitting:
            self._requests.clear()
            self._dispatcher.release(self)
            self._is_quitting = True
            self._dispatcher.after_answers(self._leave)

    # -- the work ---------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """The journal has room again."""
        self._work()

    def abort(self) -> None:
        """Drop the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Answer what was handled, then close."""
        self.quit()

    def _leave(self) -> None:
        self._is_leaving = True
        self._flush()

    def _work(self) -> None:
        """Handle requests until none is left, or a bound says wait; read the socket only if none is left."""
        requests, dispatch, left = self._requests, self._dispatch, REQUESTS_PER_TURN
        try:
            while requests and self._may_work():
                if not left:
                    self._work_later()
                    break
                left -= 1
                dispatch(requests.popleft(), self)
        except StorageFailed as error:
            self._owner.failed(error)
        if self._is_deaf and not requests:
            self.quit()
        should_read = not requests and not self._is_deaf and not self._is_quitting
        transport = self._transport
        if should_read != self._is_reading and transport is not None and not transport.is_closing():
            self._is_reading = should_read
            if should_read:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def _work_later(self) -> None:
        if not self._is_work_due:
            self._is_work_due = True
            self._loop.call_soon(self._work_on)

    def _work_on(self) -> None:
        self._is_work_due = False
        self._work()

    def _may_work(self) -> bool:
        if self._answer_bytes > self._unsent_bytes_max:
            self._flush()
        return self._can_write and not self._is_quitting and not self._owner.is_journal_full()

    def _flush(self) -> None:
        self._is_flush_due = False
        transport = self._transport
        if transport is None:
            return
        if self._answers:
            answers, self._answers, self._answer_bytes = self._answers, [], 0
            self.last_active = self._loop.time()
            if len(answers) == 1:
                transport.write(answers[0])
            else:
                transport.writelines(answers)
        if self._is_leaving:
            transport.close()
