"""Drives a sending engine with tasks: timers and sockets of the loop. The twin of meta_client/producer/sender.py."""

import asyncio
import contextlib
import functools
import logging
import math
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Concatenate, ParamSpec

import msgspec

from meta_client.aio.bridge.bridge import run
from meta_client.aio.net.connections import Connections
from meta_client.aio.net.topology import Topology
from meta_client.errors import ReplyTimeout
from meta_client.net.identity import new_session_id
from meta_client.net.pending_reply import PendingReply
from meta_client.producer.batch import ProducerBatch
from meta_client.producer.driving import CLOSE_TIMEOUT_S, VIEW_TIMEOUT_S, connect, submit
from meta_client.producer.message_run import MessageRun, RunPart
from meta_client.producer.outgoing import view_of
from meta_client.producer.partition_queues import BatchingConfig
from meta_client.producer.results import SendResult
from meta_client.producer.sending_engine import SendingEngine
from meta_client.protocol.messages import HEADER_BYTES
from zk.forks import invalidate_after_fork
from zk.tree.nodes import Partition

_Facts = ParamSpec("_Facts")

_log = logging.getLogger(__name__)


class SendHandle(msgspec.Struct, eq=False, gc=False):
    """A pending message. Loop thread only; may be dropped, the message is sent nevertheless."""

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
            await _until_settled(self._batch, timeout_s)
        return self._batch.result_of(self._index)

    def __await__(self) -> Generator[Any, None, SendResult]:
        return self.result().__await__()


async def _until_settled(batch: ProducerBatch, timeout_s: float | None) -> None:
    settled = asyncio.get_running_loop().create_future()
    batch.on_settled.append(functools.partial(_wake, settled))
    try:
        async with asyncio.timeout(timeout_s):
            await settled
    except TimeoutError as error:
        raise batch.not_settled(timeout_s) from error


async def until_all_settled(batches: Sequence[ProducerBatch], timeout_s: float | None) -> None:
    """Return once all are settled. Raises ReplyTimeout after *timeout_s*."""
    until = None if timeout_s is None else time.monotonic() + timeout_s
    for batch in batches:
        if not batch.is_settled:
            try:
                await _until_settled(batch, None if until is None else until - time.monotonic())
            except ReplyTimeout:
                raise batch.not_settled(timeout_s) from None


