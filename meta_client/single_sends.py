"""One message, sent and waited for: again, or elsewhere, until it is answered or its time is over.

To a broker with `mput` it goes as a batch of one with a number, so that a repetition is stored once; until an attempt
may have reached a broker, a message that nobody wants in a certain partition may go to another broker instead. To
other brokers it goes as a put, and one whose answer is lost is not sent again: that could double it.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from journal.batches import BatchSequence
from meta_client.deadline import Deadline
from meta_client.errors import (
    ClientClosed,
    ConnectionLost,
    Destination,
    NoBroker,
    PartitionClosed,
    ReplyTimeout,
    SendFailed,
    SendUnknown,
    TooManyRequests,
)
from meta_client.identity import new_session_id
from meta_client.puts import Outgoing, RoundRobin
from meta_client.results import SendResult
from meta_client.topology import Directory, TopicView
from meta_client.transport import Transports
from zk.nodes import Partition

REST_S: Final = 0.05  # before another look at who is up; a connection that failed has rests of its own
ELSEWHERE_S: Final = 1.0  # what connecting may take while there are other brokers to try


class _Line:
    """A name that one message at a time is sent under, and its number."""

    __slots__ = ("name", "number")

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = 0


class SingleSends:
    """One per client. Any thread.

    A broker remembers the last few numbers of a name in a partition, in order: threads that send at the same time
    need a name each. There are as many as there ever were messages under way; the last one used is reused first.
    """

    def __init__(
        self, topology: Directory, connections: Transports, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        """*sleep* is how a caller waits."""
        self._topology = topology
        self._sleep = sleep
        self._connections = connections
        self._session = new_session_id()[-48:]  # a name has 64 bytes at most
        self._counts = itertools.count(1)
        self._idle: deque[_Line] = deque()

    def send(
        self, message: Outgoing, view: TopicView, wanted: Partition | None, choice: RoundRobin, deadline: Deadline
    ) -> SendResult:
        """Send it to *wanted*, or to a partition of *choice*. Raises SendFailed."""
        try:
            line = self._idle.pop()
        except IndexError:
            line = _Line(f"{self._session}.{next(self._counts)}")
        line.number += 1
        try:
            return self._send(message, view, wanted, choice, deadline, BatchSequence(line.name, line.number))
        finally:
            self._idle.append(line)

    def _send(
        self,
        message: Outgoing,
        view: TopicView,
        wanted: Partition | None,
        choice: RoundRobin,
        deadline: Deadline,
        sequence: BatchSequence,
    ) -> SendResult:
        avoided: set[int] = set()
        unanswered: SendUnknown | None = None
        failures, closed = 0, 0
        while True:
            partition = choice.choose_patiently(view, wanted, avoided)
            is_again_elsewhere = False
            try:
                return self._attempt(message, view, partition, wanted, deadline, sequence)
            except PartitionClosed:
                closed += 1
                if wanted is not None or closed >= len(view.available):
                    raise
                continue
            except NoBroker as error:
                failure: SendFailed = error
                avoided.add(partition.broker_id)
                is_again_elsewhere = wanted is None and not avoided.issuperset(view.by_broker)
            except _Unanswered as error:
                failure = unanswered = error.failure
                if not error.is_repeatable:
                    raise failure from error
                wanted = partition  # anywhere else it might be a second one
            except ClientClosed as error:
                if unanswered is not None:
                    raise unanswered from error  # it may be stored, and nobody asks again
                raise
            failures += 1
            if not is_again_elsewhere:
                self._rest(failures, deadline)
            if not deadline.remaining_s():
                raise _given_up(failure, partition, deadline, failures, is_sent=unanswered is not None) from failure
            view = self._look_again(view)

    def _attempt(
        self,
        message: Outgoing,
        view: TopicView,
        partition: Partition,
        wanted: Partition | None,
        deadline: Deadline,
        sequence: BatchSequence,
    ) -> SendResult:
        """Raises NoBroker: it was not sent, _Unanswered: it may have been, SendRefused."""
        if (url := view.urls.get(partition.broker_id)) is None:
            raise NoBroker(
                "it is not up: start it, or wait", Destination(message.topic, partition, partition.broker_id)
            )
        remaining_s = deadline.remaining_s()
        is_one_of_many = wanted is None and len(view.by_broker) > 1
        try:
            connection = self._connections.get(url, min(remaining_s, ELSEWHERE_S) if is_one_of_many else remaining_s)
            is_repeatable = "mput" in connection.capabilities(deadline.remaining_s()).extensions
        except (ConnectionLost, ReplyTimeout, TooManyRequests) as error:
            raise NoBroker(str(error), Destination(message.topic, partition, url)) from error
        pending = message.submit(connection, partition, None, sequence if is_repeatable else None)
        try:
            return pending.wait(deadline.remaining_s())
        except SendUnknown as error:
            raise _Unanswered(error, is_repeatable=is_repeatable) from error

    def _rest(self, failures: int, deadline: Deadline) -> None:
        if failures > 1:  # the first may be an old connection's
            self._sleep(min(REST_S, deadline.remaining_s()))

    def _look_again(self, view: TopicView) -> TopicView:
        now = self._topology.maybe_view(view.topic)
        return view if now is None or not now.known else now


class _Unanswered(Exception):
    """It was sent and no good answer came."""

    def __init__(self, failure: SendUnknown, *, is_repeatable: bool) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.is_repeatable = is_repeatable


def _given_up(
    failure: SendFailed, partition: Partition, deadline: Deadline, failures: int, *, is_sent: bool
) -> SendFailed:
    """*failure*, with how long was tried: whether the message may be stored decides the class."""
    often = "" if failures == 1 else f" and {failures} attempts"
    if is_sent:
        return SendUnknown(f"not answered within {deadline.timeout_s:g} s{often}: {failure.text}", failure.destination)
    text = f"not sent within {deadline.timeout_s:g} s{often}, waiting for broker {partition.broker_id}: {failure.text}"
    return NoBroker(text, failure.destination)
