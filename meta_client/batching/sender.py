"""The door through which messages come in, and the sending of their batches.

Callers add under the lock and go on. A full batch is sent by the caller that filled it, over a connection that is
known to work: handing it to a thread would cost two changes of thread, each of which waits while others compute.
What has waited long enough, is to be tried again, or needs a connection, a thread of ours sends. Answers are
settled by the connection's reader.

A batch that a broker of ours may have got is sent again with the same number until it is answered: it is stored
once. To a broker without `mput` messages go one by one, each when the one before it in its partition is answered: it
may execute requests out of order. One whose answer is lost is not sent again: that could double it.
"""

import itertools
import logging
import threading
import time

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
from meta_client.batching.batch import Batch, SendHandle
from meta_client.batching.lanes import BatchingConfig, Lanes
from meta_client.connections import Connections
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
from meta_client.topology import Directory, TopicView
from meta_client.transport import Transport
from zk.errors import ZooKeeperError, ZooKeeperUnavailable
from zk.forks import made_here
from zk.nodes import Partition

ANSWER_TIMEOUT_S = 10.0  # after that a batch is asked about again, by sending it again
VERSION_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 1.0  # a broker that is gone holds up the messages to others for no longer
VIEW_TIMEOUT_S = 3.0  # as a producer's send (spec 7.4)
IDLE_S = 1.0  # how often answers that are overdue are looked for
CLOSE_TIMEOUT_S = 10.0

_log = logging.getLogger(__name__)


