"""What becomes of a batch once it is fetched: the one place where fetching and handing over meet.

A fetcher has one Delivery per partition, calls it with one batch at a time, and does what the Outcome says.
"""

from typing import NamedTuple, Protocol

from meta_client.consumer.acknowledging import AckWindow
from meta_client.consumer.batch import Batch, ReceivedMessage
from meta_client.consumer.offsets import OffsetEntry
from meta_client.consumer.plan import TopicPartition


class Failure(NamedTuple):
    """A message, or batch, was not taken: it comes again, or the partition stops there."""

    error: Exception
    attempt: int  # which one in a row this was, from 1 on
    rest_s_min: float = 0.0  # before the next attempt, at least
    stops: bool = False


class Outcome(NamedTuple):
    """Go on at *next_offset*; everything before *consumed*, if there is one, needs no delivery any more."""

    next_offset: int
    consumed: OffsetEntry | None = None
    failure: Failure | None = None


class Delivery(Protocol):
    """One partition's way to the user, for as long as it is ours."""

    @property
    def window(self) -> AckWindow | None:
        """What may be acknowledged; None: that is automatic."""

    def deliver(self, batch: Batch) -> Outcome:
        """Hand a batch over. A runner thread, never two at a time. Raises nothing that a user's function raises."""

    def has_room(self) -> bool:
        """Whether deliver() may be called. Under the lock of the assignments; must not wait."""

    def is_settled(self) -> bool:
        """Whether everything that was delivered is consumed."""

    def forget(self, key: TopicPartition, *, is_seek: bool) -> None:
        """The partition goes away, or (*is_seek*) goes on elsewhere: nothing that was handed over counts from now
        on, but for what was consumed already. Any thread."""


def consumed_up_to(message: ReceivedMessage) -> OffsetEntry:
    """The progress of who has consumed everything up to and including *message*."""
    return OffsetEntry(message.topic, message.partition, message.next_offset, message.message_id)
