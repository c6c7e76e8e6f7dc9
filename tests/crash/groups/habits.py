"""Bad habits of a member: it rejects some messages, raises at others, is slow, seeks and pauses."""

from collections import defaultdict, deque
from collections.abc import Sequence
from random import Random
from typing import Any

from meta_client.consumer.error_policy import Reject, Retry
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from tests.crash.groups.notes import Notes
from zk.session.lease import now
from zk.tree.nodes import Partition

STEP_S = 0.3
REJECTED, CURABLE = 5, 6  # rests of the numbers of messages that are rejected always, and until they are dead letters
FILTERED = frozenset({20, 21, 22, 23})
MODULUS = 53


class Habits:
    """Of one member. *rules*: its consumer for threads, also behind one for tasks; set once that is made. Any thread;
    `step` on one."""

    rules: Any

    def __init__(self, seed: str, notes: Notes, topic: str) -> None:
        """*seed* "": it has none."""
        self.is_steady = not seed
        self._notes = notes
        self._topic = topic
        self.rejects = True
        self._random = Random(seed)
        self._begins: defaultdict[Partition, deque[int]] = defaultdict(lambda: deque(maxlen=30))
        self._rejected: set[tuple[Partition, int]] = set()
        self._resume_at: dict[Partition, float] = {}

    def accept(self, message: ReceivedMessage) -> bool:
        """Filter of the subscription."""
        if is_unwanted := not self.is_steady and numbers_of(message)[0] % MODULUS in FILTERED:
            self._notes.filtered(message.partition, message.offset, message.next_offset)
        return not is_unwanted

    def begin(self, handed: Batch | ReceivedMessage) -> float:
        """Write down what is handed over; returns how long to take for it."""
        if self.is_redelivery(handed):
            return 0.0
        self._begins[handed.partition].append(handed.offset)
        owned = self.rules._fetcher.assignments.get((self._topic, handed.partition))
        epoch = -1 if owned is None else owned.epoch  # -1: it was taken away in this very moment
        self._notes.handed(handed.partition, handed.offset, handed.next_offset, epoch, numbers_of(handed))
        if not self.is_steady and self._random.random() < 0.01:
            return self._random.uniform(0.3, 3.0)
        return self._random.uniform(0, 0.004)

    def end(self, handed: Batch | ReceivedMessage) -> None:
        """Write down that it is done, or raise."""
        numbers = numbers_of(handed)
        if not self.is_steady:
            self._maybe_raise(handed, numbers)
        if self.is_redelivery(handed):
            self._notes.redelivered(handed.partition, handed.offset)
        else:
            self._notes.done(handed.partition, handed.next_offset)

    def step(self) -> None:
        """Do what is due each STEP_S."""
        at = now()
        self._notes.lags(self.rules.lags(), at)
        for partition in [partition for partition, until in self._resume_at.items() if until < at]:
            del self._resume_at[partition]
            self.rules.resume((self._topic, partition))
        stopped = [(topic, it) for topic, it in self.rules.paused() if it not in self._resume_at]
        self.rules.resume(*stopped)
        owned = [partition for _, partition in self.rules.owned() if self._begins[partition]]
        if not owned:
            return
        partition = self._random.choice(owned)
        match self._random.random():
            case chance if chance < 0.02:
                self._seek(partition)
            case chance if chance < 0.06:
                self.rules.pause((self._topic, partition))
                self._resume_at[partition] = at + self._random.uniform(0.1, 8.0)

    def is_rolling_back(self, message: ReceivedMessage) -> bool:
        """Return True if a message is to be rolled back, not acknowledged, and write that down."""
        if is_rolled_back := self._random.random() < 0.01:
            self._notes.failed(message.partition, message.offset, "rolled-back")
        return is_rolled_back

    def _seek(self, partition: Partition) -> None:
        offset = self._random.choice(self._begins[partition])
        self._notes.sought(partition, offset)
        self.rules.seek(self._topic, partition, offset)

    def _maybe_raise(self, handed: Batch | ReceivedMessage, numbers: Sequence[int]) -> None:
        rests = {number % MODULUS for number in numbers}
        if self.rejects and (REJECTED in rests or (CURABLE in rests and not self.is_redelivery(handed))):
            if is_one := len(numbers) == 1:
                self._rejected.add((handed.partition, handed.offset))
            self._notes.failed(handed.partition, handed.offset, "rejected" if is_one else "raised")
            raise Reject("never") if is_one else RuntimeError("one of them")
        may_retry = len(numbers) > 1 or isinstance(handed, ReceivedMessage)  # a batch of one may have been rejected
        if may_retry and self._random.random() < 0.01 and not self.is_redelivery(handed):
            self._notes.failed(handed.partition, handed.offset, "raised")
            raise self._random.choice([RuntimeError("now and then"), Retry("busy", 0.1)])

    def is_redelivery(self, handed: Batch | ReceivedMessage) -> bool:
        """Return True for what this member has rejected: it comes as a dead letter, or is none yet."""
        return len(numbers_of(handed)) == 1 and (handed.partition, handed.offset) in self._rejected


def numbers_of(handed: Batch | ReceivedMessage) -> list[int]:
    messages = handed.messages if isinstance(handed, Batch) else [handed]
    return [int(message.payload.split()[0]) for message in messages]
