"""What an XA branch has on its way to its broker: requests that travel together, answers looked at when they count.

A broker of ours handles the requests of a connection in their order and judges each by those before it, so BEGIN,
messages and PREPARE need not wait for one another: only PREPARE's caller has to know what became of all. Other brokers
may execute requests out of order, and get the next one when they have answered the one before.
"""

from collections import deque
from collections.abc import Callable

from journal.xid import XaKey
from meta_client.branch_puts import BranchBatch, BranchHandle
from meta_client.deadline import Deadline
from meta_client.errors import ClientXaError, ConnectionLost, Destination, NoBroker, SendFailed, TooManyRequests
from meta_client.pending_reply import PendingReply
from meta_client.protocol.errors import XaError
from meta_client.protocol.messages import HEADER_BYTES
from meta_client.protocol.requests import Request, TransactionVerb
from meta_client.protocol.responses import Result
from meta_client.puts import Outgoing, RoundRobin
from meta_client.results import SendResult
from meta_client.topology import TopicView
from meta_client.transport import Transport
from meta_client.xa_verbs import REQUEST_TIMEOUT_S, XaVerbs
from zk.errors import ZooKeeperError
from zk.nodes import Partition

DUE_MAX = 8  # batches whose answers nobody has looked at: bounds what a branch of any size holds of its messages

_Unsent = tuple[Request, Callable[[PendingReply, Transport], None]]  # and who hears of its being sent


