"""Interface between fetching and delivery.

A fetcher has one Delivery per partition, calls it with one batch at a time, and acts on the DeliveryResult.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from meta_client.consumer.acknowledging import AckWindow
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.offsets import OffsetEntry
from zk.tree.nodes import TopicPartition


class DeliveryFailure(NamedTuple):
    """A rejected message or batch: it is delivered again, or the partition stops there."""

    error: Exception
    attempt: int  # number in a row, from 1
    backoff_s_min: float = 0.0  # minimum before the next attempt
    stops: bool = False


class DeliveryResult(NamedTuple):
    """Result of a delivery: continue at *next_offset*; everything before *consumed*, if given, is consumed. Without a
    failure *next_offset* may lie inside the batch, see Delivery.deliver."""

    next_offset: int
    consumed: OffsetEntry | None = None
    failure: DeliveryFailure | None = None


class Delivery(Protocol):
    """Delivers one partition to the user while it is assigned."""

    @property
    def window(self) -> AckWindow | None:
        """Window of manual acknowledgement; None: automatic."""

    def deliver(self, batch: Batch, goes_on: Callable[[], bool] = lambda: True) -> DeliveryResult:
        """Deliver a batch. One that is delivered message by message ends before the first for which *goes_on* returns
        False. Called on a runner thread, never concurrently. Raises nothing that a user's function raises."""

    def has_room(self) -> bool:
        """Return True if deliver() may be called. Called under the lock of the assignments; must not block."""

    def unconsumed_from(self) -> int | None:
        """Return the offset of the first message that is delivered and not consumed; None: there is none."""

    def discard(self, key: TopicPartition, *, is_seek: bool) -> None:
        """Stop counting deliveries that are not consumed yet: the partition was removed, or (*is_seek*) sought. Any
        thread."""


def consumed_up_to(message: ReceivedMessage) -> OffsetEntry:
    """Return the offset entry for everything up to and including *message*."""
    return OffsetEntry(message.topic, message.partition, message.next_offset, message.message_id)
