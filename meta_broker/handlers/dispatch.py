"""Dispatches requests to handlers. Exhaustive: a broker does not start if a request has no handler."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any, Final, get_args

from meta_broker.filters.runner import Filters
from meta_broker.handlers.audited import AUDITED, audited, tell
from meta_broker.handlers.branch import BranchHandler
from meta_broker.handlers.context import Context, Peer, WaitingFetch, yield_after
from meta_broker.handlers.count import CountHandler
from meta_broker.handlers.fetch import FetchHandler
from meta_broker.handlers.find import FindHandler
from meta_broker.handlers.gate import Gate
from meta_broker.handlers.get import LookUps
from meta_broker.handlers.message_reader import MessageReader
from meta_broker.handlers.put import PutHandler
from meta_broker.handlers.stats import StatsHandler
from meta_broker.handlers.topic import TopicHandler
from meta_broker.handlers.traced import TRACED, WriteTraces
from meta_broker.handlers.transaction import TransactionHandler
from meta_broker.handlers.writes import WriteReplies, WriteRequest, refuse_on_slave
from meta_broker.replication.replica.receiver import ReplicaReceiver
from meta_broker.store.checkpoint_job import NoCheckpoint
from meta_broker.store.key_indexer import KeyIndexer
from meta_client.protocol.answers import CheckpointTaken, format_checkpoint_taken
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import (
    Authenticate,
    BranchCommand,
    Count,
    Dropped,
    Fetch,
    Find,
    Get,
    MultiPut,
    OffsetQuery,
    Offsets,
    Put,
    Quit,
    Replicate,
    Request,
    ResetGroup,
    Stats,
    Sync,
    TakeCheckpoint,
    TopicCommand,
    TransactionCommand,
    Version,
)
from meta_client.protocol.status import Status
from meta_client.tracing import TRACING

Handled = Request | Dropped | WaitingFetch
Handler = Callable[[Any, Peer], None]

_READS: Final = (Get, Fetch, OffsetQuery, Offsets, Find, Count)  # requests that read messages or offsets


def _one_a_turn(handle: Handler) -> Handler:
    """Wrap a handler that scans every partition: one such request a turn of the loop."""

    def handle_one(request: Request, peer: Peer) -> None:
        handle(request, peer)
        yield_after(peer)

    return handle_one


def _when_readable(handle: Handler, slave: ReplicaReceiver) -> Handler:
    """Wrap a handler of a slave's reads, which are refused until the copy is readable."""

    def handle_if_readable(request: Get | Fetch | OffsetQuery | Offsets | Find | Count, peer: Peer) -> None:
        if slave.is_readable:
            handle(request, peer)
        else:
            text = b"this slave has not heard from its master since it began to follow it: ask later, or ask the master"
            peer.send(encode_result(Status.UNAVAILABLE, text, request.opaque))

    return handle_if_readable


