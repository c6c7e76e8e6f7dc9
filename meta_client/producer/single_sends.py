"""Sends one message and waits: retries, on another broker if possible, until it is answered or its time is over.

A broker with `mput` gets a numbered batch of one, so that a repetition is stored once. Until an attempt may have
stored it at a broker, a message without a wanted partition may go to another broker. Other brokers get a put; one whose
answer is lost is not sent again: that could store it twice.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from journal.records.producer_state import BatchSequence
from meta_client.errors import (
    ClientClosed,
    ConnectionLost,
    Destination,
    NoBroker,
    NotReplicated,
    PartitionClosed,
    ReplyTimeout,
    SendFailed,
    SendUnknown,
    TooManyRequests,
    TryAgain,
)
from meta_client.metadata.topology import Directory, TopicView
from meta_client.net.backoff import quota_backoff_s
from meta_client.net.calls import checked_broker
from meta_client.net.deadline import Deadline
from meta_client.net.identity import new_session_id
from meta_client.net.transport import Transports
from meta_client.producer.outgoing import Outgoing
from meta_client.producer.results import SendResult
from meta_client.protocol.status import Status
from zk.tree.nodes import Partition

BACKOFF_S: Final = 0.05  # before the brokers are looked up again; a failed connection has its own back-off
LAST_S: Final = 0.01  # an attempt with less time would mostly end as unknown, where all before were refused
ELSEWHERE_S: Final = 1.0  # time limit of a connect while there are other brokers to try


class _Line:
    """A producer name used by one message at a time, and its last sequence number."""

    __slots__ = ("name", "number")

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = 0


class SingleSends:
    """Sends single messages for all producers of a client. Any thread.

    A broker remembers the last few numbers of a name in a partition, in order: concurrent sends need a name each. There
    are as many names as there ever were concurrent sends; the last one used is reused first.
    """

    def __init__(
        self, topology: Directory, connections: Transports, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        """*sleep* is called to wait between attempts."""
        self._topology = topology
        self._sleep = sleep
        self._connections = connections
        self._session = new_session_id()[-48:]  # a producer name has 64 bytes at most
        self._counts = itertools.count(1)
        self._idle: deque[_Line] = deque()

    def send(self, message: Outgoing, deadline: Deadline) -> SendResult:
        """Send *message*, which belongs to this call from now on. Raises SendFailed."""
        try:
            line = self._idle.pop()
        except IndexError:
            line = _Line(f"{self._session}.{next(self._counts)}")
        line.number += 1
        try:
            return self._send(message, deadline, BatchSequence(line.name, line.number))
        finally:
            self._idle.append(line)

    def _send(self, message: Outgoing, deadline: Deadline, sequence: BatchSequence) -> SendResult:
        avoided: set[int] = set()
        unanswered: SendUnknown | NotReplicated | None = None
        failures, closed = 0, 0
        while True:
            view, choice = message.view, message.choice
            partition = choice.choose_allowing_down(view, message.wanted, avoided)
            is_again_elsewhere = False
            try:
                return self._attempt(message, partition, deadline, sequence)
            except PartitionClosed:
                closed += 1
                if message.wanted is not None or closed >= len(view.available):
                    raise
                continue
            except NoBroker as error:
                failure: SendFailed = error
                avoided.add(partition.broker_id)
                if isinstance(error, TryAgain):
                    choice.avoid(partition.broker_id)
                is_again_elsewhere = message.wanted is None and not avoided.issuperset(view.by_broker)
            except _Unanswered as error:
                failure = unanswered = error.failure
                if not error.is_repeatable:
                    raise failure from error
                message.wanted = partition  # elsewhere it could be stored a second time
            except ClientClosed as error:
                if unanswered is not None:
                    raise unanswered from error  # it may be stored, and is not sent again
                raise
            failures += 1
            if isinstance(failure, TryAgain) and failure.status == Status.TOO_MANY:
                self._sleep(min(quota_backoff_s(failures), deadline.remaining_s()))
            elif not is_again_elsewhere:
                self._back_off(failures, deadline)
            if deadline.remaining_s() <= (LAST_S if unanswered is None else 0):
                raise _given_up(failure, partition, deadline, failures, unanswered) from failure
            message.view = self._look_again(view)

    def _attempt(
        self, message: Outgoing, partition: Partition, deadline: Deadline, sequence: BatchSequence
    ) -> SendResult:
        """Send once and wait. Raises NoBroker if it was not stored, _Unanswered if it may have been, SendRefused."""
        view = message.view
        if (url := view.urls.get(partition.broker_id)) is None:
            raise NoBroker("it is not up: start it, or wait", Destination(view.topic, partition, partition.broker_id))
        remaining_s = deadline.remaining_s()
        is_one_of_many = message.wanted is None and len(view.by_broker) > 1
        try:
            connection = self._connections.get(url, min(remaining_s, ELSEWHERE_S) if is_one_of_many else remaining_s)
            capabilities = connection.capabilities(deadline.remaining_s())
            checked_broker(connection, capabilities, partition.broker_id)
            is_repeatable = "mput" in capabilities.extensions
        except (ConnectionLost, ReplyTimeout, TooManyRequests) as error:
            raise NoBroker(str(error), Destination(view.topic, partition, url)) from error
        pending = message.submit(connection, partition, None, sequence if is_repeatable else None)
        try:
            return pending.wait(deadline.remaining_s())
        except (SendUnknown, NotReplicated) as error:
            raise _Unanswered(error, is_repeatable=is_repeatable) from error

    def _back_off(self, failures: int, deadline: Deadline) -> None:
        if failures > 1:  # the first failure may be that of a stale connection
            self._sleep(min(BACKOFF_S, deadline.remaining_s()))

    def _look_again(self, view: TopicView) -> TopicView:
        now = self._topology.maybe_view(view.topic)
        return view if now is None or not now.known else now


class _Unanswered(Exception):
    """The message was sent and no valid answer came, or it is on the master alone."""

    def __init__(self, failure: SendUnknown | NotReplicated, *, is_repeatable: bool) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.is_repeatable = is_repeatable


def _given_up(
    failure: SendFailed,
    partition: Partition,
    deadline: Deadline,
    failures: int,
    unanswered: SendUnknown | NotReplicated | None,
) -> SendFailed:
    """Return *failure* with the time and attempts spent; its class tells whether the message may be stored."""
    often = "" if failures == 1 else f" and {failures} attempts"
    if isinstance(unanswered, NotReplicated):
        return NotReplicated(
            f"not replicated within {deadline.timeout_s:g} s{often}: {unanswered.text}", failure.destination
        )
    if unanswered is not None:
        return SendUnknown(f"not answered within {deadline.timeout_s:g} s{often}: {failure.text}", failure.destination)
    text = f"not sent within {deadline.timeout_s:g} s{often}, waiting for broker {partition.broker_id}: {failure.text}"
    return NoBroker(text, failure.destination)