class BranchFlight:
    """One branch's way to its broker. The producer's thread alone."""

    def __init__(
        self, verbs: XaVerbs, key: XaKey, broker_id: int, timeout_seconds: int | None, *, is_ordered: bool
    ) -> None:
        """BEGIN goes with the first thing that is sent. *is_ordered*: the broker keeps the order of requests."""
        self.is_ordered = is_ordered
        self.failure: SendFailed | None = None  # the first message that is not in the branch, or may not be
        self.begin_failure: XaError | None = None  # then it can only be rolled back
        self._verbs = verbs
        self._key = key
        self._broker_id = broker_id
        self._connection: Transport | None = None  # the last one sent on
        self._begin_reply: PendingReply | None = None  # until it is looked at
        self._open: dict[tuple[str, Partition], BranchBatch] = {}
        self._sealed: list[BranchBatch] = []  # their requests are in _unsent
        self._unnamed: dict[str, Partition] = {}  # by topic, where messages go that leave the choice to us
        self._due: deque[BranchBatch] = deque()
        begin = verbs.request(TransactionVerb.BEGIN, key, timeout_seconds)
        self._unsent: list[_Unsent] = [(begin, self._begin_sent)]

    @property
    def is_known(self) -> bool:
        """Whether the broker may have heard of the branch. False: certainly not."""
        was_refused = self.begin_failure is not None and not isinstance(self.begin_failure, ClientXaError)
        return self._connection is not None and not was_refused

    @property
    def has_messages(self) -> bool:
        """Whether messages wait, or answers to them."""
        return bool(self._open or self._due)

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._open or self._unsent)

    def add(self, message: Outgoing, view: TopicView, wanted: Partition | None, choice: RoundRobin) -> BranchHandle:
        """Take one message, to be sent with others. Raises NoPartition, NoBroker; XaError if the branch can't begin."""
        size = HEADER_BYTES + len(message.body)
        partition = wanted or self._unnamed.get(message.topic)
        batch = self._open.get((message.topic, partition)) if partition is not None else None
        if batch is not None and not batch.has_room(size):
            self.land(Deadline(REQUEST_TIMEOUT_S))
            batch = None
        if batch is None:
            partition = choice.choose(view, wanted, self._broker_id)
            batch = self._open[message.topic, partition] = BranchBatch(message.topic, partition, self._land_now)
            if wanted is None:
                self._unnamed[message.topic] = partition
        handle = batch.add(message)
        if not self.is_ordered:
            self.settle(Deadline(REQUEST_TIMEOUT_S))
        return handle

    def send(
        self, message: Outgoing, view: TopicView, wanted: Partition | None, choice: RoundRobin, deadline: Deadline
    ) -> SendResult:
        """Send one message behind those that wait, and hear of it. Raises SendFailed; XaError if the branch did not
        begin."""
        partition = choice.choose(view, wanted, self._broker_id)
        batch = BranchBatch(message.topic, partition, self._land_now)
        batch.add(message)
        self._seal()
        self._unsent.append((batch.request(self._key), batch.sent))
        try:
            self._launch(deadline)
        except (ConnectionLost, TooManyRequests, ZooKeeperError) as error:
            self._unsent.pop()
            raise NoBroker(str(error), Destination(message.topic, partition, self._broker_id)) from error
        self._settle_begin(deadline)
        return batch.result_of(0, deadline.remaining_s())

    def land(self, deadline: Deadline) -> None:
        """Send what waits. Raises XaError."""
        self._seal()
        try:
            self._launch(deadline)
        except (ConnectionLost, TooManyRequests, ZooKeeperError) as error:
            raise self._verbs.unreachable(TransactionVerb.BEGIN, self._key, self._broker_id, error) from error
        while len(self._due) > DUE_MAX:
            self._settle_next(deadline)

    def settle(self, deadline: Deadline) -> SendFailed | None:
        """Send what waits and hear of all of it; the first message that is not in the branch. Raises XaError."""
        self.land(deadline)
        self._settle_begin(deadline)
        while self._due:
            self._settle_next(deadline)
        return self.failure

    def ask(self, verb: TransactionVerb, deadline: Deadline) -> Result | SendFailed:
        """Send *verb* behind what waits, hear of all of it, and return the answer to *verb*.

        Or the first message that is not in the branch, whatever the answer to *verb* is. Raises XaError.
        """
        return self.answered(verb, self.post(verb, deadline), deadline)

    def post(self, verb: TransactionVerb, deadline: Deadline) -> PendingReply:
        """Send *verb* behind what waits, for `answered` to wait for. Raises XaError."""
        self._seal()
        asked: list[PendingReply] = []
        self._unsent.append((self._verbs.request(verb, self._key), lambda reply, connection: asked.append(reply)))
        try:
            self._launch(deadline)
        except (ConnectionLost, TooManyRequests, ZooKeeperError) as error:
            self._unsent.pop()
            raise self._verbs.unreachable(verb, self._key, self._broker_id, error) from error
        return asked[0]

    def answered(self, verb: TransactionVerb, reply: PendingReply, deadline: Deadline) -> Result | SendFailed:
        """Wait for *reply* to *verb*, and hear of all that was sent before. Returns and raises as `ask`."""
        reply.join(deadline.remaining_s())  # the last answer first: one wait, and the others are here then
        self._settle_begin(deadline)
        while self._due:
            self._settle_next(deadline)
        if self.failure is not None:
            return self.failure
        return self._verbs.answer(verb, self._key, self._broker_id, reply, deadline)

    def drop(self) -> None:
        """Send nothing more: what waits never goes."""
        self._unsent.clear()
        for batch in (*self._sealed, *self._open.values()):
            batch.drop()
        self._sealed.clear()
        self._open.clear()

    def _land_now(self) -> None:
        self.land(Deadline(REQUEST_TIMEOUT_S))

    def _seal(self) -> None:
        for batch in self._open.values():
            self._unsent.append((batch.request(self._key), self._due_after(batch)))
            self._sealed.append(batch)
        self._open.clear()
        self._unnamed.clear()

    def _due_after(self, batch: BranchBatch) -> Callable[[PendingReply, Transport], None]:
        def sent(reply: PendingReply, connection: Transport) -> None:
            batch.sent(reply, connection)
            self._due.append(batch)

        return sent

    def _begin_sent(self, reply: PendingReply, connection: Transport) -> None:
        del connection
        self._begin_reply = reply

    def _launch(self, deadline: Deadline) -> None:
        """Send all that waits, at once. Raises ConnectionLost, TooManyRequests, ZooKeeperError: nothing was sent then.
        XaError if the branch did not begin."""
        if not self._unsent:
            return
        connection = self._verbs.connect(self._broker_id, deadline)
        if self._connection not in (None, connection):
            # The broker came back: whatever it was asked before has its answer, or never will.
            self._settle_begin(deadline)
            while self._due:
                self._settle_next(deadline)
        replies = connection.submit_all([request for request, _ in self._unsent])
        self._connection = connection
        sent, self._unsent = self._unsent, []
        self._sealed.clear()
        for (_, hear), reply in zip(sent, replies, strict=True):
            hear(reply, connection)

    def _settle_begin(self, deadline: Deadline) -> None:
        if (reply := self._begin_reply) is None:
            return
        self._begin_reply = None
        try:
            self._verbs.answer(TransactionVerb.BEGIN, self._key, self._broker_id, reply, deadline)
        except XaError as error:
            self.begin_failure = error
            self.drop()
            raise

    def _settle_next(self, deadline: Deadline) -> None:
        failure = self._due[0].settle(deadline.remaining_s())
        self._due.popleft()  # only now: whoever was cancelled while waiting has not heard of it
        self.failure = self.failure or failure