class Dispatcher:
    """All handlers of a broker behind one call."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._times = context.times
        self._times.count_as(WaitingFetch, Fetch)
        self._filters = Filters(context.config.broker.filter_seconds_max)
        self._reading = MessageReader(context, self._filters)
        self._fetch = FetchHandler(context, self._reading)
        self._worker = ThreadPoolExecutor(1, "find")
        self._keys = KeyIndexer(context.config.data / "keys", context.store, context.topics, self._worker)
        self._find = FindHandler(context, self._keys, self._worker)
        self._replies: WriteReplies | None = None  # of a master, as the next one
        self._transactions: TransactionHandler | None = None
        rules = context.config.rules
        self.gate = None if rules is None else Gate(rules)
        self._handlers: Final = self._guarded(self._table())
        assert self._handlers.keys() == set(get_args(Handled)), "every request has a handler"
        self._keys.rescan()

    def _table(self) -> dict[type[Handled], Handler]:
        context = self.context
        look_ups = LookUps(context, self._reading)
        handlers: dict[type[Handled], Handler] = {
            Get: partial(self._reading.answer, look_up=look_ups.get),
            Fetch: self._fetch.handle,
            WaitingFetch: self._fetch.complete,
            OffsetQuery: partial(self._reading.answer, look_up=look_ups.offset),
            Offsets: partial(self._reading.answer, look_up=look_ups.offsets),
            Find: self._find.handle,
            Count: CountHandler(context, self._reading).handle,
            ResetGroup: _reset,
            TakeCheckpoint: self._take_checkpoint,
            Stats: _one_a_turn(StatsHandler(context).handle),
            Version: self._version,
            Quit: self._quit,
            Replicate: self._replicate,
            Authenticate: self._authenticate,
            Dropped: self._dropped,
        }
        if (slave := context.slave) is not None:
            handlers |= {read: _when_readable(handlers[read], slave) for read in _READS}
            handlers |= dict.fromkeys(get_args(WriteRequest), partial(refuse_on_slave, context, slave))
        else:
            replies = self._replies = WriteReplies(context)
            put = PutHandler(context, replies).handle
            self._transactions = TransactionHandler(context, replies)
            handlers |= {
                Put: replies.guarded(put),
                MultiPut: replies.guarded(put),
                Sync: replies.guarded(_sync),
                TransactionCommand: replies.guarded(self._transactions.handle),
                TopicCommand: replies.guarded(TopicHandler(context, replies, self.topic_decided).handle),
                BranchCommand: replies.guarded(BranchHandler(context, replies).handle),
            }
        handlers[TopicCommand] = _one_a_turn(handlers[TopicCommand])
        return handlers

    def _guarded(self, handlers: dict[type[Handled], Handler]) -> dict[type[Handled], Handler]:
        """Return *handlers* behind spans if traced, the audit log, and the gate if there is one."""
        if (hooks := TRACING.hooks) is not None and self.context.slave is None:
            traces = WriteTraces(self.context, hooks)
            handlers |= {kind: traces.wrap(handlers[kind]) for kind in TRACED}
        told = {kind: audited(handle) if kind in AUDITED else handle for kind, handle in handlers.items()}
        if (gate := self.gate) is None:
            return told
        # A waiting fetch was let in when it came.
        return {kind: handle if kind is WaitingFetch else gate.guarded(kind, handle) for kind, handle in told.items()}

    @property
    def fetches_waiting(self) -> int:
        return self._fetch.waiting

    async def close(self) -> None:
        """Stop the background work; requests it still has are refused. Idempotent."""
        await self._keys.close()
        await self._find.close()
        self._worker.shutdown()
        await self._filters.close()
        await self._reading.close()

    def topic_decided(self, topic: str) -> None:
        """Act on an acknowledged decision about a topic."""
        self._fetch.wake(topic)
        self._keys.rescan()

    def release(self, peer: Peer, woken: Iterable[WaitingFetch]) -> list[bytes]:
        """Return replies to the waiting fetches of *peer*, for which nothing more will be handled, and to *woken*."""
        return self._fetch.release(peer, woken)

    def peer_closed(self, peer: Peer) -> None:
        """Clean up after a closed connection. Raises StorageFailed once the journal has stopped."""
        self._fetch.peer_closed(peer)
        self._find.peer_closed(peer)
        self._reading.peer_closed(peer)
        if self._transactions is not None:
            self._transactions.peer_closed(peer)

    def expire(self) -> bool:
        """Answer late writes, and roll back some of the branches that timed out. True: call it again.

        Raises StorageFailed once the journal has stopped.
        """
        if self._replies is None or self._transactions is None:
            return False
        self._replies.expire()
        return self._transactions.expire()

    def handle(self, request: Handled, peer: Peer) -> None:
        """Answer *request*, now or at the high watermark. Raises StorageFailed once the journal has stopped."""
        times = self._times
        times.began = began = perf_counter()
        self._handlers[type(request)](request, peer)
        if times.began:
            times.of(request).observe(perf_counter() - began)
            times.began = 0.0

    def _authenticate(self, request: Authenticate, peer: Peer) -> None:
        if self.gate is not None:
            self.gate.authenticate(request, peer)
        else:
            peer.send(encode_result(Status.BAD_REQUEST, b"this broker has no logins: send none", request.opaque))

    def _take_checkpoint(self, request: TakeCheckpoint, peer: Peer) -> None:
        """Answer once the checkpoint is durable. Waiting requests are bounded by each connection's requests in
        flight."""
        durations, began = self._times.of(request), self._times.defer()

        def answer(taken: CheckpointTaken | NoCheckpoint) -> None:
            self._times.observe(durations, began)
            if isinstance(taken, CheckpointTaken):
                peer.send(encode_result(Status.SUCCESS, format_checkpoint_taken(taken), request.opaque))
            else:
                status = Status.UNAVAILABLE if self.context.is_stopping else Status.INTERNAL_ERROR
                peer.send(encode_result(status, taken.reason.encode(), request.opaque))

        self.context.store.checkpoints.request(answer)

    def _version(self, request: Version, peer: Peer) -> None:
        peer.send(encode_result(Status.SUCCESS, self.context.version.encode(), request.opaque))

    def _quit(self, request: Quit, peer: Peer) -> None:
        del request
        peer.end_in_flight()
        peer.quit()

    def _dropped(self, request: Dropped, peer: Peer) -> None:
        peer.send(encode_result(request.status, request.text.encode(), request.opaque))

    def _replicate(self, request: Replicate, peer: Peer) -> None:
        master, opaque = self.context.master, request.opaque

        def attach(transport: asyncio.Transport, name: str) -> asyncio.Protocol | None:
            assert master is not None
            slaves = () if peer.principal is None else peer.principal.slaves
            if (successor := master.attach(transport, name, slaves)) is not None and self.gate is not None:
                self.gate.keep_link(peer, transport)
            return successor

        if master is None or not peer.upgrade(encode_result(Status.SUCCESS, b"", opaque), attach):
            text = b"no replication link here: this broker is no master, has too many links, or was asked for more"
            tell("replicate", peer, "refused-503")
            peer.send(encode_result(Status.UNAVAILABLE, text, opaque))
            return
        tell("replicate", peer, "done")
        self.peer_closed(peer)  # ends the branches and waits it began as a client


def _reset(request: ResetGroup, peer: Peer) -> None:
    peer.send(encode_result(Status.SUCCESS, b"", request.opaque))  # it is in the audit log: the offset is ZooKeeper's


def _sync(request: Sync, peer: Peer) -> None:
    text = b"this broker is no synchronous slave of the 1.4 kind"
    peer.send(encode_result(Status.UNAVAILABLE, text, request.opaque))
