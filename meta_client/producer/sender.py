"""The sender: gathers messages of all producers into batches and sends them.

Callers add messages under the lock and continue. The caller that fills a batch sends it, over a connection known to
work: handing it to a thread would cost two thread switches. The sender thread handles batches whose linger time is
over, retries, and those that need a connection. The connection's reader thread settles them.

A batch that a metaq broker may have got is sent again under the same number until it is answered: it is stored once. To
a broker without `mput`, which may execute requests out of order, messages go one by one, each after the one before it
in its partition is answered. A message whose answer is lost is not sent again there: that could store it twice.
"""

import itertools
import logging
import threading
import time

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
from meta_client.metadata.topology import Directory, TopicView
from meta_client.net.connections import Connections
from meta_client.net.identity import new_session_id
from meta_client.net.opaques import next_opaque
from meta_client.net.pending_reply import PendingReply
from meta_client.net.transport import Transport
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
from meta_client.producer.batch import ProducerBatch, SendHandle
from meta_client.producer.partition_queues import BatchingConfig, PartitionQueues
from meta_client.protocol.answers import PutPlace
from meta_client.protocol.errors import MetaError
from meta_client.protocol.messages import HEADER_BYTES
from zk.errors import ZooKeeperError, ZooKeeperUnavailable
from zk.forks import invalidate_after_fork
from zk.tree.nodes import Partition

ANSWER_TIMEOUT_S = 10.0  # after that a batch is sent again
VERSION_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 1.0  # limits the delay that an unreachable broker causes to others
VIEW_TIMEOUT_S = 3.0  # as a producer's send (spec 7.4)
IDLE_S = 1.0  # interval of checks for overdue answers
CLOSE_TIMEOUT_S = 10.0

_log = logging.getLogger(__name__)


