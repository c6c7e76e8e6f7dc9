"""A batch of messages for one partition, and what a caller holds of each.

A handle is two words: the batch it is in and its place there. Everything else is kept once a batch, and worked out
when somebody asks.
"""

import itertools
import threading

import msgspec

from meta_client.errors import Destination, ReplyTimeout, SendFailed
from meta_client.protocol.answers import PutPlace
from meta_client.protocol.frame_columns import encode_frames
from meta_client.protocol.limits import BATCH_MESSAGES_MAX
from meta_client.protocol.messages import HEADER_BYTES
from meta_client.results import SendResult
from meta_client.transport import Transport
from zk.nodes import Partition


class Batch:
    """Messages in the order they were added. Filled under the sender's lock; settled once, by who hears its answer."""

    __slots__ = (
        "_base",
        "_bodies",
        "_bytes_max",
        "_failure",
        "_first_id",
        "_flags",
        "_lengths",
        "_outcomes",
        "_settled",
        "_starts",
        "attempts",
        "bytes",
        "connection",
        "deadline",
        "due",
        "failures",
        "goes_singly",
        "is_free",
        "is_full",
        "number",
        "partition",
        "sent_at",
        "topic",
    )

    def __init__(
        self, topic: str, partition: Partition, bytes_max: int, due: float, deadline: float, *, is_free: bool = False
    ) -> None:
        """*is_free*: nobody asked for *partition*, so that another one does as well until it was sent."""
        self.topic = topic
        self.partition = partition
        self.is_free = is_free
        self.number = -1  # given when it is sealed
        self.due = due  # monotonic seconds: it waits for company until then
        self.deadline = deadline  # after which it is not tried again
        self.goes_singly = False  # its broker takes one message at a time
        self.attempts = 0  # times that it may have reached the broker, or that its next message may have
        self.failures = 0  # times that it was not heard of again
        self.connection: Transport | None = None  # it was submitted to, and has not been heard of since
        self.sent_at = 0.0  # the last time; monotonic
        self.bytes = 0  # of the frames
        self.is_full = False  # it need not wait for company any more
        self._bytes_max = bytes_max
        self._bodies: list[bytes] = []
        self._flags: list[int] = []
        self._lengths: list[int] = []  # once settled
        self._starts: list[int] | None = None
        self._outcomes: list[
            PutPlace | SendFailed
        ] = []  # of the first messages, from a broker that takes one at a time
        self._first_id = self._base = 0
        self._failure: SendFailed | None = None  # of all, or of those without an outcome of their own
        self._settled = threading.Lock()  # held until the outcome is here: the cheapest event there is
        self._settled.acquire()

    def __len__(self) -> int:
        return len(self._bodies) or len(self._lengths)

    def maybe_add(self, flag: int, body: bytes, size: int) -> int | None:
        """Add one message whose frame has *size* bytes, and return its place; None if there is no room, but the first
        has always room.

        The sender's lock must be held. This is the path of every message: header and checksum come later, for all
        of a batch at once.
        """
        bodies = self._bodies
        count = len(bodies)
        total = self.bytes + size
        if (total > self._bytes_max and count) or count >= BATCH_MESSAGES_MAX:
            return None
        self.bytes = total
        bodies.append(body)
        self._flags.append(flag)
        if total >= self._bytes_max or count + 1 >= BATCH_MESSAGES_MAX:
            self.is_full = True
        return count

    def frames(self) -> bytes:
        """What an mput carries."""
        return encode_frames(self._flags, self._bodies)

    def next_message(self) -> tuple[int, bytes]:
        """(flag, body) of the first message without an outcome, for a broker that takes one at a time."""
        index = len(self._outcomes)
        return self._flags[index], self._bodies[index]

    def note(self, outcome: PutPlace | SendFailed) -> None:
        """Note what became of `next_message`, which was sent alone."""
        self._outcomes.append(outcome)
        self.attempts = 0  # to send the one that is next
        self.is_free = False  # one lies in this partition, or may

    @property
    def is_noted(self) -> bool:
        """True once every message has an outcome of its own."""
        return len(self._outcomes) == len(self)

    def conclude(self, outcome: PutPlace | SendFailed | None) -> None:
        """It is over: stored there, or given up, as far as messages have no outcome of their own. None: all have."""
        match outcome:
            case SendFailed():
                self._failure = outcome
            case PutPlace():
                self._first_id, self._base = outcome.message_id, outcome.offset or 0
        self._lengths = list(map(len, self._bodies))
        self._bodies, self._flags = [], []  # handles live on: the bytes need not
        self._settled.release()

    def failed(self) -> tuple[int, SendFailed | None]:
        """How many messages were not stored, or may not be, and why the first of them. Only once settled."""
        failures = [outcome for outcome in self._outcomes if isinstance(outcome, SendFailed)]
        if self._failure is not None:
            failures += [self._failure] * (len(self) - len(self._outcomes))
        return len(failures), failures[0] if failures else None

    @property
    def is_settled(self) -> bool:
        return not self._settled.locked()

    def wait(self, timeout_s: float | None) -> None:
        """Return once it is settled. Raises ReplyTimeout; it goes on being sent then."""
        if not self._settled.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s)):
            where = Destination(self.topic, self.partition)
            raise ReplyTimeout(f"send to {where}: not settled within {timeout_s:g} s: wait on, it is still being sent")
        self._settled.release()

    def result_of(self, index: int) -> SendResult:
        """Where message *index* went. Raises SendFailed. Only once settled."""
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
    """A message on its way. Any thread; may be dropped at will, the message goes all the same."""

    _batch: Batch
    _index: int

    @property
    def is_done(self) -> bool:
        """Whether `result` would answer at once."""
        return self._batch.is_settled

    def result(self, timeout_s: float | None = None) -> SendResult:
        """Where the message went, once the broker has acknowledged it. Raises SendFailed (the subclass tells
        whether it may be stored), ReplyTimeout after *timeout_s*: it is still being sent then."""
        self._batch.wait(timeout_s)
        return self._batch.result_of(self._index)
