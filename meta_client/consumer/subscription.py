"""What a user wants done with the messages of one topic, checked whole when it is said."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from meta_client.consumer.acknowledging import AckWindow
from meta_client.consumer.batch import Batch
from meta_client.consumer.config import check_bytes_max
from meta_client.consumer.delivery import Delivery
from meta_client.consumer.listening import BatchDelivery, BatchListener, MessageDelivery, MessageListener
from meta_client.consumer.offsets import OffsetTracker
from meta_client.consumer.pulling import PullBuffer, PullDelivery
from meta_client.consumer.refusing import RejectHandler, RetryPolicy
from meta_client.consumer.sifting import Sieve

Acknowledge = Literal["auto", "manual"]


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic's. *new_delivery* makes what a partition gets when it becomes ours."""

    bytes_max: int
    new_delivery: Callable[[], Delivery]
    listener: MessageListener | None  # what is offered single messages, those of the local store: None pulls
    is_manual: bool
    refuse: RejectHandler | None  # what becomes of a refused message; None: its partition stops


def subscription(
    *,
    on_batch: BatchListener | None,
    on_message: MessageListener | None,
    max_bytes: int,
    acknowledge: Acknowledge,
    policy: RetryPolicy,
    sieve: Sieve,
    buffer: PullBuffer,
    tracker: OffsetTracker,
) -> Subscription:
    """Raises ValueError for what makes no sense."""
    if on_batch is not None and on_message is not None:
        raise ValueError("on_batch and on_message exclude each other: give the one that is to be called")
    if acknowledge not in ("auto", "manual"):
        raise ValueError(f"acknowledge {acknowledge!r} is neither 'auto' nor 'manual'")
    is_manual = acknowledge == "manual"

    def new_window() -> AckWindow | None:
        return AckWindow(tracker.advance) if is_manual else None

    def new_delivery() -> Delivery:
        if on_batch is not None:
            return BatchDelivery(on_batch, policy, sieve, new_window())
        if on_message is not None:
            return MessageDelivery(on_message, policy, sieve, new_window())
        return PullDelivery(buffer, tracker, sieve, new_window())

    listener = on_message if on_batch is None else lambda message: on_batch(Batch.of(message))
    if listener is None and policy.retries_max is not None:
        raise ValueError("retries_max needs a listener, on_batch or on_message: who pulls calls refuse()")
    return Subscription(check_bytes_max(max_bytes), new_delivery, listener, is_manual, policy.refuse)
