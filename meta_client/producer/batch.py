"""A batch of messages for one partition, and the caller's handle of each message.

A handle holds its batch and its index there. Everything else is kept once per batch, and computed on demand.
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from meta_client.errors import Destination, ReplyTimeout, SendFailed
from meta_client.net.transport import Transport
from meta_client.producer.results import SendResult
from meta_client.protocol.answers import PutPlace
from meta_client.protocol.messages import HEADER_BYTES
from zk.tree.nodes import Partition

FlagsAndBodies = tuple[Sequence[int], Sequence[bytes]]


def _held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(slots=True, eq=False, repr=False)
class ProducerBatch:
    """Messages for one partition in order. Filled under the sender's lock; settled once, by the thread that has its
    outcome."""

    topic: str
    partition: Partition
    due: float  # monotonic seconds: end of its linger time
    deadline: float  # no retry after it; monotonic
    is_movable: bool = False  # the caller named no partition: it may move to another one until it is sent
    number: int = -1  # assigned when it is sealed
    sends_singly: bool = False  # its broker has no `mput`
    refusal: SendFailed | None = None  # the last answer that asked for another attempt
    attempts: int = 0  # times that the batch, or its next message, may have reached the broker
    failures: int = 0  # attempts without an outcome
    connection: Transport | None = None  # submitted on this one, without an outcome yet
    sent_at: float = 0.0  # of the last attempt; monotonic
    # Headers and checksums are computed later, for the whole batch: every message is appended here.
    bodies: list[bytes] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    bytes: int = 0  # of the frames
    on_settled: list[Callable[[], object]] = field(default_factory=list)  # called once it is settled
    is_settled: bool = False
    _lengths: list[int] = field(default_factory=list)  # once settled
    _starts: list[int] | None = None
    _outcomes: list[PutPlace | SendFailed] = field(default_factory=list)  # of the first messages, if sent singly
    _first_id: int = 0
    _base: int = 0
    _failure: SendFailed | None = None  # of all messages without their own outcome
    # Held until it is settled, the cheapest event there is; then taken for a moment by each thread that waits.
    _settled: threading.Lock = field(default_factory=_held)

    def __len__(self) -> int:
        return len(self.bodies) or len(self._lengths)

    def content(self) -> FlagsAndBodies:
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
