"""Subscriptions of one consumer, by topic: what may be subscribed to how, and what each kind allows."""

from meta_client.consumer.acknowledging import AckWindow
from meta_client.consumer.config import ConsumerConfig, check_bytes_max
from meta_client.consumer.dead_letter_queue import DeadLetterQueue
from meta_client.consumer.delivery import Delivery
from meta_client.consumer.error_policy import ErrorPolicy, OnReject, reject_handler
from meta_client.consumer.filtering import AcceptMessage, DuplicateCache, MessageFilter
from meta_client.consumer.listener_exit import check_plain, isolated
from meta_client.consumer.listening import BatchDelivery, BatchListener, MessageDelivery, MessageListener
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.offsets import MovedByListeners, OffsetStore, OffsetTracker
from meta_client.consumer.pulling import PullBuffer, PullDelivery
from meta_client.consumer.subscription import Acknowledge, Subscription
from meta_client.consumer.workers import Workers
from meta_client.errors import ConsumerMisuse
from zk.tree.paths import check_topic


class Subscriptions(dict[str, Subscription]):
    """Complete before the consumer starts; only read afterwards, by any thread."""

    def __init__(
        self,
        consumer_id: str,
        config: ConsumerConfig,
        workers: Workers,
        dead_letters: DeadLetterQueue,
        buffer: PullBuffer,
        tracker: OffsetTracker,
        offsets: OffsetStore | None,
    ) -> None:
        super().__init__()
        self._consumer_id = consumer_id
        self._workers = workers
        self._dead_letters = dead_letters
        self._buffer = buffer
        self._tracker = tracker
        self._is_moved_by_listeners = isinstance(offsets, MovedByListeners)
        self._duplicates = DuplicateCache(config.duplicates_max) if config.duplicates_max else None

    def add(
        self,
        topic: str,
        on_batch: BatchListener | None,
        on_message: MessageListener | None,
        max_bytes: int,
        accept: AcceptMessage | None,
        acknowledge: Acknowledge,
        retries_max: int | None,
        on_reject: OnReject,
    ) -> None:
        """Add a topic as in Consumer.subscribe, with its errors."""
        if topic in self:
            raise ConsumerMisuse(f"topic {topic} has been subscribed to already by this consumer: use another one")
        if on_reject == "dead_letter" and self._is_moved_by_listeners:
            raise ConsumerMisuse(
                f'topic {topic}: on_reject "dead_letter" is not for a TransactionOffsetStore, which would take a '
                "message that is offered later for done: keep rejected messages in your database"
            )
        if on_reject == "dead_letter" and not self._dead_letters.has_directory:
            raise ValueError('on_reject "dead_letter" needs ConsumerConfig.dead_letter_directory, where to')
        if accept is not None:
            check_plain(topic, "accept", accept)
        if callable(on_reject):
            check_plain(topic, "on_reject", on_reject)
        if on_batch is not None and on_message is not None:
            raise ValueError("on_batch and on_message exclude each other: give the one that is to be called")
        if acknowledge not in ("auto", "manual"):
            raise ValueError(f"acknowledge {acknowledge!r} is neither 'auto' nor 'manual'")
        is_manual = acknowledge == "manual"
        policy = ErrorPolicy(retries_max, reject_handler(on_reject, self._dead_letters.add))
        message_filter = MessageFilter(None if accept is None else isolated(accept), self._duplicates)
        buffer, tracker = self._buffer, self._tracker
        to_batch = None if on_batch is None else self._workers.listener(topic, on_batch)
        to_message = None if on_message is None else self._workers.listener(topic, on_message)

        def new_delivery() -> Delivery:
            window = AckWindow(tracker.advance) if is_manual else None
            if to_batch is not None:
                return BatchDelivery(to_batch, policy, message_filter, window)
            if to_message is not None:
                return MessageDelivery(to_message, policy, message_filter, window)
            return PullDelivery(buffer, tracker, message_filter, window)

        listener = to_message if to_batch is None else lambda message: to_batch(Batch.of(message))
        if listener is None and retries_max is not None:
            raise ValueError("retries_max needs a listener, on_batch or on_message: without one call reject()")
        bytes_max = check_bytes_max(max_bytes)
        self[check_topic(topic)] = Subscription(bytes_max, new_delivery, listener, is_manual, policy.reject)

    def reject(self, message: ReceivedMessage, error: Exception) -> bool:
        """Apply the topic's `on_reject`; False: that is to stop. Raises ConsumerMisuse, and what on_reject does."""
        if message.topic not in self:
            raise ConsumerMisuse(f"topic {message.topic} is not subscribed to by this consumer")
        if (reject := self[message.topic].reject) is None:
            return False
        reject(message, error)
        return True

    def check_pulled(self) -> None:
        """Raise ConsumerMisuse if no topic is left for fetch() and iteration."""
        if all(it.listener is not None for it in self.values()):
            raise ConsumerMisuse(
                f"consumer {self._consumer_id}: all its topics have listeners, nothing is left to ask for"
            )

    def check_manual(self, topic: str) -> None:
        """Raise ConsumerMisuse unless the topic is acknowledged by hand."""
        if topic not in self or not self[topic].is_manual:
            raise ConsumerMisuse(f'topic {topic} is not subscribed to with acknowledge="manual" by this consumer')
