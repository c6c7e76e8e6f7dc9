"""Writes in mode sync: limits the wait for slaves, and refuses writes that cannot be replicated."""

from collections import deque
from collections.abc import Callable

from journal.records.header import Lsn
from journal.records.xid import BranchKey, LocalKey
from journal.state.transaction_store import LiveBranch as LiveTransaction
from meta_broker.handlers.context import Attach, Context, Peer
from meta_broker.handlers.writes import Write, Writes, changes_nothing, failed
from meta_broker.replication.master.master import Master
from meta_client.protocol.answers import NOT_REPLICATED
from meta_client.protocol.requests import Request


class SyncWrites:
    """Implements Writes around a master's own. Loop thread only.

    A write not replicated in time is answered with that, once; it is visible once slaves have it. From then on, and
    while too few slaves are in sync, new writes are refused: what waits at the high watermark stays bounded.
    """

    def __init__(self, context: Context, master: Master, writes: Writes, clock: Callable[[], float]) -> None:
        self._journal = context.store.journal
        self._master = master
        self._writes = writes
        self._clock = clock
        self._timeout_s = master.section.timeout_ms / 1000
        self._waiting: deque[_PendingReply] = deque()  # unanswered requests, oldest first

    def handle(self, request: Write, peer: Peer) -> None:
        if (reason := self._master.why_refusing()) and not changes_nothing(request):
            peer.send(failed(request, f"nothing was done: {reason}: try again later"))
            return
        pending = _PendingReply(request, peer, self._clock() + self._timeout_s)
        self._writes.handle(request, pending)
        pending.lsn = self._journal.end
        while self._waiting and self._waiting[0].is_answered:
            self._waiting.popleft()
        if not pending.is_answered:
            self._waiting.append(pending)

    def expire(self) -> bool:
        now = self._clock()
        while self._waiting and (self._waiting[0].is_answered or self._waiting[0].due <= now):
            pending = self._waiting.popleft()
            if not pending.is_answered:
                pending.too_late(f"no slave in sync has confirmed it within {self._timeout_s:g} s")
                self._master.mark_late(pending.lsn)
        return self._writes.expire()

    def peer_closed(self, peer: Peer) -> None:
        self._writes.peer_closed(peer)


class _PendingReply:
    """The connection of one request: passes on one reply, the handler's or the one for late requests."""

    def __init__(self, request: Write, peer: Peer, due: float) -> None:
        self.due = due
        self.lsn = Lsn(0)  # acknowledged once the high watermark reaches it
        self.is_answered = False
        self._request = request
        self._peer = peer
        self._buffered = b""  # buffered replies to be sent with the answer
        self._answer = b""

    def too_late(self, reason: str) -> None:
        place = self._answer.partition(b"\r\n")[2].decode()
        self.send(self._buffered + failed(self._request, f"{NOT_REPLICATED}: {reason}", place))

    # -- handlers.context.Peer --------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._peer.name

    @property
    def local_transactions(self) -> dict[LocalKey, LiveTransaction]:
        return self._peer.local_transactions

    @property
    def pending_reply_bytes(self) -> int:
        return self._peer.pending_reply_bytes

    @pending_reply_bytes.setter
    def pending_reply_bytes(self, held: int) -> None:
        self._peer.pending_reply_bytes = held

    def preview_reply(self, answer: bytes) -> None:
        self._answer = answer

    def send(self, data: bytes) -> None:
        if not self.is_answered:
            self.is_answered = True
            self._peer.send(data)

    def send_buffers(self, buffers: list[bytes | memoryview], size: int) -> None:
        if not self.is_answered:
            self.is_answered = True
            self._peer.send_buffers(buffers, size)

    def buffer_reply(self, key: BranchKey, data: bytes) -> None:
        self.is_answered = True
        self._peer.buffer_reply(key, data)

    def take_buffered(self, key: BranchKey) -> bytes:
        self._buffered = self._peer.take_buffered(key)
        return self._buffered

    def end_in_flight(self) -> None:
        self.is_answered = True
        self._peer.end_in_flight()

    def requeue(self, request: Request) -> None:
        self._peer.requeue(request)

    def pause(self) -> None:
        self._peer.pause()

    def resume(self) -> None:
        self._peer.resume()

    def retry(self, request: Request) -> None:
        self._peer.retry(request)

    def upgrade(self, answer: bytes, attach: Attach) -> bool:
        return self._peer.upgrade(answer, attach)

    def quit(self) -> None:
        self._peer.quit()
