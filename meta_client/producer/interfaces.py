"""A producer's collaborators: what the producers of a client share, and a transaction that one joins."""

from dataclasses import dataclass
from typing import Protocol, TypeVar

from meta_client.metadata.allowed_codecs import AllowedCodecs
from meta_client.metadata.topology import Directory
from meta_client.net.deadline import Deadline
from meta_client.net.transport import Transports
from meta_client.producer.message_run import MessageRun, RunPart
from meta_client.producer.outgoing import Outgoing
from meta_client.producer.results import Handle, SendResult
from meta_client.producer.single_sends import SingleSends
from zk.tree.nodes import Partition

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

    def add_run(self, topic: str, wanted: Partition | None, run: MessageRun) -> list[RunPart]: ...

    def flush(self, timeout_s: float | None = None) -> None: ...

    def has_pending(self, topic: str, partition: Partition) -> bool: ...

    def push(self, topic: str, partition: Partition) -> None: ...


@dataclass(frozen=True, slots=True)
class ClientParts:
    """Parts that the producers of one client share."""

    topology: Directory
    connections: Transports
    sender: Gatherer
    sends: SingleSends
    allowed: AllowedCodecs


class Adds(Protocol):
    """Takes messages of send_async for a transaction."""

    def add(self, message: Outgoing) -> Handle: ...


class Enlists(Adds, Protocol):
    """A transaction over several brokers that producers join: transactions.branches.OpenBranches."""

    def check(self) -> None: ...

    def send(self, message: Outgoing, deadline: Deadline) -> SendResult: ...
