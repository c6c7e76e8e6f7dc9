"""Drives a sending engine with threads.

Callers add messages under the lock and continue. The caller that fills a batch sends it, over a connection known to
work: handing it to a thread would cost two thread switches. The sender thread handles batches whose linger time is
over, retries, and connections. A connection's reader thread tells the engine of answers.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from types import BuiltinMethodType
from typing import Concatenate, ParamSpec

from meta_client.metadata.topology import Directory
from meta_client.net.connections import Connections
from meta_client.net.deadline import check_timeout
from meta_client.net.identity import new_session_id
from meta_client.net.pending_reply import PendingReply
from meta_client.producer.attempts import SendAttempt
from meta_client.producer.batch import SendHandle
from meta_client.producer.driving import CLOSE_TIMEOUT_S, VIEW_TIMEOUT_S, connect, submit
from meta_client.producer.message_run import MessageRun, RunPart
from meta_client.producer.outgoing import view_of
from meta_client.producer.partition_queues import BatchingConfig
from meta_client.producer.sending_engine import SendingEngine
from meta_client.protocol.messages import HEADER_BYTES
from zk.forks import invalidate_after_fork
from zk.tree.nodes import Partition

_Facts = ParamSpec("_Facts")

_log = logging.getLogger(__name__)


class Sender:
    """Sends batches for all producers of a client. `add`, `flush` and `close` from any thread."""

    def __init__(self, topology: Directory, connections: Connections, config: BatchingConfig) -> None:
        self._topology = topology
        self._connections = connections
        self._lock = threading.Lock()  # guards the engine and the next four
        self._engine = SendingEngine(config, new_session_id()[-64:], SendHandle)
        # gevent's locks are not the interpreter's, which the core asks.
        has_core = isinstance(self._lock.locked, BuiltinMethodType)
        self.quick_add = self._engine.quick_add(self._lock.locked) if has_core else None
        self._work = threading.Condition(self._lock)  # the thread waits here
        self._room = threading.Condition(self._lock)  # add and flush wait here
        self._wakes_at = math.inf  # when the waiting thread looks again; monotonic
        self._thread: threading.Thread | None = None
        invalidate_after_fork(self)
        self._sending = threading.Lock()  # held from taking a request until it is submitted, to keep their order

    def add(self, topic: str, wanted: Partition | None, flag: int, body: bytes) -> SendHandle:
        """Add one message to a batch. Blocks, or raises BufferFull, while too much is unsettled. Raises NoPartition,
        NoBroker if ZooKeeper can't be asked for its place, ClientClosed."""
        if self.quick_add is not None and (added := self.quick_add(topic, body, wanted, flag)) is not None:
            return added
        engine, view = self._engine, None
        while True:
            with self._lock:
                if (handle := engine.maybe_add(topic, wanted, flag, body)) is None:
                    if engine.must_wait(topic, HEADER_BYTES + len(body)):
                        self._room.wait()
                        continue
                    if view is not None:
                        self._maybe_start_thread()
                        handle = engine.add_first(time.monotonic(), view, wanted, flag, body)
                        self._wake_thread()  # it also sends the batch before this one
                if handle is not None:
                    if not engine.has_full:
                        return handle
                    engine.has_full = False
                    if engine.has_connects:
                        self._wake_thread()
                    break
            view = view_of(self._topology, topic, VIEW_TIMEOUT_S)  # without the lock: it may ask ZooKeeper
        self._push()
        return handle

    def add_run(self, topic: str, wanted: Partition | None, run: MessageRun) -> list[RunPart]:
        """Add many messages to batches, in order, and send those that are full. Blocks and raises as `add`; BufferFull
        only before the first of them."""
        engine, parts, start, view = self._engine, list[RunPart](), 0, None
        while start < len(run):
            with self._lock:
                if (part := engine.maybe_add_run(topic, wanted, run, start)) is None:
                    if engine.must_wait_for(topic, run, start):
                        self._room.wait()
                        continue
                    if view is not None:
                        self._maybe_start_thread()
                        engine.open_batch(time.monotonic(), view, wanted)
                        part = engine.maybe_add_run(topic, wanted, run, start)
                        assert part is not None, "there is room, and a new batch takes a message of any size"
                        self._wake_thread()
                if engine.has_full:
                    engine.has_full = False
                    if engine.has_connects:
                        self._wake_thread()
            view = None
            if part is None:
                view = view_of(self._topology, topic, VIEW_TIMEOUT_S)
                continue
            parts.append(part)
            start = part.indexes[-1] + 1
            self._push()
        return parts

    def flush(self, timeout_s: float | None = None) -> None:
        """Send everything now and wait until it is settled; what is added meanwhile is not waited for.

        Raises the first SendFailed of any message since the last flush; ReplyTimeout.
        """
        engine = self._engine
        with self._lock:
            batches = engine.begin_flush()
            self._wake_thread()
            wait_s = None if timeout_s is None else min(check_timeout(timeout_s), threading.TIMEOUT_MAX)
            if not self._room.wait_for(lambda: engine.is_flushed(batches), wait_s):
                raise engine.not_flushed(timeout_s)
            failure = engine.take_failure()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Send what is gathered, within ten seconds, then end the thread; unsettled messages fail. Idempotent."""
        engine = self._engine
        with self._lock:
            engine.begin_close()
            self._wake_thread()
            self._room.notify_all()
            self._room.wait_for(lambda: engine.is_empty, CLOSE_TIMEOUT_S)
            thread = self._thread
        self._apply(self._fail_unsettled)
        if thread is not None and thread.ident is not None:
            thread.join()

    def _fail_unsettled(self, now: float) -> None:
        """Fail what is not settled, and let the thread end. The lock is held."""
        del now
        self._engine.close()
        self._thread = None
        self._work.notify()

    def has_pending(self, topic: str, partition: Partition) -> bool:
        """Return True if a message sent to *partition* by another way now could overtake one of this sender."""
        if self._thread is None:
            return False
        with self._lock:
            return self._engine.has_pending(topic, partition)

    def push(self, topic: str, partition: Partition) -> None:
        """Send the batch gathered for *partition* without waiting for its linger time."""
        with self._lock:
            self._engine.seal(topic, partition)
            self._wake_thread()
        self._push()

    def _apply(
        self, event: Callable[Concatenate[float, _Facts], None], *facts: _Facts.args, **named: _Facts.kwargs
    ) -> None:
        """Tell the engine of *event*, then wake what that concerns. Any thread, without the lock."""
        with self._lock:
            event(time.monotonic(), *facts, **named)
            if self._engine.take_settled():
                self._room.notify_all()
            self._wake_thread()
            notes = self._engine.take_notes()
        for note in notes:
            _log.log(*note)

    def _push(self, *, is_thread: bool = False) -> None:
        """Send what can be sent, unless another thread is at it, which then goes on with this; the sender thread waits
        for that."""
        while self._engine.has_sends and self._sending.acquire(blocking=is_thread):
            try:
                while True:
                    with self._lock:
                        if (send := self._engine.maybe_send(time.monotonic())) is None:
                            break
                    self._submit(send)
            finally:
                self._sending.release()

    def _submit(self, send: SendAttempt) -> None:
        try:
            error = submit(send, self._on_answer)
        except BaseException as interrupt:  # ^C
            self._apply(self._engine.lost, send.opaque, interrupt)
            raise
        if error is not None:
            self._apply(self._engine.unsent, send.opaque, error)

    def _on_answer(self, reply: PendingReply) -> None:
        """Tell the engine of an answer: on the connection's reader thread, or the thread that breaks it."""
        self._apply(self._engine.answered, reply)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _maybe_start_thread(self) -> None:
        """Start the sender thread, before the first batch: a message that nobody would send must not be taken. The lock
        is held."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="metaq sender", daemon=True)
        if self._thread.ident is None:  # also after a start that the system refused, or an interrupt cut short
            self._thread.start()

    def _wake_thread(self) -> None:
        """Wake the sender thread if it has anything to do. The lock is held."""
        engine = self._engine
        if engine.has_sends or engine.has_connects or engine.next_due < self._wakes_at:
            self._work.notify()

    def _run(self) -> None:
        engine = self._engine
        while self._wait_for_work():
            self._push(is_thread=True)
            with self._lock:
                connecting = engine.maybe_connect()
                overdue = engine.overdue(time.monotonic())
            if connecting is not None:
                broker_id, topics = connecting
                outcome = connect(self._topology, self._connections, broker_id, topics)
                self._apply(engine.connecting_ended, broker_id, outcome)
            for connection, opaque, after_s in overdue:
                connection.expire(opaque, after_s)

    def _wait_for_work(self) -> bool:
        """Wait until there is something to do; False once the sender is closed."""
        engine = self._engine
        with self._lock:
            while self._thread is not None:
                now = time.monotonic()
                engine.advance(now)
                due = engine.next_due
                if engine.has_sends or engine.has_connects or due <= now:
                    return True
                self._wakes_at = due
                self._work.wait(None if due == math.inf else due - now)
                self._wakes_at = -math.inf  # it is awake
            return False
