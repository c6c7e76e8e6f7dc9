"""The sending engine: decides which of the gathered batches are sent, when, and what becomes of them. Pure.

A driver with the clock and the sockets tells it events, and carries out what it wants done: requests to submit
(`maybe_send`), brokers to connect to (`maybe_connect`), answers to give up (`overdue`), and when to look again
(`next_due`). The same engine runs for threads (sender.py) and for tasks (aio/producer/sender.py).

    open -> waiting -> in flight -> settled     a batch gathers, is sealed with its number, sent, and answered
               ^ |         |                    without an answer it waits again, under its number
               | +---------|--> settled         given up: its time is over, or the client is closed
               +-----------+                    until it was sent it may move to another partition, for a new number
"""

import itertools
import logging
import math
from collections.abc import Callable
from typing import Any

from journal.records.producer_state import BatchSequence
from meta_client.errors import (
    ClientClosed,
    ConnectionLost,
    NoBroker,
    NotConnected,
    NotReplicated,
    ReplyTimeout,
    SendFailed,
    SendRefused,
    TooManyRequests,
    TryAgain,
)
from meta_client.metadata.topology import TopicView
from meta_client.net.opaques import next_opaque
from meta_client.net.pending_reply import PendingReply
from meta_client.net.transport import Transport
from meta_client.producer.attempts import (
    AttemptOutcome,
    Connected,
    ConnectFailed,
    Deferred,
    Retriable,
    SendAttempt,
    closed_failure,
    destination_of,
    is_overdue,
    outcome_of,
    record_single,
    timeout_failure,
    unsendable,
)
from meta_client.producer.batch import ProducerBatch
from meta_client.producer.gathering import Gathering, H
from meta_client.producer.partition_queues import BatchingConfig
from meta_client.protocol.answers import PutPlace

ANSWER_TIMEOUT_S = 10.0  # after that a batch is sent again
IDLE_S = 1.0  # interval of checks for overdue answers


