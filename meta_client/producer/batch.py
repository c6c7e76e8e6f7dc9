"""A batch of messages for one partition, and the caller's handle of each message.

A handle holds its batch and its index there. Everything else is kept once per batch, and computed on demand.
"""

import itertools
import threading
from collections.abc import Callable, Sequence

import msgspec

from meta_client.errors import Destination, ReplyTimeout, SendFailed
from meta_client.net.transport import Transport
from meta_client.producer.results import SendResult
from meta_client.protocol.answers import PutPlace
from meta_client.protocol.messages import HEADER_BYTES
from zk.tree.nodes import Partition


class ProducerBatch:
    """Messages for one partition in order. Filled under the sender's lock; settled once, by the thread that has its
    outcome."""

    __slots__ = (
        "_base",
        "_failure",
        "_first_id",
        "_lengths",
        "_outcomes",
        "_settled",
        "_starts",
        "attempts",
        "bodies",
        "bytes",
        "connection",
        "deadline",
        "due",
        "failures",
        "flags",
        "is_movable",
        "is_settled",
        "number",
        "on_settled",
        "partition",
        "refusal",
        "sends_singly",
        "sent_at",
        "topic",
    )

    def __init__(
        self, topic: str, partition: Partition, due: float, deadline: float, *, is_movable: bool = False
    ) -> None:
        """*is_movable*: the caller named no partition, so that the batch may move to another one until it is sent."""
        self.topic = topic
        self.partition = partition
        self.is_movable = is_movable
        self.number = -1  # assigned when it is sealed
        self.due = due  # monotonic seconds: end of its linger time
        self.deadline = deadline  # no retry after it; monotonic
        self.sends_singly = False  # its broker has no `mput`
        self.refusal: SendFailed | None = None  # the last answer that asked for another attempt
        self.attempts = 0  # times that the batch, or its next message, may have reached the broker
        self.failures = 0  # attempts without an outcome
        self.connection: Transport | None = None  # submitted on this one, without an outcome yet
        self.sent_at = 0.0  # of the last attempt; monotonic
        # Headers and checksums are computed later, for the whole batch: every message is appended here.
        self.bodies: list[bytes] = []
        self.flags: list[int] = []
        self.bytes = 0  # of the frames
        self._lengths: list[int] = []  # once settled
        self._starts: list[int] | None = None
        self._outcomes: list[PutPlace | SendFailed] = []  # of the first messages, if sent singly
        self._first_id = self._base = 0
        self._failure: SendFailed | None = None  # of all messages without their own outcome
        self.on_settled: list[Callable[[], object]] = []  # called once it is settled
        self.is_settled = False
        # Held until it is settled, the cheapest event there is; then taken for a moment by each thread that waits.
        self._settled = threading.Lock()
        self._settled.acquire()

    def __len__(self) -> int:
        return len(self.bodies) or len(self._lengths)

    def content(self) -> tuple[Sequence[int], Sequence[bytes]]:
        """Return flags and bodies of what is sent next: everything, or if singly the first message without an outcome.

        They do not change any more, so that they can be encoded without the sender's lock.
        """
        if not self.sends_singly:
            return self.flags, self.bodies
        index = len(self._outcomes)
        return self.flags[index : index + 1], self.bodies[index : index + 1]

    def record(self, outcome: PutPlace | SendFailed) -> None:
        """Record the outcome of the message that was sent singly."""
        self._outcomes.append(outcome)
        self.attempts = 0  # counts for the next message
        self.is_movable = False  # a message is, or may be, in this partition

    @property
    def is_recorded(self) -> bool:
        """True once every message has its own outcome."""
        return len(self._outcomes) == len(self)

    def complete(self, outcome: PutPlace | SendFailed | None) -> None:
        """Settle the batch; *outcome* applies to all messages without their own. None: all have one."""
        match outcome:
            case SendFailed():
                self._failure = outcome
            case PutPlace():
                self._first_id, self._base = outcome.message_id, outcome.offset or 0
        self._lengths = list(map(len, self.bodies))
        self.bodies, self.flags = [], []  # handles outlive the batch: free the bytes
        assert not self.is_settled
        self.is_settled = True
        self._settled.release()
        for call in self.on_settled:
            call()

    def failed_messages(self) -> tuple[int, SendFailed | None]:
        """Return how many messages were not stored, or may not be, and the first failure. Only once settled."""
        failures = [outcome for outcome in self._outcomes if isinstance(outcome, SendFailed)]
        if self._failure is not None:
            failures += [self._failure] * (len(self) - len(self._outcomes))
        return len(failures), failures[0] if failures else None

    def failure_of(self, index: int) -> SendFailed | None:
        """Return the failure of message *index*; None if it is stored. Only once settled."""
        if index < len(self._outcomes):
            outcome = self._outcomes[index]
            return outcome if isinstance(outcome, SendFailed) else None
        return self._failure

    def wait(self, timeout_s: float | None) -> None:
        """Wait until it is settled. Raises ReplyTimeout after *timeout_s* (None: no limit); sending goes on then."""
        wait_s = -1 if timeout_s is None else min(max(0.0, timeout_s), threading.TIMEOUT_MAX)
        if self._settled.acquire(timeout=wait_s):
            self._settled.release()
        elif not self.is_settled:
            raise self.not_settled(timeout_s)

    def not_settled(self, timeout_s: float | None) -> ReplyTimeout:
        """Return the error for a wait of *timeout_s* that was too short."""
        where = Destination(self.topic, self.partition)
        return ReplyTimeout(f"send to {where}: not settled within {timeout_s:g} s: wait on, it is still being sent")

    def result_of(self, index: int) -> SendResult:
        """Return the place of message *index*. Raises SendFailed. Only once settled."""
        if index < len(self._outcomes):
            outcome = self._outcomes[index]
            if isinstance(outcome, SendFailed):
                raise outcome
            return SendResult(outcome.message_id, self.partition, outcome.offset)
        if self._failure is not None:
            raise self._failure
        if self._starts is None:
            sizes = (HEADER_BYTES + length for length in self._lengths)
            self._starts = list(itertools.accumulate(sizes, initial=self._base))
        return SendResult(self._first_id + index, self.partition, self._starts[index])


class SendHandle(msgspec.Struct, eq=False, gc=False):
    """Handle of a message being sent. Any thread; dropping it does not stop the message."""

    _batch: ProducerBatch
    _index: int

    @property
    def is_done(self) -> bool:
        """True if `result` would return or raise at once."""
        return self._batch.is_settled

    def result(self, timeout_s: float | None = None) -> SendResult:
        """Wait until the broker has acknowledged the message and return its place. Raises SendFailed (the subclass
        tells whether it may be stored), ReplyTimeout after *timeout_s*: sending goes on then."""
        self._batch.wait(timeout_s)
        return self._batch.result_of(self._index)