class Sender:
    """Sends batches for all producers of a client. `add`, `flush` and `close` from any thread."""

    def __init__(self, topology: Directory, connections: Connections, config: BatchingConfig) -> None:
        self._topology = topology
        self._connections = connections
        self._config = config
        self._name = new_session_id()[-64:]
        self._lock = threading.Lock()  # guards everything below except `_live`
        self._work = threading.Condition(self._lock)  # the thread waits here
        self._room = threading.Condition(self._lock)  # add and flush wait here
        self._queues = PartitionQueues(config)
        self._buffered = 0  # bytes of unsettled messages
        self._in_flight: dict[int, ProducerBatch] = {}  # by opaque of the last attempt, oldest first
        self._failure: SendFailed | None = None  # the first since the last flush
        self._is_closing = False
        self._is_ended = False  # the thread has drained the queues
        invalidate_after_fork(self)
        self._thread: threading.Thread | None = None
        self._sending = threading.Lock()  # held from taking batches until they are submitted, to keep their order
        self._live: dict[int, Transport] = {}  # by broker id: callers may send on these; under `_sending`

    def add(self, topic: str, wanted: Partition | None, flag: int, body: bytes) -> SendHandle:
        """Add one message to a batch. Blocks, or raises BufferFull, while too much is unsettled. Raises NoPartition,
        NoBroker if ZooKeeper can't be asked for its place, ClientClosed."""
        size = HEADER_BYTES + len(body)
        key, view = (topic, wanted), None
        while True:
            with self._lock:
                if self._buffered + size > self._config.buffer_bytes_max:
                    self._make_room(topic, size)
                batch = self._queues.open.get(key)
                index = None if batch is None else batch.maybe_add(flag, body, size)
                if index is None and view is not None:
                    batch = self._open(view, wanted)
                    # Under the same lock: an empty batch must never become due.
                    index = batch.maybe_add(flag, body, size)
                if batch is not None and index is not None:
                    self._buffered += size
                    if not batch.is_full:
                        return SendHandle(batch, index)
                    self._queues.seal(key)
                    break
            view = self._view(topic)  # without the lock: it may have to be read from ZooKeeper
        self._push()
        return SendHandle(batch, index)

    def _view(self, topic: str) -> TopicView:
        try:
            return self._topology.view(topic, VIEW_TIMEOUT_S)
        except ZooKeeperUnavailable as error:
            raise NoBroker(str(error), Destination(topic)) from error

    def _open(self, view: TopicView, wanted: Partition | None) -> ProducerBatch:
        """Open a new batch and notify the thread. The lock is held."""
        if self._is_closing:
            raise ClientClosed("the client is closed: make a new one")
        batch = self._queues.open_batch(view, wanted, time.monotonic())
        self._start()
        self._work.notify()
        return batch

    def _make_room(self, topic: str, size: int) -> None:
        """Wait until a message of *size* bytes fits, or the buffer is empty. The lock is held."""
        if self._config.raise_when_full and self._buffered:
            raise BufferFull(
                f"{self._buffered} bytes wait to be acknowledged, buffer_bytes_max is "
                f"{self._config.buffer_bytes_max}: wait, or flush()",
                Destination(topic),
            )
        limit = self._config.buffer_bytes_max - size
        self._room.wait_for(lambda: self._buffered <= max(limit, 0) or self._is_closing)

    def flush(self, timeout_s: float | None = None) -> None:
        """Send everything now and wait until it is settled.

        Raises the first SendFailed of any message since the last flush; ReplyTimeout.
        """
        with self._lock:
            self._queues.seal_all()
            self._work.notify()
            if not self._room.wait_for(lambda: self._queues.is_empty, timeout_s):
                raise ReplyTimeout(f"flush: {self._buffered} bytes are not settled within {timeout_s:g} s: they go on")
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Send what is gathered, within ten seconds, then end the thread; unsettled messages fail. Idempotent."""
        with self._lock:
            thread, self._is_closing = self._thread, True
            self._queues.seal_all()
            self._work.notify()
            self._room.notify_all()
            if thread is not None:
                self._room.wait_for(lambda: self._queues.is_empty, CLOSE_TIMEOUT_S)
            self._thread = None
            self._work.notify()
        if thread is not None:
            thread.join()

    def _start(self) -> None:
        if self._thread is None and not self._is_closing:
            self._thread = threading.Thread(target=self._run, name="metaq sender", daemon=True)
            self._thread.start()

    def _push(self) -> None:
        """Send ready batches on the caller's thread, as far as that needs no wait for a connection or an answer."""
        while self._queues.has_sendable and self._sending.acquire(blocking=False):
            try:
                live = {broker_id for broker_id, connection in self._live.items() if not connection.is_broken}
                with self._lock:
                    if not (ready := self._queues.take_ready(time.monotonic(), live)):
                        self._work.notify()
                        return
                for batch in ready:
                    self._submit(batch, self._live[batch.partition.broker_id])
            finally:
                self._sending.release()

    # -- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait_for_work():
            with self._sending:
                with self._lock:
                    ready = self._queues.take_ready(time.monotonic())
                for batch in ready:
                    self._send(batch)
            self._expire_overdue()
        with self._lock:
            self._is_ended = True
            waiting = self._queues.drain()
            in_flight, self._in_flight = list(self._in_flight.values()), {}
        for batch in (*waiting, *in_flight):
            self._settle(batch, closed_failure(batch))

    def _wait_for_work(self) -> bool:
        """Wait until there is something to send or to give up; False once the sender is closed."""
        with self._lock:
            while self._thread is not None:
                now = time.monotonic()
                self._queues.seal_due(now)
                if self._queues.has_sendable:
                    return True
                due = self._queues.next_due()
                if due is not None and due <= now:
                    return True
                if not self._work.wait(IDLE_S if due is None else min(due - now, IDLE_S)) and self._in_flight:
                    return True
            return False

    def _send(self, batch: ProducerBatch) -> None:
        try:
            connection = self._connection(batch)
            failure = unsendable(batch, connection.capabilities(VERSION_TIMEOUT_S).extensions)
        except (ConnectionLost, ReplyTimeout, TooManyRequests, NoBroker, ZooKeeperError) as error:
            self._retry(batch, error)
        except ClientClosed:
            self._settle(batch, closed_failure(batch))
        else:
            if failure is not None:
                self._settle(batch, failure)
                return
            if not batch.sends_singly:
                self._live[batch.partition.broker_id] = connection
            self._submit(batch, connection)

    def _submit(self, batch: ProducerBatch, connection: Transport) -> None:
        """Send *batch*, or its next message if it goes singly, on *connection*. `_sending` is held."""
        opaque = next_opaque()
        request = put_request(batch, opaque) if batch.sends_singly else batch_request(batch, self._name, opaque)
        with self._lock:
            if not self._queues.mark_submitted(batch, connection, alone=batch.sends_singly):
                return
            batch.sent_at = time.monotonic()
            self._in_flight[opaque] = batch  # before submit(): the answer may arrive before it returns
            batch.attempts += 1
        try:
            connection.submit(request, self._on_answer)
        except MetaError as error:  # nothing was sent
            with self._lock:
                del self._in_flight[opaque]
                batch.attempts -= 1
            if isinstance(error, (ConnectionLost, TooManyRequests)):
                self._retry(batch, error)
            else:  # it can't be encoded
                self._on_outcome(batch, SendRefused(str(error), destination_of(batch), 0))

    def _connection(self, batch: ProducerBatch) -> Transport:
        url = self._topology.view(batch.topic, VERSION_TIMEOUT_S).urls.get(batch.partition.broker_id)
        if url is None:
            raise NoBroker("its broker is not up: start it, or wait", destination_of(batch))
        return self._connections.get(url, CONNECT_TIMEOUT_S, patient=False)

    def _expire_overdue(self) -> None:
        """Expire overdue answers: their batches are sent again, or given up if their delivery time is over."""
        now = time.monotonic()
        with self._lock:
            in_flight = self._in_flight.items()
            late = list(itertools.takewhile(lambda way: is_overdue(way[1], now, ANSWER_TIMEOUT_S), in_flight))
        for opaque, batch in late:
            if (connection := batch.connection) is not None:
                connection.expire(opaque, round(now - batch.sent_at, 1))

    # -- answers: on the connection's reader thread, or the thread that breaks it -------------------------------

    def _on_answer(self, reply: PendingReply) -> None:
        with self._lock:
            batch = self._in_flight.pop(reply.opaque, None)
        if batch is None:
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
                with self._lock:
                    self._queues.requeue_now(batch)
                    self._work.notify()
        elif isinstance(outcome, Retriable):
            self._retry(batch, outcome.error)
        else:
            self._settle(batch, outcome)

    def _retry(self, batch: ProducerBatch, error: Exception) -> None:
        now = time.monotonic()
        batch.failures += 1
        if (failure := timeout_failure(batch, error, now)) is not None:
            self._settle(batch, failure)
            return
        if isinstance(error, (NotConnected, NoBroker)) and self._try_move(batch, now):
            _log.info("batch to go to another broker to=%s reason=%s", destination_of(batch), error)
            return
        if batch.failures == 1:
            _log.info("batch to be sent again batch=%d to=%s reason=%s", batch.number, destination_of(batch), error)
        with self._lock:
            if not self._is_ended:
                self._queues.requeue(batch, now)
                self._work.notify()
                return
        self._settle(batch, closed_failure(batch))

    def _try_move(self, batch: ProducerBatch, now: float) -> bool:
        """Move *batch*, whose broker can't be reached, to a broker that is up; False if it can't move."""
        view = self._topology.maybe_view(batch.topic)
        with self._lock:
            if self._is_ended or not self._queues.maybe_move(batch, view, now):
                return False
            self._work.notify()
            return True

    def has_pending(self, topic: str, partition: Partition) -> bool:
        """Return True if a message sent to *partition* by another way now could overtake one of this sender."""
        if self._thread is None:
            return False
        with self._lock:
            return self._queues.has_pending(topic, partition)

    def push(self, topic: str, partition: Partition) -> None:
        """Send the batch gathered for *partition* without waiting for its linger time."""
        with self._lock:
            if (topic, partition) in self._queues.open:
                self._queues.seal((topic, partition))
        self._push()

    def _settle(self, batch: ProducerBatch, outcome: PutPlace | SendFailed | None) -> None:
        size = batch.bytes
        batch.complete(outcome)
        count, failure = batch.failed()
        if failure is not None:
            _log.warning("messages not acknowledged count=%d error=%s", count, failure)
        with self._lock:
            self._failure = self._failure or failure
            self._buffered -= size
            self._queues.mark_settled(batch)
            self._room.notify_all()
            if self._queues.has_sendable:
                self._work.notify()
