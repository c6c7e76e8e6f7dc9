"""Writes in mode sync: what waits for slaves is answered in time, and what can't be replicated is not begun."""

from collections import deque
from collections.abc import Callable

from journal.frame import Lsn
from journal.transaction_store import Transaction as LiveTransaction
from journal.xid import BranchKey, LocalKey
from meta_broker.processors.context import Attach, Context, Peer
from meta_broker.processors.writes import Write, Writes, changes_nothing, failed
from meta_broker.replication.master import Master
from meta_client.protocol.answers import NOT_REPLICATED
from meta_client.protocol.requests import Request


class SyncWrites:
    """Implements Writes around a master's own. Loop thread only.

    What is late is answered so, once; it is done all the same, and seen once slaves have it. From then on, and while
    too few slaves are in sync, nothing more is begun: what waits at the fence stays bounded.
    """

    def __init__(self, context: Context, master: Master, writes: Writes, clock: Callable[[], float]) -> None:
        self._journal = context.store.journal
        self._master = master
        self._writes = writes
        self._clock = clock
        self._timeout_s = master.section.timeout_ms / 1000
        self._waiting: deque[_Waiter] = deque()  # whose answers are due, the oldest first

    def handle(self, request: Write, peer: Peer) -> None:
        if (reason := self._master.why_refusing()) and not changes_nothing(request):
            peer.send(failed(request, f"nothing was done: {reason}: try again later"))
            return
        waiter = _Waiter(request, peer, self._clock() + self._timeout_s)
        self._writes.handle(request, waiter)
        waiter.lsn = self._journal.end
        while self._waiting and self._waiting[0].is_answered:
            self._waiting.popleft()
        if not waiter.is_answered:
            self._waiting.append(waiter)

    def expire(self) -> bool:
        now = self._clock()
        while self._waiting and (self._waiting[0].is_answered or self._waiting[0].due <= now):
            waiter = self._waiting.popleft()
            if not waiter.is_answered:
                waiter.too_late(f"no slave in sync has confirmed it within {self._timeout_s:g} s")
                self._master.late(waiter.lsn)
        return self._writes.expire()

    def peer_gone(self, peer: Peer) -> None:
        self._writes.peer_gone(peer)


class _Waiter:
    """A connection, as it is for one request: its answer goes through once, in time or as what is late."""

    def __init__(self, request: Write, peer: Peer, due: float) -> None:
        self.due = due
        self.lsn = Lsn(0)  # what it waits for lies below
        self.is_answered = False
        self._request = request
        self._peer = peer
        self._deferred = b""  # what was taken to be sent with the answer
        self._answer = b""

    def too_late(self, reason: str) -> None:
        place = self._answer.partition(b"\r\n")[2].decode()
        self.send(self._deferred + failed(self._request, f"{NOT_REPLICATED}: {reason}", place))

    # -- processors.context.Peer ------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._peer.name

    @property
    def local_transactions(self) -> dict[LocalKey, LiveTransaction]:
        return self._peer.local_transactions

    @property
    def held_bytes(self) -> int:
        return self._peer.held_bytes

    @held_bytes.setter
    def held_bytes(self, held: int) -> None:
        self._peer.held_bytes = held

    def promise(self, answer: bytes) -> None:
        self._answer = answer

    def send(self, data: bytes) -> None:
        if not self.is_answered:
            self.is_answered = True
            self._peer.send(data)

    def send_buffers(self, buffers: list[bytes | memoryview], size: int) -> None:
        if not self.is_answered:
            self.is_answered = True
            self._peer.send_buffers(buffers, size)

    def defer(self, key: BranchKey, data: bytes) -> None:
        self.is_answered = True
        self._peer.defer(key, data)

    def take_deferred(self, key: BranchKey) -> bytes:
        self._deferred = self._peer.take_deferred(key)
        return self._deferred

    def unanswered(self) -> None:
        self.is_answered = True
        self._peer.unanswered()

    def again(self, request: Request) -> None:
        self._peer.again(request)

    def hold(self) -> None:
        self._peer.hold()

    def go_on(self) -> None:
        self._peer.go_on()

    def retry(self, request: Request) -> None:
        self._peer.retry(request)

    def hand_over(self, answer: bytes, attach: Attach) -> bool:
        return self._peer.hand_over(answer, attach)

    def quit(self) -> None:
        self._peer.quit()
