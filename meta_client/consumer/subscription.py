"""Subscription of one topic: delivery and acknowledgement as the user wants them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.delivery import Delivery
from meta_client.consumer.error_policy import RejectHandler
from meta_client.consumer.fetched_partition import FetchedPartition
from meta_client.consumer.listening import MessageListener
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
