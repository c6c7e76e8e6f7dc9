"""Batches messages, sends and resends them. The twin of meta_client/producer/sender.py.

`PartitionQueues` and `attempts` hold the rules; timers and sockets of the loop are here.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Generator
from typing import Any

import msgspec

from meta_client.aio.bridge import run
from meta_client.aio.connection import Connection
from meta_client.aio.connections import Connections
from meta_client.aio.topology import Topology
from meta_client.errors import (
    BufferFull,
    ClientClosed,
    ConnectionLost,
    Destination,
    NoBroker,
    NotConnected,
    ReplyTimeout,
    SendFailed,
    SendRefused,
    TooManyRequests,
)
from meta_client.metadata.topology import TopicView
from meta_client.net.identity import new_session_id
from meta_client.net.opaques import next_opaque
from meta_client.net.pending_reply import PendingReply
from meta_client.producer.attempts import (
    Outcome,
    Retriable,
    batch_request,
    closed_failure,
    destination_of,
    is_overdue,
    outcome_of,
    put_request,
    record_single,
    timeout_failure,
    unsendable,
)
from meta_client.producer.batch import ProducerBatch
from meta_client.producer.partition_queues import BatchingConfig, PartitionQueues
from meta_client.producer.results import SendResult
from meta_client.producer.sender import (
    ANSWER_TIMEOUT_S,
    CLOSE_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    IDLE_S,
    VERSION_TIMEOUT_S,
    VIEW_TIMEOUT_S,
)
from meta_client.protocol.answers import PutPlace
from meta_client.protocol.errors import MetaError
from meta_client.protocol.messages import HEADER_BYTES
from zk.errors import ZooKeeperError, ZooKeeperUnavailable
from zk.forks import invalidate_after_fork
from zk.tree.nodes import Partition

_log = logging.getLogger(__name__)


class SendHandle(msgspec.Struct, eq=False, gc=False):
    """A pending message. Loop thread only; may be dropped, the message is sent nevertheless."""

    _sender: "Sender"
    _batch: ProducerBatch
    _index: int

    @property
    def is_done(self) -> bool:
        """True if `result` would return at once."""
        return self._batch.is_settled

    async def result(self, timeout_s: float | None = None) -> SendResult:
        """Wait for the broker's acknowledgement; return where the message went. Raises SendFailed (the subclass tells
        whether it may be stored), ReplyTimeout after *timeout_s*; sending continues then."""
        if not self._batch.is_settled:
            await self._sender.until_settled(self._batch, timeout_s)
        return self._batch.result_of(self._index)

    def __await__(self) -> Generator[Any, None, SendResult]:
        return self.result().__await__()


class Sender:
    """Sender of a client, shared by its producers. Loop thread only."""

    def __init__(self, topology: Topology, connections: Connections, config: BatchingConfig) -> None:
        self._topology = topology
        self._connections = connections
        self._config = config
        self._name = new_session_id()[-64:]
        self._loop = asyncio.get_running_loop()
        self._queues = PartitionQueues(config)
        self._buffered = 0  # bytes of unsettled messages
        self._in_flight: dict[int, ProducerBatch] = {}  # by the opaque of the last attempt, the oldest first
        self._waiting: dict[ProducerBatch, list[asyncio.Future[None]]] = {}  # waiters for a batch to be settled
        self._for_any: list[asyncio.Future[None]] = []  # waiters for any batch to be settled
        self._failure: SendFailed | None = None  # the first since the last flush
        self._live: dict[int, Connection] = {}  # by broker id; to brokers that accept batches
        self._unconnected: dict[int, list[ProducerBatch]] = {}  # by broker id; batches without a connection
        self._connecting: dict[int, asyncio.Task[None]] = {}  # by broker id
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = self._is_closed = False
        invalidate_after_fork(self)
        self._look: asyncio.TimerHandle | None = None  # set while anything is pending

    def add_now(self, topic: str, wanted: Partition | None, flag: int, body: bytes) -> SendHandle | None:
        """Add one message; return None, without effect, if `add` would have to wait. Raises BufferFull."""
        if self._is_full(topic, len(body)):
            return None
        return self._take(topic, wanted, flag, body, None)

    async def add(self, topic: str, wanted: Partition | None, flag: int, body: bytes) -> SendHandle:
        """Add one message. Waits, or raises BufferFull, while too much is unsettled. Raises NoPartition, NoBroker,
        ClientClosed."""
        # Reached once per batch, as add_now handles the rest: yield to replies and other tasks.
        await asyncio.sleep(0)
        view: TopicView | None = None
        while True:
            while self._is_full(topic, len(body)):
                await self._until_any()
            if (handle := self._take(topic, wanted, flag, body, view)) is not None:
                return handle
            view = await self._view(topic)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send everything now and return once it is settled.

        Raises the first SendFailed of any message since the last flush, ReplyTimeout.
        """
        self._queues.seal_all()
        self._push()
        try:
            async with asyncio.timeout(timeout_s):
                while not self._queues.is_empty:
                    await self._until_any()
        except TimeoutError as error:
            raise ReplyTimeout(
                f"flush: {self._buffered} bytes are not settled within {timeout_s:g} s: they go on"
            ) from error
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def until_settled(self, batch: ProducerBatch, timeout_s: float | None) -> None:
        """Return once *batch* is settled. Raises ReplyTimeout; sending continues then."""
        settled = self._loop.create_future()
        self._waiting.setdefault(batch, []).append(settled)
        try:
            async with asyncio.timeout(timeout_s):
                await settled
        except TimeoutError as error:
            raise ReplyTimeout(
                f"send to {destination_of(batch)}: not settled within {timeout_s:g} s: wait on, it is still being sent"
            ) from error

    async def close(self) -> None:
        """Send what is buffered, within ten seconds; the rest fails. Idempotent."""
        self._is_closing = True
        self._queues.seal_all()
        self._push()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while not self._queues.is_empty:
                    await self._until_any()
        self._is_closed = True
        for task in list(self._connecting.values()):
            task.cancel()
        for timer in (self._timer, self._look):
            if timer is not None:
                timer.cancel()
        waiting = self._queues.drain()
        in_flight, self._in_flight = list(self._in_flight.values()), {}
        unconnected, self._unconnected = list(itertools.chain(*self._unconnected.values())), {}
        for batch in (*waiting, *in_flight, *unconnected):
            self._settle(batch, closed_failure(batch))

    def has_pending(self, topic: str, partition: Partition) -> bool:
        """True if a message sent to *partition* by other means could overtake a buffered one."""
        return self._queues.has_pending(topic, partition)

    def push(self, topic: str, partition: Partition) -> None:
        """Send the buffered messages of *partition* now."""
        if (topic, partition) in self._queues.open:
            self._queues.seal((topic, partition))
        self._push()

    # -- taking messages ---------------------------------------------------------------------------------------

    def _is_full(self, topic: str, body_bytes: int) -> bool:
        """True if a message must wait for others to be settled. Raises BufferFull if it may not wait."""
        config = self._config
        if not self._buffered or self._buffered + HEADER_BYTES + body_bytes <= config.buffer_bytes_max:
            return False
        if config.raise_when_full:
            raise BufferFull(
                f"{self._buffered} bytes wait to be acknowledged, buffer_bytes_max is {config.buffer_bytes_max}: "
                "wait, or flush()",
                Destination(topic),
            )
        return True

    def _take(
        self, topic: str, wanted: Partition | None, flag: int, body: bytes, view: TopicView | None
    ) -> SendHandle | None:
        """Add a message to the open batch, or to a new one, which needs a *view*. Return None if it is missing."""
        size, key = HEADER_BYTES + len(body), (topic, wanted)
        batch = self._queues.open.get(key)
        index = None if batch is None else batch.maybe_add(flag, body, size)
        if index is None and view is not None:
            batch = self._open(view, wanted)
            index = batch.maybe_add(flag, body, size)  # immediately: an empty batch must never become due
        if batch is None or index is None:
            return None
        self._buffered += size
        if batch.is_full:
            self._queues.seal(key)
        if self._queues.has_sendable:
            self._push()
        return SendHandle(self, batch, index)

    def _open(self, view: TopicView, wanted: Partition | None) -> ProducerBatch:
        if self._is_closing:
            raise ClientClosed("the client is closed: make a new one")
        batch = self._queues.open_batch(view, wanted, time.monotonic())
        self._set_timer()
        return batch

    async def _view(self, topic: str) -> TopicView:
        if (known := self._topology.known(topic)) is not None:
            return known
        try:
            return await run(self._topology.view, topic, VIEW_TIMEOUT_S)
        except ZooKeeperUnavailable as error:
            raise NoBroker(str(error), Destination(topic)) from error

    # -- sending -----------------------------------------------------------------------------------------------

    def _push(self) -> None:
        """Send what is ready: at once over live connections, otherwise after connecting."""
        live = {broker_id: it for broker_id, it in self._live.items() if not it.is_broken}
        for batch in self._queues.take_ready(time.monotonic(), live):
            self._submit(batch, live[batch.partition.broker_id])
        if self._queues.has_sendable:
            for batch in self._queues.take_ready(time.monotonic()):
                broker_id = batch.partition.broker_id
                self._unconnected.setdefault(broker_id, []).append(batch)
                if broker_id not in self._connecting:
                    self._connecting[broker_id] = self._loop.create_task(self._connect(broker_id))
        self._set_timer()

    async def _connect(self, broker_id: int) -> None:
        """Connect, then send the broker's waiting batches."""
        try:
            while batches := self._unconnected.pop(broker_id, None):
                for batch in batches:
                    if self._is_closed:
                        self._settle(batch, closed_failure(batch))
                    else:
                        await self._send(batch)
        finally:
            del self._connecting[broker_id]

    async def _send(self, batch: ProducerBatch) -> None:
        try:
            connection = await self._connection(batch)
            failure = unsendable(batch, (await run(connection.capabilities, VERSION_TIMEOUT_S)).extensions)
        except (ConnectionLost, ReplyTimeout, TooManyRequests, NoBroker, ZooKeeperError) as error:
            self._retry(batch, error)
        except (ClientClosed, asyncio.CancelledError):
            self._settle(batch, closed_failure(batch))
        else:
            if failure is not None:
                self._settle(batch, failure)
                return
            if not batch.sends_singly:
                self._live[batch.partition.broker_id] = connection
            self._submit(batch, connection)

    async def _connection(self, batch: ProducerBatch) -> Connection:
        view = await run(self._topology.view, batch.topic, VERSION_TIMEOUT_S)
        if (url := view.urls.get(batch.partition.broker_id)) is None:
            raise NoBroker("its broker is not up: start it, or wait", destination_of(batch))
        return await self._connections.connect(url, CONNECT_TIMEOUT_S, patient=False)

    def _submit(self, batch: ProducerBatch, connection: Connection) -> None:
        """Send *batch* over *connection*, or its next message if it is sent singly."""
        if not self._queues.mark_submitted(batch, connection, alone=batch.sends_singly):
            return
        opaque = next_opaque()
        request = put_request(batch, opaque) if batch.sends_singly else batch_request(batch, self._name, opaque)
        batch.sent_at = time.monotonic()
        try:
            connection.submit(request, self._on_answer)
        except (ConnectionLost, TooManyRequests) as error:  # nothing was sent
            self._retry(batch, error)
        except MetaError as error:  # it can't be encoded
            self._on_outcome(batch, SendRefused(str(error), destination_of(batch), 0))
        else:
            batch.attempts += 1
            self._in_flight[opaque] = batch
            if self._look is None:
                self._look = self._loop.call_later(IDLE_S, self._expire_overdue)

    def _set_timer(self) -> None:
        """Set the timer for the next due batch."""
        due = self._queues.next_due()
        if self._timer is not None:
            if due is not None and self._timer.when() <= self._loop.time() + due - time.monotonic():
                return  # the earlier timer sets the next one
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self._loop.call_later(max(0.0, due - time.monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._queues.seal_due(time.monotonic())
        self._push()

    def _expire_overdue(self) -> None:
        """Expire requests without a reply for too long."""
        self._look = None
        now = time.monotonic()
        late = list(itertools.takewhile(lambda way: is_overdue(way[1], now, ANSWER_TIMEOUT_S), self._in_flight.items()))
        for opaque, batch in late:
            if (connection := batch.connection) is not None:
                connection.expire(opaque, round(now - batch.sent_at, 1))
        if self._in_flight:
            self._look = self._loop.call_later(IDLE_S, self._expire_overdue)

    # -- answers -----------------------------------------------------------------------------------------------

    def _on_answer(self, reply: PendingReply) -> None:
        if (batch := self._in_flight.pop(reply.opaque, None)) is None:
            return  # the sender was closed meanwhile
        self._on_outcome(batch, outcome_of(batch, reply))

    def _on_outcome(self, batch: ProducerBatch, outcome: Outcome) -> None:
        if batch.sends_singly:
            retriable = record_single(batch, outcome)
            if batch.is_recorded:
                self._settle(batch, None)
            elif retriable is not None:
                self._retry(batch, retriable.error)
            else:
                self._queues.requeue_now(batch)
                self._push()
        elif isinstance(outcome, Retriable):
            self._retry(batch, outcome.error)
        else:
            self._settle(batch, outcome)

    def _retry(self, batch: ProducerBatch, error: Exception) -> None:
        if self._is_closed:
            self._settle(batch, closed_failure(batch))
            return
        now = time.monotonic()
        batch.failures += 1
        if (failure := timeout_failure(batch, error, now)) is not None:
            self._settle(batch, failure)
            return
        is_away = isinstance(error, NotConnected | NoBroker)
        if is_away and self._queues.maybe_move(batch, self._topology.maybe_view(batch.topic), now):
            _log.info("batch to go to another broker to=%s reason=%s", destination_of(batch), error)
            self._push()
            return
        if batch.failures == 1:
            _log.info("batch to be sent again batch=%d to=%s reason=%s", batch.number, destination_of(batch), error)
        self._queues.requeue(batch, now)
        self._set_timer()

    def _settle(self, batch: ProducerBatch, outcome: PutPlace | SendFailed | None) -> None:
        self._buffered -= batch.bytes
        batch.complete(outcome)
        count, failure = batch.failed()
        if failure is not None:
            _log.warning("messages not acknowledged count=%d error=%s", count, failure)
            self._failure = self._failure or failure
        self._queues.mark_settled(batch)
        for_any, self._for_any = self._for_any, []
        for waiting in (*self._waiting.pop(batch, ()), *for_any):
            if not waiting.done():
                waiting.set_result(None)
        if self._queues.has_sendable:
            self._push()

    async def _until_any(self) -> None:
        """Return once some batch is settled."""
        settled = self._loop.create_future()
        self._for_any.append(settled)
        await settled