class Sender:
    """Sender of a client, shared by its producers. Loop thread only."""

    def __init__(self, topology: Topology, connections: Connections, config: BatchingConfig) -> None:
        self._topology = topology
        self._connections = connections
        self._engine = SendingEngine(config, new_session_id()[-64:], SendHandle)
        self.quick_add = self._engine.quick_add(None)
        self._loop = asyncio.get_running_loop()
        self._waiting: list[asyncio.Future[None]] = []  # for any batch to be settled
        self._connecting: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf  # when the timer is due; monotonic
        invalidate_after_fork(self)

    def add_now(self, topic: str, wanted: Partition | None, flag: int, body: bytes) -> SendHandle | None:
        """Add one message; return None, without effect, if `add` is needed."""
        if self.quick_add is not None and (added := self.quick_add(topic, body, wanted, flag)) is not None:
            return added
        if (handle := self._engine.maybe_add(topic, wanted, flag, body)) is not None and self._engine.has_full:
            self._carry_out()
        return handle

    async def add(self, topic: str, wanted: Partition | None, flag: int, body: bytes) -> SendHandle:
        """Add one message. Waits, or raises BufferFull, while too much is unsettled. Raises NoPartition, NoBroker,
        ClientClosed."""
        self._check_loop()
        # Reached once per batch, as add_now handles the rest: yield to replies and other tasks.
        await asyncio.sleep(0)
        engine, view = self._engine, None
        while (handle := engine.maybe_add(topic, wanted, flag, body)) is None:
            if engine.must_wait(topic, HEADER_BYTES + len(body)):
                await self._until_any()
            elif view is not None:
                handle = engine.add_first(time.monotonic(), view, wanted, flag, body)
                break
            elif (view := self._topology.known(topic)) is None:
                view = await run(view_of, self._topology, topic, VIEW_TIMEOUT_S)
        self._carry_out()
        return handle

    async def add_run(self, topic: str, wanted: Partition | None, messages: MessageRun) -> list[RunPart]:
        """Add many messages to batches, in order. Waits and raises as `add`; BufferFull only before the first of
        them."""
        self._check_loop()
        engine, parts, start, view = self._engine, list[RunPart](), 0, None
        while start < len(messages):
            if (part := engine.maybe_add_run(topic, wanted, messages, start)) is None:
                if engine.must_wait_for(topic, messages, start):
                    await self._until_any()
                    continue
                if view is None:
                    view = self._topology.known(topic) or await run(view_of, self._topology, topic, VIEW_TIMEOUT_S)
                    continue
                engine.open_batch(time.monotonic(), view, wanted)
                part = engine.maybe_add_run(topic, wanted, messages, start)
                assert part is not None, "there is room, and a new batch takes a message of any size"
            parts.append(part)
            start, view = part.indexes[-1] + 1, None
            self._carry_out()
            await asyncio.sleep(0)  # once a batch: yield to replies and other tasks
        return parts

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send everything now and return once it is settled; what is added meanwhile is not waited for.

        Raises the first SendFailed of any message since the last flush, ReplyTimeout.
        """
        self._check_loop()
        batches = self._engine.begin_flush()
        self._carry_out()
        try:
            await self._until(lambda: self._engine.is_flushed(batches), timeout_s)
        except TimeoutError as error:
            raise self._engine.not_flushed(timeout_s) from error
        if (failure := self._engine.take_failure()) is not None:
            raise failure

    async def close(self) -> None:
        """Send what is buffered, within ten seconds; the rest fails. Idempotent."""
        self._engine.begin_close()
        self._carry_out()
        self._wake_waiting()
        try:
            with contextlib.suppress(TimeoutError):
                await self._until(lambda: self._engine.is_empty, CLOSE_TIMEOUT_S)
        finally:
            for task in self._connecting:
                task.cancel()
            self._engine.close()
            self._carry_out()

    def has_pending(self, topic: str, partition: Partition) -> bool:
        """True if a message sent to *partition* by other means could overtake a buffered one."""
        return self._engine.has_pending(topic, partition)

    def push(self, topic: str, partition: Partition) -> None:
        """Send the buffered messages of *partition* now."""
        self._engine.seal(topic, partition)
        self._carry_out()

    def _check_loop(self) -> None:
        """Raise RuntimeError in another loop than the client's, which alone sends, and may be closed."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("the client belongs to another event loop: enter one in this loop, with `async with`")

    # -- events ----------------------------------------------------------------------------------------------------

    def _apply(
        self, event: Callable[Concatenate[float, _Facts], None], *facts: _Facts.args, **named: _Facts.kwargs
    ) -> None:
        """Tell the engine of *event*, then do what it wants done."""
        event(time.monotonic(), *facts, **named)
        self._carry_out()

    def _on_answer(self, reply: PendingReply) -> None:
        self._apply(self._engine.answered, reply)

    def _on_timer(self) -> None:
        self._timer = None
        self._apply(self._engine.advance)
        for connection, opaque, after_s in self._engine.overdue(time.monotonic()):
            connection.expire(opaque, after_s)
        self._set_timer()

    async def _connect(self, broker_id: int, topics: tuple[str, ...]) -> None:
        outcome = await run(connect, self._topology, self._connections, broker_id, topics)
        self._apply(self._engine.connecting_ended, broker_id, outcome)

    # -- effects ---------------------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        """Do what the engine wants done: at once over live connections, otherwise in tasks that connect."""
        engine = self._engine
        engine.has_full = False
        while (send := engine.maybe_send(time.monotonic())) is not None:
            if (error := submit(send, self._on_answer)) is not None:
                engine.unsent(time.monotonic(), send.opaque, error)
        while (connecting := engine.maybe_connect()) is not None:
            task = self._loop.create_task(self._connect(*connecting))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
        if engine.take_settled():
            self._wake_waiting()
        for note in engine.take_notes():
            _log.log(*note)
        self._set_timer()

    def _set_timer(self) -> None:
        """Set the timer for the next `advance`."""
        due = self._engine.next_due
        if self._timer is not None:
            if self._wakes_at <= due < math.inf:
                return  # the earlier timer sets the next one
            self._timer.cancel()
            self._timer = None
        if due < math.inf:
            self._wakes_at = due
            self._timer = self._loop.call_later(max(0.0, due - time.monotonic()), self._on_timer)

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for settled in waiting:
            _wake(settled)

    async def _until_any(self) -> None:
        """Return once some batch is settled, or the client is being closed."""
        settled = self._loop.create_future()
        self._waiting.append(settled)
        await settled

    async def _until(self, is_over: Callable[[], bool], timeout_s: float | None) -> None:
        """Return once enough is settled that *is_over*. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not is_over():
                await self._until_any()


def _wake(settled: "asyncio.Future[None]") -> None:
    if not settled.done():
        settled.set_result(None)
