"""Subscription of one topic: delivery and acknowledgement as the user wants them, validated when made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from meta_client.consumer.acknowledging import AckWindow
from meta_client.consumer.config import ConsumerConfig, check_bytes_max
from meta_client.consumer.delivery import Delivery
from meta_client.consumer.error_policy import ErrorPolicy, RejectHandler
from meta_client.consumer.fetched_partition import FetchedPartition
from meta_client.consumer.filtering import MessageFilter
from meta_client.consumer.listening import BatchDelivery, BatchListener, MessageDelivery, MessageListener
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.offsets import OffsetTracker
from meta_client.consumer.pulling import PullBuffer, PullDelivery
from zk.tree.claims import Claimed
from zk.tree.nodes import TopicPartition

Acknowledge = Literal["auto", "manual"]


@dataclass(frozen=True, slots=True)
class Subscription:
    """Subscription of one topic. *new_delivery* makes a Delivery for each assignment of a partition."""

    bytes_max: int
    new_delivery: Callable[[], Delivery]
    listener: MessageListener | None  # takes single messages, as in a redelivery; None: fetch() and iteration
    is_manual: bool
    reject: RejectHandler | None  # handles a rejected message; None: its partition stops

    def partition(
        self, key: TopicPartition, offset: int | None, config: ConsumerConfig, claimed: Claimed | None = None
    ) -> FetchedPartition:
        """Return a partition to fetch from the stored *offset*; None: none is stored."""
        request = FetchedPartition(
            *(*key, offset or 0, self.bytes_max, config.backoff_s_max), delivery=self.new_delivery(), claimed=claimed
        )
        if offset is None or config.starts_anew:
            request.begin_at(config.start)
        return request


def subscription(
    *,
    on_batch: BatchListener | None,
    on_message: MessageListener | None,
    max_bytes: int,
    acknowledge: Acknowledge,
    policy: ErrorPolicy,
    message_filter: MessageFilter,
    buffer: PullBuffer,
    tracker: OffsetTracker,
) -> Subscription:
    """Return a subscription. Raises ValueError for contradictory options."""
    if on_batch is not None and on_message is not None:
        raise ValueError("on_batch and on_message exclude each other: give the one that is to be called")
    if acknowledge not in ("auto", "manual"):
        raise ValueError(f"acknowledge {acknowledge!r} is neither 'auto' nor 'manual'")
    is_manual = acknowledge == "manual"

    def new_window() -> AckWindow | None:
        return AckWindow(tracker.advance) if is_manual else None

    def new_delivery() -> Delivery:
        if on_batch is not None:
            return BatchDelivery(on_batch, policy, message_filter, new_window())
        if on_message is not None:
            return MessageDelivery(on_message, policy, message_filter, new_window())
        return PullDelivery(buffer, tracker, message_filter, new_window())

    listener = on_message if on_batch is None else lambda message: on_batch(Batch.of(message))
    if listener is None and policy.retries_max is not None:
        raise ValueError("retries_max needs a listener, on_batch or on_message: without one call reject()")
    return Subscription(check_bytes_max(max_bytes), new_delivery, listener, is_manual, policy.reject)
