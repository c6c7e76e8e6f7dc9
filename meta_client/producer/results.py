"""Result of a send; and, as the producer sees them, what sends in batches, and a transaction it joins."""

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from meta_client.metadata.topology import TopicView
from meta_client.net.deadline import Deadline
from zk.tree.nodes import Partition

if TYPE_CHECKING:
    from meta_client.producer.message_run import MessageRun, RunPart
    from meta_client.producer.outgoing import Outgoing, RoundRobin


class SendResult(NamedTuple):
    """Place of a message. *offset* is None in a transaction: it is assigned by the commit."""

    message_id: int  # any int64, neither ordered nor unique forever (spec 3.4)
    partition: Partition  # written `B-p`
    offset: int | None  # bytes since the partition's birth, of the message's first byte


class Handle(Protocol):
    """Handle of a message being sent: batch.SendHandle documents it."""

    @property
    def is_done(self) -> bool: ...

    def result(self, timeout_s: float | None = None) -> SendResult: ...


Made = TypeVar("Made", covariant=True)


class QuickAdd(Protocol[Made]):
    """Adds a message as Gathering.maybe_add does, from any thread and without the lock; returns None, without effect,
    where Python must decide: Gathering.quick_add makes it. With *attribute* the body is a payload, and the flag 0."""

    def __call__(
        self,
        topic: str,
        body: bytes,
        wanted: Partition | None = None,
        flag: int = 0,
        attribute: str | None = None,
        /,
    ) -> Made | None: ...


class Gatherer(Protocol):
    """Sends messages in batches: sender.Sender, or its asyncio twin."""

    @property
    def quick_add(self) -> QuickAdd[Handle] | None: ...

    def add(self, topic: str, wanted: Partition | None, flag: int, body: bytes) -> Handle: ...

    def add_run(self, topic: str, wanted: Partition | None, run: "MessageRun") -> "list[RunPart]": ...

    def flush(self, timeout_s: float | None = None) -> None: ...

    def has_pending(self, topic: str, partition: Partition) -> bool: ...

    def push(self, topic: str, partition: Partition) -> None: ...


class Adds(Protocol):
    """Takes messages of send_async for a transaction."""

    def add(self, message: "Outgoing", view: TopicView, wanted: Partition | None, choice: "RoundRobin") -> Handle: ...


class Enlists(Adds, Protocol):
    """A transaction over several brokers that producers join: transactions.branches.Branches."""

    def check(self) -> None: ...

    def send(
        self, message: "Outgoing", view: TopicView, wanted: Partition | None, choice: "RoundRobin", deadline: Deadline
    ) -> SendResult: ...
