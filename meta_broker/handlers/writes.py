"""Writes, and the replies to them: at the high watermark, or as too late in mode sync; a slave's name its master."""

import time
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any

import msgspec

from journal.records.header import Lsn
from journal.records.states import XaCode
from journal.state.live_branch import AppendResult
from journal.wal.histogram import Histogram
from meta_broker.handlers.context import Context, Peer
from meta_broker.replication.replica.receiver import ReplicaReceiver
from meta_client.protocol.answers import NOT_REPLICATED, NOTHING_DONE
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import (
    BranchCommand,
    MultiPut,
    Put,
    Sync,
    TopicCommand,
    TransactionCommand,
    TransactionVerb,
)
from meta_client.protocol.status import Status
from meta_client.protocol.xa import format_xa_failure

WriteRequest = Put | MultiPut | Sync | TransactionCommand | TopicCommand | BranchCommand


class WaitingReply(msgspec.Struct, eq=False):
    """The reply to a write in mode sync. It is sent once: acknowledged, or as too late."""

    request: WriteRequest
    peer: Peer
    prefix: bytes  # earlier replies, sent with this one
    offset: int | None  # of a put: where it is stored
    lsn: Lsn  # acknowledged once the high watermark reaches it
    due: float
    began: float  # as `RequestTimes` has it
    is_sent: bool = False

    def send(self, answer: bytes) -> None:
        if not self.is_sent:
            self.is_sent = True
            self.peer.send(self.prefix + answer)


class WriteReplies:
    """Replies to the writes of one master. Loop thread only.

    In mode sync, a write not replicated in time is answered with that, once; it is visible once slaves have it. From
    then on, and while too few slaves are in sync, new writes are refused: what waits at the high watermark stays
    bounded.
    """

    def __init__(self, context: Context, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = context.store
        self._clock = clock
        self._times = context.times
        master = context.master
        self._sync = master if master is not None and master.section.mode == "sync" else None
        self._waiting: deque[WaitingReply] = deque()  # in mode sync, oldest first

    def guarded(self, handle: Callable[[Any, Peer], None]) -> Callable[[Any, Peer], None]:
        """Wrap a handler of writes: those that are impossible at present are refused."""

        def handle_or_refuse(request: WriteRequest, peer: Peer) -> None:
            if (refusal := self._refusal(request)) is None:
                handle(request, peer)
            else:
                peer.send(refusal)

        return handle_or_refuse

    def _refusal(self, request: WriteRequest) -> bytes | None:
        if self._sync is not None and (reason := self._sync.why_refusing()) and not _changes_nothing(request):
            return _failed(request, f"{NOTHING_DONE}: {reason}: try again later")
        # Puts report a full disk themselves; everything else may use the reserve.
        is_put = isinstance(request, Put | MultiPut | Sync)
        if not is_put and (reason := self._store.space.why_at_end) and not _changes_nothing(request):
            return _failed(request, reason)
        return None

    def send(self, request: WriteRequest, peer: Peer, result: AppendResult, answer: bytes, prefix: bytes = b"") -> None:
        """Publish *result* and send *answer* once it is acknowledged. *prefix*: earlier replies, sent with it."""
        times = self._times
        durations = times.of(request)
        began, times.began = times.began, 0.0  # as `defer` does, in place: a tenth of a microsecond of each put
        if self._sync is None:
            self._store.publish_when_acknowledged(
                result.lsn, result.updates, _send_answer, durations, began, peer.send, prefix + answer
            )
            return
        while self._waiting and self._waiting[0].is_sent:
            self._waiting.popleft()
        offset = result.updates[0].base if isinstance(request, Put | MultiPut) and result.updates else None
        due = self._clock() + self._sync.section.timeout_ms / 1000
        waiting = WaitingReply(request, peer, prefix, offset, result.lsn, due, began)
        self._waiting.append(waiting)
        self._store.publish_when_acknowledged(
            result.lsn, result.updates, self._acknowledged, waiting, durations, answer
        )

    def _acknowledged(self, waiting: WaitingReply, durations: Histogram, answer: bytes) -> None:
        if not waiting.is_sent:
            _send_answer(durations, waiting.began, waiting.send, answer)

    def send_after_all(self, request: WriteRequest, peer: Peer, status: Status, message: bytes = b"") -> None:
        """Answer once everything appended so far is acknowledged.

        Required for every answer that depends on a branch's state, refusals too: a crash must not undo what it says.
        """
        answer, end = encode_result(status, message, request.opaque), self._store.journal.end
        peer.add_pending(len(answer))
        self._store.high_watermark.run_after(end, peer.end_pending, len(answer))
        self.send(request, peer, AppendResult(end, ()), answer)

    def expire(self) -> None:
        """Answer what slaves have not confirmed in time. Call it twice a second."""
        now = self._clock()
        while self._waiting and (self._waiting[0].is_sent or self._waiting[0].due <= now):
            waiting = self._waiting.popleft()
            if not waiting.is_sent:
                assert self._sync is not None
                timeout_s = self._sync.section.timeout_ms / 1000
                reason = f"{NOT_REPLICATED}: no slave in sync has confirmed it within {timeout_s:g} s"
                late = _failed(waiting.request, reason, waiting.offset)
                _send_answer(self._times.of(waiting.request), waiting.began, waiting.send, late)
                self._sync.mark_late(waiting.lsn)


def _send_answer(durations: Histogram, began: float, send: Callable[[bytes], None], answer: bytes) -> None:
    """Send *answer*, and record how long its request took; 0: it was measured before."""
    if began:
        durations.observe(perf_counter() - began)
    send(answer)


def _changes_nothing(request: WriteRequest) -> bool:
    """Return whether *request* only reads, or has no answer."""
    return isinstance(request, TransactionCommand) and request.verb in (
        TransactionVerb.END,
        TransactionVerb.STATUS,
        TransactionVerb.RECOVER,
    )


def _failed(request: WriteRequest, reason: str, offset: int | None = None) -> bytes:
    """Return the error reply with *reason*; *offset*: where a put is stored nevertheless."""
    match request:
        case Put() | MultiPut():
            where = f"[partition '{request.topic}-{request.partition}']"
            at = f" at offset {offset}" if offset is not None else ""
            text = f"put to {where}{at}: {reason}"
        case TransactionCommand():
            text = format_xa_failure(XaCode.XAER_RMFAIL, f"{request.verb.value} of {request.key or 'null'}: {reason}")
        case _:
            text = reason
    return encode_result(Status.INTERNAL_ERROR, text.encode(), request.opaque)


def refuse_on_slave(context: Context, slave: ReplicaReceiver, request: WriteRequest, peer: Peer) -> None:
    where = f"its master is {slave.master}" if slave.master else "it has not heard from its master yet"
    text = f"this is slave {slave.slave_id} of broker {context.config.broker_id}, which takes no writes: {where}"
    match request:
        case TransactionCommand(verb=TransactionVerb.END):
            peer.end_in_flight()
        case TransactionCommand():
            # As any broker that cannot serve a branch: the client then looks for the master.
            failure = format_xa_failure(XaCode.XAER_RMFAIL, text)
            peer.send(encode_result(Status.INTERNAL_ERROR, failure.encode(), request.opaque))
        case _:
            if isinstance(request, Put | MultiPut):
                context.counters.puts += 1
                context.counters.puts_failed += 1
            peer.send(encode_result(Status.UNAVAILABLE, text.encode(), request.opaque))