class SendingEngine(Gathering[H]):
    """Unsettled messages of a client. One thread at a time."""

    def __init__(self, config: BatchingConfig, name: str, handle: Callable[[ProducerBatch, int], H]) -> None:
        """*name* numbers the batches at brokers. *handle* makes a message's handle, of its batch and index."""
        super().__init__(config, handle)
        self._name = name
        self._in_flight: dict[int, ProducerBatch] = {}  # by opaque of the last attempt
        self._looks_at = math.inf  # for overdue answers
        self._failure: SendFailed | None = None  # the first since the last flush
        self._notes: list[tuple[Any, ...]] = []  # arguments of Logger.log
        self._has_settled = False

    @property
    def is_empty(self) -> bool:
        """True if every message is settled."""
        return not self._open and not self._sealed

    def begin_flush(self) -> list[ProducerBatch]:
        """End the linger time of all batches; return those that are not settled."""
        self.seal_all()
        return list(self._sealed)

    def is_flushed(self, batches: list[ProducerBatch]) -> bool:
        """True if all *batches*, of `begin_flush`, are settled; drops those that are."""
        while batches and batches[-1] not in self._sealed:
            batches.pop()
        return not batches

    def take_failure(self) -> SendFailed | None:
        """Return the first failure since the last call."""
        failure, self._failure = self._failure, None
        return failure

    def not_flushed(self, timeout_s: float | None) -> ReplyTimeout:
        """Return the error for a flush that took longer than *timeout_s*."""
        return ReplyTimeout(f"flush: {self.bytes} bytes are not settled within {timeout_s:g} s: they go on")

    def begin_close(self) -> None:
        """Take no more messages, and send what is gathered. Idempotent."""
        self._is_closing = True
        self.seal_all()

    def close(self) -> None:
        """Fail every message that is not settled. Later events have no effect. Idempotent."""
        self.begin_close()
        in_flight, self._in_flight = self._in_flight, {}
        for batch in (*self._queues.drain(), *in_flight.values()):
            self._settle(batch, closed_failure(batch))
        self._sealed.clear()  # a ^C in the midst of an event may have left a batch that is in no queue

    # -- effects: what the driver is to do -------------------------------------------------------------------------

    @property
    def has_sends(self) -> bool:
        """True if `maybe_send` would return a request. Any thread."""
        return bool(self._queues.sendable)

    def maybe_send(self, now: float) -> SendAttempt | None:
        """Take the next request to submit; `answered`, `unsent` or `lost` follows. Submit it before the next one is
        taken: a connection keeps the order."""
        while (taken := self._queues.maybe_take()) is not None:
            batch, link = taken
            if (failure := unsendable(batch, takes_batches=link.takes_batches)) is not None:
                self._settle(batch, failure)
                continue
            connection, opaque = self._queues.start(batch), next_opaque()
            batch.attempts += 1
            batch.sent_at = now
            self._in_flight[opaque] = batch
            self._looks_at = min(self._looks_at, now + IDLE_S)
            sequence = None if batch.sends_singly else BatchSequence(self._name, batch.number)
            return SendAttempt(connection, opaque, batch.topic, batch.partition, sequence, *batch.content())
        return None

    @property
    def has_connects(self) -> bool:
        """True if `maybe_connect` would return a broker."""
        return bool(self._queues.unconnected)

    def maybe_connect(self) -> tuple[int, tuple[str, ...]] | None:
        """Take the id of a broker to connect to, with the topics that need it; `connecting_ended` follows."""
        return self._queues.maybe_connect()

    def overdue(self, now: float) -> list[tuple[Transport, int, float]]:
        """Return the connections, opaques and ages of requests whose answers are overdue, to be failed there."""
        if now < self._looks_at:
            return []
        self._looks_at = now + IDLE_S if self._in_flight else math.inf
        return [
            (batch.connection, opaque, round(now - batch.sent_at, 1))
            for opaque, batch in self._in_flight.items()
            if batch.connection is not None
            and is_overdue(batch, now, self._queues.awaited_since(batch) + ANSWER_TIMEOUT_S)
        ]

    @property
    def next_due(self) -> float:
        """Time of the next `advance`; infinite if nothing waits for time to pass."""
        oldest = next(iter(self._open.values()), None)
        return min(math.inf if oldest is None else oldest.due, self._queues.next_due, self._looks_at)

    def take_notes(self) -> list[tuple[Any, ...]]:
        """Take what is to be logged."""
        notes, self._notes = self._notes, []
        return notes

    def take_settled(self) -> bool:
        """Return True if a batch was settled since the last call: wake what waits for room, or for a flush."""
        has_settled, self._has_settled = self._has_settled, False
        return has_settled

    # -- events: what has happened ---------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """End the linger times and back-offs that are over."""
        for key in list(itertools.takewhile(lambda key: self._open[key].due <= now, self._open)):
            self._seal(key)
        self._queues.end_backoffs(now)

    def answered(self, now: float, reply: PendingReply) -> None:
        """Note that *reply*, of a request taken by `maybe_send`, is done."""
        if (batch := self._in_flight.pop(reply.opaque, None)) is not None:
            if not isinstance(outcome := outcome_of(batch, reply), Retriable):
                self._queues.answered(batch, now)
            self._on_outcome(now, batch, outcome)

    def lost(self, now: float, opaque: int, error: BaseException) -> None:
        """Note that a request may have been sent, and no answer to it will come."""
        if (batch := self._in_flight.pop(opaque, None)) is not None:
            self._on_outcome(now, batch, Retriable(error))

    def unsent(self, now: float, opaque: int, error: Exception) -> None:
        """Note that a request was not sent."""
        if (batch := self._in_flight.pop(opaque, None)) is None:
            return
        batch.attempts -= 1
        if not isinstance(error, ConnectionLost | TooManyRequests):  # it can't be encoded
            self._on_outcome(now, batch, SendRefused(str(error), destination_of(batch), 0))
            return
        is_lost = isinstance(error, ConnectionLost)
        self._queues.stop(batch, is_lost=is_lost)
        again = self._retry if is_lost else self._back_off  # connecting has its own back-off
        again(now, batch, error)

    def connecting_ended(self, now: float, broker_id: int, outcome: Connected | ConnectFailed) -> None:
        """Note that a broker is connected, or can't be: then batches that were never sent may move to other brokers."""
        link = self._queues.link(broker_id)
        match outcome:
            case Connected(connection, extensions):
                self._choice.reached(broker_id)
                self._queues.connected(link, connection, takes_batches="mput" in extensions)
            case ConnectFailed(error, views):
                is_away = isinstance(error, NotConnected | NoBroker)
                if is_away:
                    self._choice.not_reached(now, broker_id)
                if not link.failures:
                    text = "broker not reached, its batches wait or move broker=%d reason=%s"
                    self._notes.append((logging.INFO, text, broker_id, error))
                self._queues.not_connected(link, now)
                for batch in self._queues.drain(link):
                    if isinstance(error, ClientClosed):
                        self._settle(batch, closed_failure(batch))
                    elif not is_away or not self._maybe_move(now, batch, views.get(batch.topic)):
                        self._retry(now, batch, error)

    def _on_outcome(self, now: float, batch: ProducerBatch, outcome: AttemptOutcome) -> None:
        """Act on the outcome of *batch*, or of its next message, which was in flight."""
        is_lost = isinstance(outcome, Retriable) and isinstance(outcome.error, ConnectionLost)
        self._queues.stop(batch, is_lost=is_lost)
        if batch.sends_singly:
            retriable = record_single(batch, outcome)
            if batch.is_recorded:
                self._settle(batch, None)
            elif retriable is None:
                self._queues.put_back(batch)
            else:
                self._back_off(now, batch, retriable.error)
        elif isinstance(outcome, Retriable):
            self._back_off(now, batch, outcome.error)
        elif isinstance(outcome, Deferred):
            self._defer(now, batch, outcome.failure)
        else:
            self._settle(batch, outcome)

    def _defer(self, now: float, batch: ProducerBatch, failure: TryAgain | NotReplicated) -> None:
        """Queue *batch* again, elsewhere if it may go anywhere; settle it if its delivery time is over. New batches
        avoid a broker that refuses."""
        if not isinstance(batch.refusal, NotReplicated):  # what the master has stays there, whatever it says later
            batch.refusal = failure
        if isinstance(failure, TryAgain):
            batch.attempts -= 1  # this one stored nothing
            self._choice.not_reached(now, batch.partition.broker_id)
            if self._maybe_move(now, batch, self._views.get(batch.topic)):
                return
        if now < batch.deadline:
            self._back_off(now, batch, failure)
        else:
            self._settle(batch, batch.refusal)

    def _back_off(self, now: float, batch: ProducerBatch, error: BaseException) -> None:
        """Queue *batch* again, to be sent after a back-off, or give it up."""
        batch.failures += 1
        self._queues.back_off(batch, now)
        if self._retry(now, batch, error) and batch.failures == 1:
            text = "batch to be sent again batch=%d to=%s reason=%s"
            self._notes.append((logging.INFO, text, batch.number, destination_of(batch), error))

    def _retry(self, now: float, batch: ProducerBatch, error: BaseException) -> bool:
        """Queue *batch* again; False if it is given up, as its delivery time is over."""
        if (failure := timeout_failure(batch, error, now)) is not None:
            self._settle(batch, failure)
            return False
        self._queues.put_back(batch)
        return True

    def _maybe_move(self, now: float, batch: ProducerBatch, view: TopicView | None) -> bool:
        """Move *batch*, whose broker can't be reached or refuses, to another broker; False if it can't move."""
        may_move = batch.is_movable and not batch.attempts and now < batch.deadline
        if not may_move or view is None or (elsewhere := self._choice.maybe_elsewhere(now, view)) is None:
            return False
        batch.partition = elsewhere
        batch.sends_singly = False  # the other broker may have `mput`
        self._queues.enqueue(batch)
        return True

    def _settle(self, batch: ProducerBatch, outcome: PutPlace | SendFailed | None) -> None:
        self.bytes -= batch.bytes
        del self._sealed[batch]
        self._has_settled = True
        batch.complete(outcome)
        count, failure = batch.failed_messages()
        if failure is not None:
            self._notes.append((logging.WARNING, "messages not acknowledged count=%d error=%s", count, failure))
        self._failure = self._failure or failure
        self._queues.end_backoff(batch)
