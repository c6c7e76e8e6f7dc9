"""One client's connection: bytes to requests, answers to bytes, and when to stop reading."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import cast

from journal.errors import StorageFailed
from journal.transaction_store import Transaction
from journal.xid import BranchKey, LocalKey
from meta_broker.connection_owner import ConnectionBounds, ConnectionOwner
from meta_broker.processors.context import Attach
from meta_broker.processors.dispatch import Dispatcher
from meta_client.protocol.decoder import RequestDecoder
from meta_client.protocol.errors import RemoteProtocolError
from meta_client.protocol.requests import Dropped, Request

log = logging.getLogger(__name__)

# Of one connection, before the others have their turn: a receive buffer holds thousands of short requests.
REQUESTS_PER_TURN = 128


class Connection(asyncio.Protocol):
    """Handles the requests of one peer in their order. Loop thread only.

    Answers of one turn of the loop leave in one write. What is unsent, and how many requests are in flight (handled,
    not answered), is bounded: beyond a bound requests wait, undone, and the socket is not read, so that a peer that
    does not read costs a bounded amount.
    """

    def __init__(
        self,
        owner: "ConnectionOwner[Connection]",
        dispatcher: Dispatcher,
        loop: asyncio.AbstractEventLoop,
        bounds: ConnectionBounds,
    ) -> None:
        self.local_transactions: dict[LocalKey, Transaction] = {}
        self.held_bytes = 0
        self.last_active = loop.time()
        self._owner = owner
        self._dispatch: Callable[[Request | Dropped, Connection], None] = dispatcher.handle
        self._dispatcher = dispatcher
        self._loop = loop
        self._bounds = bounds
        self._decoder = RequestDecoder(bounds.decoder)
        self._transport: asyncio.Transport | None = None
        self._requests: deque[Request | Dropped] = deque()
        self._in_flight = 0  # handled and not answered, but for fetches that wait
        self._unsent_bytes = 0  # as the owner knows it
        self._received_bytes = 0  # of a body that is not all here, as the owner knows it
        self._answers: list[bytes | memoryview] = []
        self._answer_bytes = 0  # of those, and of the deferred
        self._deferred: dict[BranchKey, list[bytes]] = {}  # answers of this turn, by branch
        self._is_flush_due = False
        self._is_work_due = False
        self._is_reading = True
        self._can_write = True
        self._is_held = False  # the request that is handled must be answered before another one is
        self._is_deaf = False  # nothing more is read: what was asked is answered, then the connection closes
        self._is_quitting = False  # nothing more is handled: once nothing is in flight, the connection closes
        self.name = "?"

    # -- asyncio.Protocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        taken = cast(asyncio.Transport, transport)
        if self._owner.opened(self, taken):
            self._transport = taken
            self._transport.set_write_buffer_limits(high=self._bounds.unsent_bytes_max)
            self.name = ":".join(map(str, (self._transport.get_extra_info("peername") or ("?",))[:2]))

    def data_received(self, data: bytes) -> None:
        self.last_active = self._loop.time()
        waiting = len(self._requests)
        try:
            self._requests.extend(self._decoder.receive_data(data))
        except RemoteProtocolError as error:
            if not self._is_deaf:
                log.warning("connection closed peer=%s reason=%s", self.name, error)
                self._requests.extend(self._decoder.completed_before_failure)
            self._is_deaf = True
        self._note_received(gets_on=len(self._requests) > waiting)
        self._work()

    def pause_writing(self) -> None:
        self._can_write = False
        self.note_unsent(gets_on=False)

    def resume_writing(self) -> None:
        self._can_write = True
        self.note_unsent(gets_on=True)
        self.last_active = self._loop.time()
        self.flush()
        self._work()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # a reset is an ordinary goodbye: genuine clients close with SO_LINGER 0
        self._transport = None
        self._requests.clear()
        self._answers.clear()
        self._deferred.clear()
        self._owner.received(self, 0, gets_on=False)
        self._owner.unsent(self, 0, gets_on=False)
        try:
            self._dispatcher.peer_gone(self)
        except StorageFailed as error:
            self._owner.failed(error)
        self._owner.closed(self)

    # -- processors.context.Peer ------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Queue an answer; dropped when the peer has gone."""
        self._in_flight -= 1
        if self._transport is not None:
            self._answers.append(data)
            self._answer_bytes += len(data)
            self._flush_later()

    def send_buffers(self, buffers: list[bytes | memoryview], size: int) -> None:
        """Queue an answer in pieces that are not copied."""
        self._in_flight -= 1
        if self._transport is not None:
            self._answers.extend(buffers)
            self._answer_bytes += size
            self._flush_later()

    def defer(self, key: BranchKey, data: bytes) -> None:
        """Queue an answer about a branch: it leaves with the turn, unless `take_deferred` takes it before."""
        self._in_flight -= 1
        if self._transport is not None:
            self._deferred.setdefault(key, []).append(data)
            self._answer_bytes += len(data)
            self._flush_later()

    def promise(self, answer: bytes) -> None:
        """Nobody has to tell what it would say: the fence waits for this broker's disk alone."""

    def take_deferred(self, key: BranchKey) -> bytes:
        """What was deferred about a branch in this turn, for whoever sends it."""
        if (deferred := self._deferred.pop(key, None)) is None:
            return b""
        data = b"".join(deferred)
        self._answer_bytes -= len(data)
        return data

    def unanswered(self) -> None:
        """What is being handled has no answer, or waits for one elsewhere: it is in flight no more."""
        self._in_flight -= 1

    def again(self, request: Request) -> None:
        """Handle a request that has waited, after the ones that are here."""
        if self._transport is not None:
            self._requests.append(request)
            self._work()

    def hold(self) -> None:
        """Handle nothing more until `go_on`."""
        self._is_held = True

    def go_on(self) -> None:
        """What was held up is answered: handle what came since."""
        self._is_held = False
        self._work()

    def retry(self, request: Request) -> None:
        """Handle *request*, for which everything was held up, once more; then what came since."""
        if self._transport is None:
            return
        self._is_held = False
        try:
            self._dispatch(request, self)
        except StorageFailed as error:
            self._owner.failed(error)
        if not self._is_held:
            self._work()

    def hand_over(self, answer: bytes, attach: Attach) -> bool:
        """Send *answer* and let who *attach* gives speak on the connection from now on, which is no client's any more.
        False, and nothing happens: it gives nobody, or the peer has asked for more already."""
        transport = self._transport
        if transport is None or self._requests or not self._decoder.is_between_commands or self._in_flight != 1:
            return False
        if (heir := attach(transport, self.name)) is None:
            return False
        self.send(answer)
        self.flush()
        self._transport = None
        transport.set_protocol(heir)
        self._owner.closed(self)
        return True

    def quit(self) -> None:
        """Handle nothing more; close once everything asked before is answered and sent, wherever it waits."""
        if not self._is_quitting:
            self._requests.clear()
            self._is_quitting = True
            for answer in self._dispatcher.release(self):
                self._in_flight += 1
                self.send(answer)
            self._flush_later()

    # -- the work ---------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """The journal has room again."""
        self._work()

    def drop_body(self, reason: str) -> None:
        """Let go of the body that is not all here, and answer its request with *reason*."""
        log.warning("body dropped peer=%s bytes=%d reason=%s", self.name, self._received_bytes, reason)
        self._requests.append(self._decoder.drop_body(reason))
        self._note_received(gets_on=False)
        self._work_later()

    def note_unsent(self, *, gets_on: bool) -> None:
        """Tell the owner how much waits for the peer to take it."""
        if self._transport is not None:
            held = self.unsent_bytes
            if held or self._unsent_bytes:  # idle connections, of which there are thousands, have neither
                self._unsent_bytes = held
                self._owner.unsent(self, held, gets_on=gets_on)

    @property
    def unsent_bytes(self) -> int:
        """Of answers, what waits for the peer to take it at this moment."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size() + self._answer_bytes

    def drop(self, reason: str) -> None:
        """As abort; says why."""
        log.warning("connection dropped peer=%s reason=%s", self.name, reason)
        self.abort()

    def abort(self) -> None:
        """Drop the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Answer what was handled, then close."""
        self.quit()

    def _work(self) -> None:
        """Handle requests until none is left, or a bound says wait; read the socket only if none is left."""
        requests, dispatch, left = self._requests, self._dispatch, REQUESTS_PER_TURN
        try:
            # The journal is asked once: what a connection adds in one turn is bounded by what one read brings.
            if requests and not self._owner.is_journal_full():
                while requests and self._may_work():
                    if not left:
                        self._work_later()
                        break
                    left -= 1
                    self._in_flight += 1
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

    def _flush_later(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._owner.flush_later(self)

    def _work_on(self) -> None:
        self._is_work_due = False
        self._work()

    def _may_work(self) -> bool:
        bounds = self._bounds
        if self._answer_bytes > bounds.unsent_bytes_max:
            self.flush()
        return (
            self._can_write
            and not self._is_held
            and self._in_flight < bounds.requests_in_flight_max
            and self.held_bytes <= bounds.unsent_bytes_max
            and not self._is_quitting
        )

    def _note_received(self, *, gets_on: bool) -> None:
        held = self._decoder.body_bytes_held
        if held or self._received_bytes:
            self._received_bytes = held
            self._owner.received(self, held, gets_on=gets_on)

    def flush(self) -> None:
        """Write what is queued."""
        self._is_flush_due = False
        transport = self._transport
        if transport is None:
            return
        if self._deferred:
            for deferred in self._deferred.values():
                self._answers += deferred
            self._deferred.clear()
        if self._answers:
            answers, self._answers, self._answer_bytes = self._answers, [], 0
            self.last_active = self._loop.time()
            if len(answers) == 1:
                transport.write(answers[0])
            else:
                transport.writelines(answers)
        if self._is_quitting and not self._in_flight:
            transport.close()
        elif self._requests:  # which a bound may have stopped
            self._work_later()
