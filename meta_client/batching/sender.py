"""The thread that sends batches, and the door through which messages come in.

Callers add under the lock and go on; the thread seals, sends, hears answers, retries. A batch that a broker of
ours may have got is sent again with the same number until it is answered: it is stored once. To a broker without
`mput` messages go one by one, and one whose answer is lost is not sent again: that could double it.
"""

import logging
import threading
import time
from collections import deque

from journal.batches import BatchSequence
from meta_client.batching.batch import Batch, SendHandle
from meta_client.batching.lanes import BatchingConfig, Lanes
from meta_client.calls import checked_result, wait_result
from meta_client.connection import Connection, PendingReply
from meta_client.connections import Connections
from meta_client.errors import (
    BufferFull,
    ClientClosed,
    ConnectionLost,
    Destination,
    NoBroker,
    ReplyTimeout,
    SendFailed,
    SendRefused,
    SendUnknown,
    TooManyRequests,
)
from meta_client.identity import new_session_id
from meta_client.opaques import next_opaque
from meta_client.protocol.answers import PutPlace, parse_put_place
from meta_client.protocol.checksum import crc31
from meta_client.protocol.errors import MetaError, RemoteError
from meta_client.protocol.messages import HEADER_BYTES
from meta_client.protocol.requests import MultiPut, Put
from meta_client.topology import TopicView, Topology
from zk.errors import ZooKeeperError
from zk.nodes import Partition

ANSWER_TIMEOUT_S = 10.0  # after that a batch is asked about again, by sending it again
VERSION_TIMEOUT_S = 5.0
IDLE_S = 1.0  # how often answers that are overdue are looked for
CLOSE_TIMEOUT_S = 10.0

_log = logging.getLogger(__name__)


