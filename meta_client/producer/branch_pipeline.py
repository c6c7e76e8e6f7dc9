"""Pipelines the requests of an XA branch: they are sent together, and their answers are awaited only when needed.

A metaq broker handles the requests of a connection in order and judges each by those before it, so BEGIN, messages and
PREPARE need not wait for one another: only the caller of PREPARE needs the outcome of all. Other brokers may execute
requests out of order, and get the next one after they have answered the one before.
"""

import itertools
from collections import deque
from collections.abc import Callable

from meta_client.errors import (
    BranchRefused,
    ClientXaError,
    ConnectionLost,
    Destination,
    NoBroker,
    SendFailed,
    TooManyRequests,
)
from meta_client.net.backoff import quota_backoff_s
from meta_client.net.deadline import Deadline
from meta_client.net.pending_reply import PendingReply
from meta_client.net.transport import Transport
from meta_client.producer.branch_batch import BranchBatch, BranchHandle
from meta_client.producer.outgoing import Outgoing
from meta_client.producer.results import SendResult
from meta_client.producer.xa_verbs import REQUEST_TIMEOUT_S, RemoteBranch
from meta_client.protocol.errors import XaError
from meta_client.protocol.messages import HEADER_BYTES
from meta_client.protocol.requests import Request, TransactionVerb
from meta_client.protocol.responses import Result
from zk.errors import ZooKeeperError
from zk.tree.nodes import Partition

AWAITING_MAX = 8  # unanswered batches; bounds the memory of a branch of any size

_Unsent = tuple[Request, Callable[[PendingReply, Transport], None]]  # with the callback once it is sent