class Sender:
    """One per client; its producers share it. `add`, `flush` and `close` from any thread."""

    def __init__(self, topology: Directory, connections: Connections, config: BatchingConfig) -> None:
        self._topology = topology
        self._connections = connections
        self._config = config
        self._name = new_session_id()[-64:]
        self._lock = threading.Lock()  # guards everything below but `_live`
        self._work = threading.Condition(self._lock)  # the thread waits here
        self._room = threading.Condition(self._lock)  # add and flush wait here
        self._lanes = Lanes(config)
        self._buffered = 0  # bytes of messages that are not settled
        self._under_way: dict[int, Batch] = {}  # by the opaque of the last attempt, the oldest first
        self._failure: SendFailed | None = None  # the first since the last flush
        self._is_closing = False
        self._is_ended = False  # nobody sends any more; under the lock
        made_here(self)
        self._thread: threading.Thread | None = None
        self._sending = threading.Lock()  # held from taking batches until they are submitted: keeps their order
        self._live: dict[int, Transport] = {}  # by broker id, what a caller may send over; under `_sending`

    def add(self, topic: str, wanted: Partition | None, flag: int, body: bytes) -> SendHandle:
        """Take one message. Blocks, or raises BufferFull, while too much is unsettled. Raises NoPartition, NoBroker
        if ZooKeeper can't tell where it may go, ClientClosed."""
        size = HEADER_BYTES + len(body)
        destined, view = (topic, wanted), None
        while True:
            with self._lock:
                if self._buffered + size > self._config.buffer_bytes_max:
                    self._make_room(topic, size)
                batch = self._lanes.open.get(destined)
                index = None if batch is None else batch.maybe_add(flag, body, size)
                if index is None and view is not None:
                    batch = self._open(view, wanted)
                    index = batch.maybe_add(flag, body, size)  # at once: an empty batch must never become due
                if batch is not None and index is not None:
                    self._buffered += size
                    if not batch.is_full:
                        return SendHandle(batch, index)
                    self._lanes.seal(destined)
                    break
            view = self._view(topic)  # without the lock: it may have to be read from ZooKeeper
        self._push()
        return SendHandle(batch, index)

    def _view(self, topic: str) -> TopicView:
        try:
            return self._topology.view(topic, VIEW_TIMEOUT_S)
        except ZooKeeperUnavailable as error:
            raise NoBroker(str(error), Destination(topic)) from error

    def _open(self, view: TopicView, wanted: Partition | None) -> Batch:
        """A new batch, which the thread is told of. The lock is held."""
        if self._is_closing:
            raise ClientClosed("the client is closed: make a new one")
        batch = self._lanes.open_batch(view, wanted, time.monotonic())
        self._start()
        self._work.notify()
        return batch

    def _make_room(self, topic: str, size: int) -> None:
        """Wait until a message of *size* bytes fits, or nothing else is there. The lock is held."""
        if self._config.raise_when_full and self._buffered:
            raise BufferFull(
                f"{self._buffered} bytes wait to be acknowledged, buffer_bytes_max is "
                f"{self._config.buffer_bytes_max}: wait, or flush()",
                Destination(topic),
            )
        limit = self._config.buffer_bytes_max - size
        self._room.wait_for(lambda: self._buffered <= max(limit, 0) or self._is_closing)

    def flush(self, timeout_s: float | None = None) -> None:
        """Send everything now and return once all of it is settled.

        Raises the first SendFailed of any message since the last flush, ReplyTimeout.
        """
        with self._lock:
            self._lanes.seal_all()
            self._work.notify()
            if not self._room.wait_for(lambda: self._lanes.is_empty, timeout_s):
                raise ReplyTimeout(f"flush: {self._buffered} bytes are not settled within {timeout_s:g} s: they go on")
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Send what is there, within ten seconds, then end the thread; what is left fails. Idempotent."""
        with self._lock:
            thread, self._is_closing = self._thread, True
            self._lanes.seal_all()
            self._work.notify()
            self._room.notify_all()
            if thread is not None:
                self._room.wait_for(lambda: self._lanes.is_empty, CLOSE_TIMEOUT_S)
            self._thread = None
            self._work.notify()
        if thread is not None:
            thread.join()

    def _start(self) -> None:
        if self._thread is None and not self._is_closing:
            self._thread = threading.Thread(target=self._run, name="metaq sender", daemon=True)
            self._thread.start()

    def _push(self) -> None:
        """Send what is ready on the caller's thread, as far as that never waits for a connection or an answer."""
        while self._lanes.has_sendable and self._sending.acquire(blocking=False):
            try:
                live = {broker_id for broker_id, connection in self._live.items() if not connection.is_broken}
                with self._lock:
                    if not (ready := self._lanes.take_ready(time.monotonic(), live)):
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
                    ready = self._lanes.take_ready(time.monotonic())
                for batch in ready:
                    self._send(batch)
            self._give_up_waiting()
        with self._lock:
            self._is_ended = True
            waiting = self._lanes.take_all()
            under_way, self._under_way = list(self._under_way.values()), {}
        for batch in (*waiting, *under_way):
            self._settle(batch, closed(batch))

    def _wait_for_work(self) -> bool:
        """Return once there is something to send or to give up; False once the sender is closed."""
        with self._lock:
            while self._thread is not None:
                now = time.monotonic()
                self._lanes.seal_due(now)
                if self._lanes.has_sendable:
                    return True
                due = self._lanes.next_due()
                if due is not None and due <= now:
                    return True
                if not self._work.wait(IDLE_S if due is None else min(due - now, IDLE_S)) and self._under_way:
                    return True
            return False

    def _send(self, batch: Batch) -> None:
        try:
            connection = self._connection(batch)
            failure = unsendable(batch, connection.capabilities(VERSION_TIMEOUT_S).extensions)
        except (ConnectionLost, ReplyTimeout, TooManyRequests, NoBroker, ZooKeeperError) as error:
            self._again(batch, error)
        except ClientClosed:
            self._settle(batch, closed(batch))
        else:
            if failure is not None:
                self._settle(batch, failure)
                return
            if not batch.goes_singly:
                self._live[batch.partition.broker_id] = connection
            self._submit(batch, connection)

    def _submit(self, batch: Batch, connection: Transport) -> None:
        """Send *batch* over *connection*, or its next message if it goes singly. `_sending` is held."""
        opaque = next_opaque()
        request = put_of(batch, opaque) if batch.goes_singly else request_of(batch, self._name, opaque)
        with self._lock:
            if not self._lanes.submitted(batch, connection, alone=batch.goes_singly):
                return
            batch.sent_at = time.monotonic()
            self._under_way[opaque] = batch  # before it goes: the answer may be here before submit() returns
            batch.attempts += 1
        try:
            connection.submit(request, self._on_answer)
        except MetaError as error:  # nothing was sent
            with self._lock:
                del self._under_way[opaque]
                batch.attempts -= 1
            if isinstance(error, (ConnectionLost, TooManyRequests)):
                self._again(batch, error)
            else:  # it has no form on the wire
                self._on_outcome(batch, SendRefused(str(error), where(batch), 0))

    def _connection(self, batch: Batch) -> Transport:
        url = self._topology.view(batch.topic, VERSION_TIMEOUT_S).urls.get(batch.partition.broker_id)
        if url is None:
            raise NoBroker("its broker is not up: start it, or wait", where(batch))
        return self._connections.get(url, CONNECT_TIMEOUT_S, patient=False)

    def _give_up_waiting(self) -> None:
        """What has had no answer for too long is asked about again, or given up if its time is over."""
        now = time.monotonic()
        with self._lock:
            under_way = self._under_way.items()
            late = list(itertools.takewhile(lambda way: is_overdue(way[1], now, ANSWER_TIMEOUT_S), under_way))
        for opaque, batch in late:
            if (connection := batch.connection) is not None:
                connection.expire(opaque, round(now - batch.sent_at, 1))

    # -- answers, on a connection's reader thread, or on whichever breaks it ------------------------------------

    def _on_answer(self, reply: PendingReply) -> None:
        with self._lock:
            batch = self._under_way.pop(reply.opaque, None)
        if batch is None:
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
                with self._lock:
                    self._lanes.resume(batch)
                    self._work.notify()
        elif isinstance(outcome, Again):
            self._again(batch, outcome.error)
        else:
            self._settle(batch, outcome)

    def _again(self, batch: Batch, error: Exception) -> None:
        now = time.monotonic()
        batch.failures += 1
        if (failure := given_up(batch, error, now)) is not None:
            self._settle(batch, failure)
            return
        if isinstance(error, (NotConnected, NoBroker)) and self._moved(batch, now):
            _log.info("batch to go to another broker to=%s reason=%s", where(batch), error)
            return
        if batch.failures == 1:
            _log.info("batch to be sent again batch=%d to=%s reason=%s", batch.number, where(batch), error)
        with self._lock:
            if not self._is_ended:
                self._lanes.again(batch, now)
                self._work.notify()
                return
        self._settle(batch, closed(batch))

    def _moved(self, batch: Batch, now: float) -> bool:
        """Whether a broker that is up takes *batch* in place of its own, which can't be reached."""
        view = self._topology.maybe_view(batch.topic)
        with self._lock:
            if self._is_ended or not self._lanes.maybe_move(batch, view, now):
                return False
            self._work.notify()
            return True

    def is_behind(self, topic: str, partition: Partition) -> bool:
        """Whether a message that is sent to *partition* by another way now may overtake one of ours."""
        if self._thread is None:
            return False
        with self._lock:
            return self._lanes.is_behind(topic, partition)

    def push(self, topic: str, partition: Partition) -> None:
        """Send what is gathered for *partition* without waiting for more."""
        with self._lock:
            if (topic, partition) in self._lanes.open:
                self._lanes.seal((topic, partition))
        self._push()

    def _settle(self, batch: Batch, outcome: PutPlace | SendFailed | None) -> None:
        size = batch.bytes
        batch.conclude(outcome)
        count, failure = batch.failed()
        if failure is not None:
            _log.warning("messages not acknowledged count=%d error=%s", count, failure)
        with self._lock:
            self._failure = self._failure or failure
            self._buffered -= size
            self._lanes.settled(batch)
            self._room.notify_all()
            if self._lanes.has_sendable:
                self._work.notify()