class Sender:
    """One per client; its producers share it. `add`, `flush` and `close` from any thread."""

    def __init__(self, topology: Topology, connections: Connections, config: BatchingConfig) -> None:
        self._topology = topology
        self._connections = connections
        self._config = config
        self._name = new_session_id()[-64:]
        self._lock = threading.Lock()  # guards everything below but `_answered`
        self._work = threading.Condition(self._lock)  # the thread waits here
        self._room = threading.Condition(self._lock)  # add and flush wait here
        self._lanes = Lanes(config)
        self._seen: dict[str, TopicView] = {}  # by topic, the last view that had partitions to send to
        self._buffered = 0  # bytes of messages that are not settled
        self._failure: SendFailed | None = None  # the first since the last flush
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._under_way: dict[PendingReply, tuple[Batch, float]] = {}  # the thread alone
        self._answered: deque[PendingReply] = deque()  # readers append, the thread takes

    def add(self, view: TopicView, wanted: Partition | None, flag: int, body: bytes) -> SendHandle:
        """Take one message. Blocks, or raises BufferFull, while too much is unsettled. Raises NoPartition, NoBroker,
        ClientClosed."""
        size = HEADER_BYTES + len(body)
        with self._lock:
            if self._buffered + size > self._config.buffer_bytes_max:
                self._make_room(view.topic, size)
            if self._is_closing:
                raise ClientClosed("the client is closed: make a new one")
            if view.available:
                self._seen[view.topic] = view
            else:
                view = self._seen.get(view.topic, view)  # its brokers are away for the moment: the batch waits
            batch = self._lanes.open_batch(view, wanted, size, time.monotonic())
            is_new = not batch.bytes
            handle = batch.add(flag, body)
            self._buffered += size
            if is_new or self._lanes.is_full(batch):
                self._start()
                self._work.notify()
        return handle

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

    # -- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (batches := self._wait_for_work()) is not None:
            for batch in batches:
                self._send(batch)
            self._hear()
        for batch, _ in self._under_way.values():
            self._settle(batch, _closed(batch))

    def _wait_for_work(self) -> list[Batch] | None:
        """The batches to send now, perhaps none; None once the sender is closed."""
        with self._lock:
            while True:
                now = time.monotonic()
                self._lanes.seal_due(now)
                ready = self._lanes.take_ready(now)
                if self._thread is None:
                    for batch in [*ready, *self._lanes.clear()]:
                        batch.fail(_closed(batch))
                    return None
                if ready or self._answered:
                    return ready
                due = self._lanes.next_due()
                wait_s = IDLE_S if due is None else min(max(due - now, 0.0), IDLE_S)
                if not self._work.wait(wait_s) and self._under_way and wait_s == IDLE_S:
                    return []

    def _send(self, batch: Batch) -> None:
        now = time.monotonic()
        try:
            connection = self._connection(batch)
            if "mput" not in connection.capabilities(VERSION_TIMEOUT_S).extensions:
                self._send_singly(connection, batch)
                return
            frames = batch.frames()
            request = MultiPut(
                batch.topic,
                batch.partition.number,
                len(batch),
                crc31(frames),
                BatchSequence(self._name, batch.number),
                None,
                next_opaque(),
                frames,
            )
            batch.attempts += 1
            reply = connection.submit(request, self._on_answer)
        except (ConnectionLost, ReplyTimeout, TooManyRequests, NoBroker, ZooKeeperError) as error:
            self._again(batch, error)
            return
        except ClientClosed:
            self._settle(batch, _closed(batch))
            return
        except MetaError as error:  # it has no form on the wire
            self._settle(batch, SendRefused(str(error), _where(batch), 0))
            return
        self._under_way[reply] = batch, now

    def _connection(self, batch: Batch) -> Connection:
        url = self._topology.view(batch.topic, VERSION_TIMEOUT_S).urls.get(batch.partition.broker_id)
        if url is None:
            raise NoBroker("its broker is not up: start it, or wait", _where(batch))
        return self._connections.get(url, VERSION_TIMEOUT_S, patient=False)

    def _on_answer(self, reply: PendingReply) -> None:
        """On a connection's reader thread: hand it over, nothing else."""
        self._answered.append(reply)
        with self._lock:
            self._work.notify()

    def _hear(self) -> None:
        while self._answered:
            reply = self._answered.popleft()
            if (found := self._under_way.pop(reply, None)) is not None:
                self._conclude(found[0], reply)
        overdue = time.monotonic() - ANSWER_TIMEOUT_S
        for reply in [reply for reply, (_, sent) in self._under_way.items() if sent < overdue]:
            self._conclude(self._under_way.pop(reply)[0], reply)

    def _conclude(self, batch: Batch, reply: PendingReply) -> None:
        try:
            result = checked_result(reply.wait(0), f"mput {batch.topic}/{batch.partition}")
            place = parse_put_place(result.message)
        except (ConnectionLost, ReplyTimeout) as error:
            self._again(batch, error)
        except RemoteError as error:
            text = f"the broker refused: {error.text or 'it gave no reason'}"
            self._settle(batch, SendRefused(" ".join(text.split()), _where(batch), error.status))
        except MetaError as error:
            self._settle(batch, SendUnknown(str(error), _where(batch)))
        else:
            self._settle(batch, place)

    def _send_singly(self, connection: Connection, batch: Batch) -> None:
        what = f"put {batch.topic}/{batch.partition}"
        try:
            replies = [
                connection.submit(
                    Put(batch.topic, batch.partition.number, flag, crc31(body), None, next_opaque(), body)
                )
                for flag, body in batch.messages()
            ]
            places = [parse_put_place(wait_result(reply, ANSWER_TIMEOUT_S, what).message) for reply in replies]
        except RemoteError as error:
            self._settle(batch, SendRefused(error.text or "the broker gave no reason", _where(batch), error.status))
        except MetaError as error:
            self._settle(batch, SendUnknown(str(error), _where(batch)))
        else:
            self._settle(batch, places)

    def _again(self, batch: Batch, error: Exception) -> None:
        now = time.monotonic()
        batch.failures += 1
        if now >= batch.deadline:
            kind = SendUnknown if batch.attempts else NoBroker
            self._settle(batch, kind(f"given up after {batch.attempts} attempts: {error}", _where(batch)))
            return
        if batch.failures == 1:
            _log.info("batch to be sent again batch=%d to=%s reason=%s", batch.number, _where(batch), error)
        with self._lock:
            self._lanes.again(batch, now)

    def _settle(self, batch: Batch, outcome: PutPlace | list[PutPlace] | SendFailed) -> None:
        match outcome:
            case SendFailed():
                _log.warning("messages not sent count=%d error=%s", len(batch), outcome)
                batch.fail(outcome)
            case PutPlace():
                batch.settle(outcome)
            case _:
                batch.settle_each(outcome)
        with self._lock:
            if self._failure is None:
                self._failure = batch.failure
            self._buffered -= batch.bytes
            self._lanes.settled(batch)
            self._room.notify_all()


def _where(batch: Batch) -> Destination:
    return Destination(batch.topic, batch.partition)


def _closed(batch: Batch) -> SendFailed:
    if not batch.attempts:
        return NoBroker("the client was closed before it was sent", _where(batch))
    return SendUnknown("the client was closed before the broker had acknowledged it", _where(batch))