class BranchPipeline:
    """Requests of one branch to its broker. The producer's thread alone."""

    def __init__(self, branch: RemoteBranch, timeout_seconds: int | None, *, is_ordered: bool) -> None:
        """BEGIN is sent with the first other request. *is_ordered*: the broker keeps the order of requests."""
        self.is_ordered = is_ordered
        self.failure: SendFailed | None = None  # of the first message that is not, or may not be, in the branch
        self.begin_failure: XaError | None = None  # set: the branch can only be rolled back
        self._branch = branch
        self._connection: Transport | None = None  # of the last request
        self._begin_reply: PendingReply | None = None  # until it is checked
        self._open: dict[tuple[str, Partition], BranchBatch] = {}
        self._sealed: list[BranchBatch] = []  # their requests are in _unsent
        self._unnamed: dict[str, Partition] = {}  # by topic, the partition of messages without a wanted one
        self._awaiting: deque[BranchBatch] = deque()
        self._timeout_seconds = timeout_seconds
        self._unsent: list[_Unsent] = [self._unsent_begin()]

    def begin(self, deadline: Deadline) -> None:
        """Send BEGIN alone and await its answer; repeat it after a pause while a quota refuses it. Raises XaError."""
        for refusals in itertools.count(1):
            try:
                self.flush(deadline)
                self._await_begin(deadline)
            except BranchRefused:
                if (pause_s := quota_backoff_s(refusals)) >= deadline.remaining_s():
                    raise
                self._branch.verbs.sleep(pause_s)
                self.begin_failure = None
                self._unsent = [self._unsent_begin()]
            else:
                return

    def _unsent_begin(self) -> _Unsent:
        return self._branch.request(TransactionVerb.BEGIN, self._timeout_seconds), self._begin_sent

    @property
    def is_known(self) -> bool:
        """True if the broker may know the branch; False: certainly not."""
        failure = self.begin_failure
        was_refused = isinstance(failure, BranchRefused) or not isinstance(failure, ClientXaError | None)
        return self._connection is not None and not was_refused

    @property
    def has_messages(self) -> bool:
        """True if messages are unsent or unanswered."""
        return bool(self._open or self._awaiting)

    @property
    def has_unsent(self) -> bool:
        return bool(self._open or self._unsent)

    def add(self, message: Outgoing) -> BranchHandle:
        """Add one message, to be sent with others. Raises NoPartition, NoBroker; XaError if the branch can't begin."""
        size = HEADER_BYTES + len(message.body)
        topic, wanted = message.view.topic, message.wanted
        partition = wanted or self._unnamed.get(topic)
        batch = self._open.get((topic, partition)) if partition is not None else None
        if batch is not None and not batch.has_room(size):
            self.flush(Deadline(REQUEST_TIMEOUT_S))
            batch = None
        if batch is None:
            partition = message.choice.choose(message.view, wanted, self._branch.broker_id)
            batch = self._open[topic, partition] = BranchBatch(topic, partition, self._flush_now)
            if wanted is None:
                self._unnamed[topic] = partition
        handle = batch.add(message)
        if not self.is_ordered:
            self.await_replies(Deadline(REQUEST_TIMEOUT_S))
        return handle

    def send(self, message: Outgoing, deadline: Deadline) -> SendResult:
        """Send one message after the gathered ones and wait for its answer. Raises SendFailed; XaError if the branch
        did not begin."""
        partition = message.choice.choose(message.view, message.wanted, self._branch.broker_id)
        batch = BranchBatch(message.view.topic, partition, self._flush_now)
        batch.add(message)
        self._seal()
        self._unsent.append((batch.request(self._branch.key), batch.sent))
        try:
            self._send(deadline)
        except (ConnectionLost, TooManyRequests, ZooKeeperError) as error:
            self._unsent.pop()
            raise NoBroker(str(error), Destination(message.view.topic, partition, self._branch.broker_id)) from error
        self._await_begin(deadline)
        return batch.result_of(0, deadline.remaining_s())

    def flush(self, deadline: Deadline) -> None:
        """Send everything gathered. Raises XaError."""
        self._seal()
        try:
            self._send(deadline)
        except (ConnectionLost, TooManyRequests, ZooKeeperError) as error:
            raise self._branch.unreachable(TransactionVerb.BEGIN, error) from error
        while len(self._awaiting) > AWAITING_MAX:
            self._await_next(deadline)

    def await_replies(self, deadline: Deadline) -> SendFailed | None:
        """Send everything gathered and wait for all answers; return the first failure of a message. Raises XaError."""
        self.flush(deadline)
        self._await_begin(deadline)
        while self._awaiting:
            self._await_next(deadline)
        return self.failure

    def call(self, verb: TransactionVerb, deadline: Deadline) -> Result | SendFailed:
        """Send *verb* after everything gathered, wait for all answers, and return that to *verb*.

        Returns the first failure of a message instead, if there is one. Raises XaError.
        """
        return self.wait_for(verb, self.submit(verb, deadline), deadline)

    def submit(self, verb: TransactionVerb, deadline: Deadline) -> PendingReply:
        """Send *verb* after everything gathered; `wait_for` waits for the reply. Raises XaError."""
        self._seal()
        asked: list[PendingReply] = []
        self._unsent.append((self._branch.request(verb), lambda reply, connection: asked.append(reply)))
        try:
            self._send(deadline)
        except (ConnectionLost, TooManyRequests, ZooKeeperError) as error:
            self._unsent.pop()
            raise self._branch.unreachable(verb, error) from error
        return asked[0]

    def wait_for(self, verb: TransactionVerb, reply: PendingReply, deadline: Deadline) -> Result | SendFailed:
        """Wait for *reply* to *verb* and for all answers before it. Returns and raises as `call`."""
        reply.wait_until_done(deadline.remaining_s())  # the last answer first: the earlier ones are here then
        self._await_begin(deadline)
        while self._awaiting:
            self._await_next(deadline)
        if self.failure is not None:
            return self.failure
        return self._branch.await_reply(verb, reply, deadline)

    def discard(self) -> None:
        """Drop everything unsent; nothing more is sent."""
        self._unsent.clear()
        for batch in (*self._sealed, *self._open.values()):
            batch.discard()
        self._sealed.clear()
        self._open.clear()

    def _flush_now(self) -> None:
        self.flush(Deadline(REQUEST_TIMEOUT_S))

    def _seal(self) -> None:
        for batch in self._open.values():
            self._unsent.append((batch.request(self._branch.key), self._awaited_after(batch)))
            self._sealed.append(batch)
        self._open.clear()
        self._unnamed.clear()

    def _awaited_after(self, batch: BranchBatch) -> Callable[[PendingReply, Transport], None]:
        def sent(reply: PendingReply, connection: Transport) -> None:
            batch.sent(reply, connection)
            self._awaiting.append(batch)

        return sent

    def _begin_sent(self, reply: PendingReply, connection: Transport) -> None:
        del connection
        self._begin_reply = reply

    def _send(self, deadline: Deadline) -> None:
        """Send all unsent requests together. Raises ConnectionLost, TooManyRequests, ZooKeeperError if nothing was
        sent; XaError if the branch did not begin."""
        if not self._unsent:
            return
        connection = self._branch.verbs.connect(self._branch.broker_id, deadline)
        if self._connection not in (None, connection):
            # The broker came back: earlier requests have their answer, or never will.
            self._await_begin(deadline)
            while self._awaiting:
                self._await_next(deadline)
        replies = connection.submit_all([request for request, _ in self._unsent])
        self._connection = connection
        sent, self._unsent = self._unsent, []
        self._sealed.clear()
        for (_, hear), reply in zip(sent, replies, strict=True):
            hear(reply, connection)

    def _await_begin(self, deadline: Deadline) -> None:
        if (reply := self._begin_reply) is None:
            return
        self._begin_reply = None
        try:
            self._branch.await_reply(TransactionVerb.BEGIN, reply, deadline)
        except XaError as error:
            self.begin_failure = error
            self.discard()
            raise

    def _await_next(self, deadline: Deadline) -> None:
        failure = self._awaiting[0].await_replies(deadline.remaining_s())
        self._awaiting.popleft()  # only now: a wait that was cancelled has to be repeated
        self.failure = self.failure or failure
