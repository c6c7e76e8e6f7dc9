"""Gathers messages into batches, sends them, and again where it must. The twin of meta_client/batching/sender.py.

What goes when, and again, is decided by the same rules, `Lanes` and `attempts`; here are the loop's timers and sockets.
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
from meta_client.batching.attempts import (
    Again,
    Outcome,
    closed,
    given_up,
    is_overdue,
    note_single,
    outcome_of,
    put_of,
    request_of,
    unsendable,
    where,
)
from meta_client.batching.batch import Batch
from meta_client.batching.lanes import BatchingConfig, Lanes
from meta_client.batching.sender import (
    ANSWER_TIMEOUT_S,
    CLOSE_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    IDLE_S,
    VERSION_TIMEOUT_S,
    VIEW_TIMEOUT_S,
)
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
from meta_client.identity import new_session_id
from meta_client.opaques import next_opaque
from meta_client.pending_reply import PendingReply
from meta_client.protocol.answers import PutPlace
from meta_client.protocol.errors import MetaError
from meta_client.protocol.messages import HEADER_BYTES
from meta_client.results import SendResult
from meta_client.topology import TopicView
from zk.errors import ZooKeeperError, ZooKeeperUnavailable
from zk.forks import made_here
from zk.nodes import Partition

_log = logging.getLogger(__name__)


class SendHandle(msgspec.Struct, eq=False, gc=False):
    """A message on its way. Loop thread only; may be dropped at will, the message goes all the same."""

    _sender: "Sender"
    _batch: Batch
    _index: int

    @property
    def is_done(self) -> bool:
        """Whether `result` would answer at once."""
        return self._batch.is_settled

    async def result(self, timeout_s: float | None = None) -> SendResult:
        """Where the message went, once the broker has acknowledged it. Raises SendFailed (the subclass tells
        whether it may be stored), ReplyTimeout after *timeout_s*: it is still being sent then."""
        if not self._batch.is_settled:
            await self._sender.until_settled(self._batch, timeout_s)
        return self._batch.result_of(self._index)

    def __await__(self) -> Generator[Any, None, SendResult]:
        return self.result().__await__()


class Sender:
    """One per client; its producers share it. Loop thread only."""

    def __init__(self, topology: Topology, connections: Connections, config: BatchingConfig) -> None:
        self._topology = topology
        self._connections = connections
        self._config = config
        self._name = new_session_id()[-64:]
        self._loop = asyncio.get_running_loop()
        self._lanes = Lanes(config)
        self._buffered = 0  # bytes of messages that are not settled
        self._under_way: dict[int, Batch] = {}  # by the opaque of the last attempt, the oldest first
        self._waiting: dict[Batch, list[asyncio.Future[None]]] = {}  # who waits for a batch to be settled
        self._for_any: list[asyncio.Future[None]] = []  # who waits for any to be settled
        self._failure: SendFailed | None = None  # the first since the last flush
        self._live: dict[int, Connection] = {}  # by broker id, to brokers that take batches
        self._unconnected: dict[int, list[Batch]] = {}  # by broker id, what was taken and has no connection
        self._connecting: dict[int, asyncio.Task[None]] = {}  # by broker id
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = self._is_closed = False
        made_here(self)
        self._look: asyncio.TimerHandle | None = None  # while something is under way

    def add_now(self, topic: str, wanted: Partition | None, flag: int, body: bytes) -> SendHandle | None:
        """Take one message; None, and nothing is done, if `add` would have to wait. Raises BufferFull."""
        if self._is_full(topic, len(body)):
            return None
        return self._take(topic, wanted, flag, body, None)

    async def add(self, topic: str, wanted: Partition | None, flag: int, body: bytes) -> SendHandle:
        """Take one message. Waits, or raises BufferFull, while too much is unsettled. Raises NoPartition, NoBroker,
        ClientClosed."""
        # Once a batch, for what fits is taken by add_now: whoever only sends lets answers in, and others work.
        await asyncio.sleep(0)
        view: TopicView | None = None
        while True:
            while self._is_full(topic, len(body)):
                await self._until_any()
            if (handle := self._take(topic, wanted, flag, body, view)) is not None:
                return handle
            view = await self._view(topic)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send everything now and return once all of it is settled.

        Raises the first SendFailed of any message since the last flush, ReplyTimeout.
        """
        self._lanes.seal_all()
        self._push()
        try:
            async with asyncio.timeout(timeout_s):
                while not self._lanes.is_empty:
                    await self._until_any()
        except TimeoutError as error:
            raise ReplyTimeout(
                f"flush: {self._buffered} bytes are not settled within {timeout_s:g} s: they go on"
            ) from error
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def until_settled(self, batch: Batch, timeout_s: float | None) -> None:
        """Return once *batch* is settled. Raises ReplyTimeout; it goes on being sent then."""
        settled = self._loop.create_future()
        self._waiting.setdefault(batch, []).append(settled)
        try:
            async with asyncio.timeout(timeout_s):
                await settled
        except TimeoutError as error:
            raise ReplyTimeout(
                f"send to {where(batch)}: not settled within {timeout_s:g} s: wait on, it is still being sent"
            ) from error

    async def close(self) -> None:
        """Send what is there, within ten seconds; what is left then fails. Idempotent."""
        self._is_closing = True
        self._lanes.seal_all()
        self._push()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while not self._lanes.is_empty:
                    await self._until_any()
        self._is_closed = True
        for task in list(self._connecting.values()):
            task.cancel()
        for timer in (self._timer, self._look):
            if timer is not None:
                timer.cancel()
        waiting = self._lanes.take_all()
        under_way, self._under_way = list(self._under_way.values()), {}
        unconnected, self._unconnected = list(itertools.chain(*self._unconnected.values())), {}
        for batch in (*waiting, *under_way, *unconnected):
            self._settle(batch, closed(batch))

    def is_behind(self, topic: str, partition: Partition) -> bool:
        """Whether a message that is sent to *partition* by another way now may overtake one of ours."""
        return self._lanes.is_behind(topic, partition)

    def push(self, topic: str, partition: Partition) -> None:
        """Send what is gathered for *partition* without waiting for more."""
        if (topic, partition) in self._lanes.open:
            self._lanes.seal((topic, partition))
        self._push()

    # -- taking messages ---------------------------------------------------------------------------------------

    def _is_full(self, topic: str, body_bytes: int) -> bool:
        """Whether a message must wait for others to be settled. Raises BufferFull where it may not."""
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
        """Add a message to the open batch, or to a new one, for which a *view* is needed. None: without one."""
        size, destined = HEADER_BYTES + len(body), (topic, wanted)
        batch = self._lanes.open.get(destined)
        index = None if batch is None else batch.maybe_add(flag, body, size)
        if index is None and view is not None:
            batch = self._open(view, wanted)
            index = batch.maybe_add(flag, body, size)  # at once: an empty batch must never become due
        if batch is None or index is None:
            return None
        self._buffered += size
        if batch.is_full:
            self._lanes.seal(destined)
        if self._lanes.has_sendable:
            self._push()
        return SendHandle(self, batch, index)

    def _open(self, view: TopicView, wanted: Partition | None) -> Batch:
        if self._is_closing:
            raise ClientClosed("the client is closed: make a new one")
        batch = self._lanes.open_batch(view, wanted, time.monotonic())
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
        """Send what is ready: at once over connections that are there, else as soon as there is one."""
        live = {broker_id: it for broker_id, it in self._live.items() if not it.is_broken}
        for batch in self._lanes.take_ready(time.monotonic(), live):
            self._submit(batch, live[batch.partition.broker_id])
        if self._lanes.has_sendable:
            for batch in self._lanes.take_ready(time.monotonic()):
                broker_id = batch.partition.broker_id
                self._unconnected.setdefault(broker_id, []).append(batch)
                if broker_id not in self._connecting:
                    self._connecting[broker_id] = self._loop.create_task(self._connect(broker_id))
        self._set_timer()

    async def _connect(self, broker_id: int) -> None:
        """Send the batches for one broker that have no connection."""
        try:
            while batches := self._unconnected.pop(broker_id, None):
                for batch in batches:
                    if self._is_closed:
                        self._settle(batch, closed(batch))
                    else:
                        await self._send(batch)
        finally:
            del self._connecting[broker_id]

    async def _send(self, batch: Batch) -> None:
        try:
            connection = await self._connection(batch)
            failure = unsendable(batch, (await run(connection.capabilities, VERSION_TIMEOUT_S)).extensions)
        except (ConnectionLost, ReplyTimeout, TooManyRequests, NoBroker, ZooKeeperError) as error:
            self._again(batch, error)
        except (ClientClosed, asyncio.CancelledError):
            self._settle(batch, closed(batch))
        else:
            if failure is not None:
                self._settle(batch, failure)
                return
            if not batch.goes_singly:
                self._live[batch.partition.broker_id] = connection
            self._submit(batch, connection)

    async def _connection(self, batch: Batch) -> Connection:
        view = await run(self._topology.view, batch.topic, VERSION_TIMEOUT_S)
        if (url := view.urls.get(batch.partition.broker_id)) is None:
            raise NoBroker("its broker is not up: start it, or wait", where(batch))
        return await self._connections.connect(url, CONNECT_TIMEOUT_S, patient=False)

    def _submit(self, batch: Batch, connection: Connection) -> None:
        """Send *batch* over *connection*, or its next message if it goes singly."""
        if not self._lanes.submitted(batch, connection, alone=batch.goes_singly):
            return
        opaque = next_opaque()
        request = put_of(batch, opaque) if batch.goes_singly else request_of(batch, self._name, opaque)
        batch.sent_at = time.monotonic()
        try:
            connection.submit(request, self._on_answer)
        except (ConnectionLost, TooManyRequests) as error:  # nothing was sent
            self._again(batch, error)
        except MetaError as error:  # it has no form on the wire
            self._on_outcome(batch, SendRefused(str(error), where(batch), 0))
        else:
            batch.attempts += 1
            self._under_way[opaque] = batch
            if self._look is None:
                self._look = self._loop.call_later(IDLE_S, self._give_up_waiting)

    def _set_timer(self) -> None:
        """Have what waits looked at when it is due."""
        due = self._lanes.next_due()
        if self._timer is not None:
            if due is not None and self._timer.when() <= self._loop.time() + due - time.monotonic():
                return  # it looks again then
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self._loop.call_later(max(0.0, due - time.monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._lanes.seal_due(time.monotonic())
        self._push()

    def _give_up_waiting(self) -> None:
        """What has had no answer for too long is asked about again."""
        self._look = None
        now = time.monotonic()
        late = list(itertools.takewhile(lambda way: is_overdue(way[1], now, ANSWER_TIMEOUT_S), self._under_way.items()))
        for opaque, batch in late:
            if (connection := batch.connection) is not None:
                connection.expire(opaque, round(now - batch.sent_at, 1))
        if self._under_way:
            self._look = self._loop.call_later(IDLE_S, self._give_up_waiting)

    # -- answers -----------------------------------------------------------------------------------------------

    def _on_answer(self, reply: PendingReply) -> None:
        if (batch := self._under_way.pop(reply.opaque, None)) is None:
            return  # the sender was closed meanwhile
        self._on_outcome(batch, outcome_of(batch, reply))

    def _on_outcome(self, batch: Batch, outcome: Outcome) -> None:
        if batch.goes_singly:
            again = note_single(batch, outcome)
            if batch.is_noted:
                self._settle(batch, None)
            elif again is not None:
                self._again(batch, again.error)
            else:
                self._lanes.resume(batch)
                self._push()
        elif isinstance(outcome, Again):
            self._again(batch, outcome.error)
        else:
            self._settle(batch, outcome)

    def _again(self, batch: Batch, error: Exception) -> None:
        if self._is_closed:
            self._settle(batch, closed(batch))
            return
        now = time.monotonic()
        batch.failures += 1
        if (failure := given_up(batch, error, now)) is not None:
            self._settle(batch, failure)
            return
        is_away = isinstance(error, NotConnected | NoBroker)
        if is_away and self._lanes.maybe_move(batch, self._topology.maybe_view(batch.topic), now):
            _log.info("batch to go to another broker to=%s reason=%s", where(batch), error)
            self._push()
            return
        if batch.failures == 1:
            _log.info("batch to be sent again batch=%d to=%s reason=%s", batch.number, where(batch), error)
        self._lanes.again(batch, now)
        self._set_timer()

    def _settle(self, batch: Batch, outcome: PutPlace | SendFailed | None) -> None:
        self._buffered -= batch.bytes
        batch.conclude(outcome)
        count, failure = batch.failed()
        if failure is not None:
            _log.warning("messages not acknowledged count=%d error=%s", count, failure)
            self._failure = self._failure or failure
        self._lanes.settled(batch)
        for_any, self._for_any = self._for_any, []
        for waiting in (*self._waiting.pop(batch, ()), *for_any):
            if not waiting.done():
                waiting.set_result(None)
        if self._lanes.has_sendable:
            self._push()

    async def _until_any(self) -> None:
        """Return once some batch is settled."""
        settled = self._loop.create_future()
        self._for_any.append(settled)
        await settled
