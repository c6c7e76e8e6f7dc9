"""One client's connection: decodes requests, sends replies, and stops reading at its limits.

Longer than others: one state, of which each method is a few lines; connection_state.py has its table, and what needs no
state of it is in request_receiver.py, reply_queue.py, turns.py and identified.py.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import cast

from journal.errors import StorageFailed
from journal.records.state_table import walk
from journal.records.xid import BranchKey, LocalKey
from journal.state.live_branch import LiveBranch
from meta_broker.access.principal import Principal
from meta_broker.handlers.context import Attach, WaitingFetch
from meta_broker.handlers.dispatch import Dispatcher, Handled
from meta_broker.net.connection_owner import ConnectionBounds, ConnectionOwner
from meta_broker.net.connection_state import HANDLES, NEXT, Block, ConnectionEvent, ConnectionState
from meta_broker.net.identified import UNKNOWN_LIMITS, Identified
from meta_broker.net.reply_queue import ReplyQueue
from meta_broker.net.request_receiver import RequestReceiver
from meta_broker.net.turns import REQUESTS_PER_TURN, REQUESTS_PER_VISIT
from meta_client.logs.context import CONTEXT
from meta_client.protocol.errors import RemoteProtocolError

log = logging.getLogger(__name__)


class ClientConnection(Identified, asyncio.BufferedProtocol):
    """Handles the requests of one peer in their order. Loop thread only.

    Replies of one turn of the loop leave in one write. Unsent bytes and requests in flight (handled, not answered) are
    limited: beyond a limit requests wait, unhandled, and the socket is not read, so that a peer that does not read
    costs a bounded amount.
    """

    def __init__(
        self,
        owner: "ConnectionOwner[ClientConnection]",
        dispatcher: Dispatcher,
        loop: asyncio.AbstractEventLoop,
        bounds: ConnectionBounds,
    ) -> None:
        super().__init__(loop)
        self.local_transactions: dict[LocalKey, LiveBranch] = {}
        self._owner = owner
        self._dispatch: Callable[[Handled, ClientConnection], None] = dispatcher.handle
        self._dispatcher = dispatcher
        self._loop = loop
        self._bounds = bounds
        self._receiver = RequestReceiver(bounds.decoder, owner.buffers, owner.received_chunk)
        self._turns = owner.turns
        self._state = ConnectionState.NEW
        self._blocks: set[Block] = set()
        self._transport: asyncio.Transport | None = None  # None: NEW or CLOSED
        self._requests: deque[Handled] = deque()  # and fetches whose wait is over
        self._in_flight = 0  # handled and not answered, except waiting fetches
        self._pending_bytes = 0  # of replies held for the high watermark
        self._unsent_bytes = 0  # as last reported to the owner
        self._replies = ReplyQueue()
        self._is_flush_due = self._is_waiting = False  # waiting: for its turn

    # -- asyncio.Protocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        taken = cast(asyncio.Transport, transport)
        if self._owner.opened(self, taken):
            self._state = walk(NEXT, self._state, ConnectionEvent.ACCEPTED)
            self._transport = taken
            self._transport.set_write_buffer_limits(high=self._bounds.unsent_bytes_max)
            if self._dispatcher.gate is not None and self.principal is None:
                self._receiver.limit(UNKNOWN_LIMITS)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        room = self._receiver.room(is_crowded=self._turns.is_over())
        return room if self.throttle is None else room[: self.throttle.read_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        requests = self._receiver.arrived(nbytes)
        self._requests.extend(requests)
        if not self._receiver.undecoded:
            self._count(nbytes, made_progress=bool(requests))
        if self.throttle is not None:
            self.throttle.received(nbytes)
        self.handle_queued()

    def _decode(self) -> None:
        waiting, nbytes = len(self._requests), self._receiver.undecoded
        try:
            self._requests.extend(self._receiver.decode())
        except RemoteProtocolError as error:
            if self._state is ConnectionState.OPEN:
                log.warning("connection closed conn=%s reason=%s", self.name, error)
                self._requests.extend(self._receiver.completed_before_failure)
            self._state = walk(NEXT, self._state, ConnectionEvent.INPUT_INVALID)
        self._count(nbytes, made_progress=len(self._requests) > waiting)

    def _count(self, nbytes: int, *, made_progress: bool) -> None:
        """Count *nbytes* received, which completed a request or not."""
        if self._receiver.is_sign_of_life(nbytes, made_progress=made_progress):
            self.last_active = self._loop.time()
        self._report_received(made_progress=made_progress)

    def pause_writing(self) -> None:
        self._blocks.add(Block.PEER)
        self.report_unsent(made_progress=False)

    def resume_writing(self) -> None:
        self._blocks.discard(Block.PEER)
        self.report_unsent(made_progress=True)
        self.last_active = self._loop.time()
        self.flush()
        self.handle_queued()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # a reset is an ordinary goodbye: genuine clients close with SO_LINGER 0
        self._detach()
        self._requests.clear()
        self._receiver.discard()
        self._replies.pop_all()
        self._owner.received(self, 0, made_progress=False)
        self._owner.unsent(self, 0, made_progress=False)
        try:
            self._dispatcher.peer_closed(self)
        except StorageFailed as error:
            self._owner.failed(error)
        self._owner.closed(self)

    def become(self, principal: Principal) -> str:
        if not (why := self._owner.become(self, principal)):
            if self.principal is not None and self.principal not in (principal, *self.former):
                self.former += (self.principal,)
            self.principal, self.has_logged_in = principal, True
            self._receiver.limit(self._bounds.decoder)
        return why

    # -- handlers.context.Peer --------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self._in_flight -= 1
        if self._transport is not None:
            self._replies.add(data)
            self._flush_later()

    def send_buffers(self, buffers: list[bytes | memoryview], size: int) -> None:
        self._in_flight -= 1
        if self._transport is not None:
            self._replies.add_buffers(buffers, size)
            self._flush_later()

    def buffer_reply(self, key: BranchKey, data: bytes) -> None:
        self._in_flight -= 1
        if self._transport is not None:
            self._replies.buffer(key, data)
            self._flush_later()

    def pop_buffered(self, key: BranchKey) -> bytes:
        return self._replies.pop_buffered(key)

    def add_pending(self, size: int) -> None:
        self._pending_bytes += size

    def end_pending(self, size: int) -> None:
        self._pending_bytes -= size
        if self._requests:
            self._wait_for_turn()

    def end_in_flight(self) -> None:
        self._in_flight -= 1

    def enqueue(self, waiting: WaitingFetch) -> None:
        if self._state is ConnectionState.DRAINING:  # it quit while those woken together were enqueued
            self._release([waiting])
        elif self._transport is not None:
            self._requests.append(waiting)
            self.handle_queued()

    def pause(self) -> None:
        self._blocks.add(Block.REPLY)

    def resume(self) -> None:
        self._blocks.discard(Block.REPLY)
        self.handle_queued()

    def upgrade(self, answer: bytes, attach: Attach) -> bool:
        transport = self._transport
        is_idle = not (self._requests or self._receiver.undecoded) and self._receiver.is_between_commands
        if transport is None or not is_idle or self._in_flight != 1:
            return False
        if (successor := attach(transport, self.name)) is None:
            return False
        self.send(answer)
        self.flush()
        self._detach()
        transport.set_protocol(successor)
        if not transport.is_reading() and not transport.is_closing():
            transport.resume_reading()  # it was paused while the request waited for its turn
        self._owner.closed(self)
        return True

    def quit(self) -> None:
        if self._state in HANDLES:
            woken = [each for each in self._requests if isinstance(each, WaitingFetch)]
            self._requests.clear()
            self._receiver.discard()
            self._state = walk(NEXT, self._state, ConnectionEvent.QUIT)
            self._release(woken)
            self._flush_later()

    def _release(self, woken: list[WaitingFetch]) -> None:
        """Answer the fetches that wait, and *woken*, with nothing."""
        for answer in self._dispatcher.release(self, woken):
            self._in_flight += 1
            self.send(answer)

    # -- calls of the server ----------------------------------------------------------------------------------

    def drop_body(self, reason: str) -> None:
        """Discard the incomplete body, and answer its request with *reason*."""
        log.warning("body dropped conn=%s bytes=%d reason=%s", self.name, self._receiver.body_bytes_held, reason)
        self._requests.append(self._receiver.drop_body(reason))
        self._report_received(made_progress=False)
        self._wait_for_turn()

    def report_unsent(self, *, made_progress: bool) -> None:
        """Report the bytes that wait for the peer to the owner."""
        if self._transport is not None:
            held = self.unsent_bytes
            if held or self._unsent_bytes:  # skips the thousands of idle connections
                self._unsent_bytes = held
                self._owner.unsent(self, held, made_progress=made_progress)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of replies that wait for the peer at this moment."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size() + self._replies.bytes

    def abort_with(self, reason: str) -> None:
        log.warning("connection dropped conn=%s reason=%s", self.name, reason)
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def handle_queued(self) -> None:
        """Handle requests, now or in its turn; read the socket only if none is left."""
        if self._is_waiting:
            pass
        elif (self._requests or self._receiver.undecoded) and self._turns.is_over():
            self._wait_for_turn()
        else:
            self._handle_some(REQUESTS_PER_TURN)
        self._read_or_not()

    def take_turn(self) -> None:
        self._is_waiting = False
        self._handle_some(REQUESTS_PER_VISIT)
        self._read_or_not()

    def _wait_for_turn(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self._turns.wait(self)

    def _handle_some(self, count: int) -> None:
        """Handle requests until none is left, *count* are handled or a limit is reached."""
        requests, dispatch, left = self._requests, self._dispatch, count
        if self._receiver.undecoded:
            self._decode()
        logged_before = CONTEXT.set(self._log_context)
        try:
            # Checked once: what a connection adds in one turn is bounded by one read of its socket.
            if requests and not self._owner.is_journal_full():
                while requests and self._may_handle():
                    if not left:
                        self._wait_for_turn()
                        break
                    left -= 1
                    if self.throttle is not None and (refusal := self.throttle.judge(requests[0])) is not None:
                        self._hold_back(refusal)
                        continue
                    self._in_flight += 1
                    dispatch(requests.popleft(), self)
        except StorageFailed as error:
            self._owner.failed(error)
        finally:
            CONTEXT.reset(logged_before)
        if self._state is ConnectionState.LAST and not requests:
            self.quit()

    def _read_or_not(self) -> None:
        is_muted = self.throttle is not None and self.throttle.is_muted
        is_idle = not self._requests and not self._receiver.undecoded
        should_read = self._state is ConnectionState.OPEN and is_idle and not is_muted
        transport = self._transport
        if transport is not None and should_read != transport.is_reading() and not transport.is_closing():
            if should_read:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def _hold_back(self, refusal: bytes) -> None:
        """Refuse the next request with *refusal*, or have it wait if that is blank."""
        if refusal:
            self._requests.popleft()
            self._in_flight += 1
            self.send(refusal)
        else:
            self._blocks.add(Block.QUOTA)

    def throttle_over(self) -> None:
        self._blocks.discard(Block.QUOTA)
        self.handle_queued()

    def _detach(self) -> None:
        self._state = walk(NEXT, self._state, ConnectionEvent.GONE)
        self._transport = None
        self.end_throttle()

    def _flush_later(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._owner.flush_later(self)

    def _may_handle(self) -> bool:
        bounds = self._bounds
        if self._replies.bytes > bounds.unsent_bytes_max:
            self.flush()
        return (
            self._state in HANDLES
            and not self._blocks
            and self._in_flight < bounds.requests_in_flight_max
            and self._pending_bytes <= bounds.unsent_bytes_max
        )

    def _report_received(self, *, made_progress: bool) -> None:
        if (held := self._receiver.changed_bytes()) is not None:
            self._owner.received(self, held, made_progress=made_progress)

    def flush(self) -> None:
        self._is_flush_due = False
        transport = self._transport
        if transport is None:
            return
        if self.throttle is not None:
            self.throttle.sent(self._replies.bytes)
        if replies := self._replies.pop_all():
            self.last_active = self._loop.time()
            if len(replies) == 1:
                transport.write(replies[0])
            else:
                transport.writelines(replies)
        if self._state is ConnectionState.DRAINING and not self._in_flight:
            transport.close()
        elif self._requests:  # a limit may have stopped them
            self._wait_for_turn()
