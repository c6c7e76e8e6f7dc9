"""Filtering of a subscription: its own filter, and the cache of duplicates."""

import threading
from collections.abc import Callable, Iterable

from meta_client.consumer.messages.received_message import ReceivedMessage
from zk.tree.nodes import Partition, TopicPartition

AcceptMessage = Callable[[ReceivedMessage], bool]


class DuplicateCache:
    """Cache of the *capacity* messages that one consumer consumed last. Any thread.

    The ancestor has one cache per process, by group and message id, so that two consumers of a process hide messages
    from each other; this one belongs to one consumer. Ids of a genuine broker repeat after its host was restarted (spec
    3.4), so the key includes the partition; a small chance of hiding a message remains, and the cache is off by
    default.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, Partition, int], None] = {}  # oldest first; under the lock

    def fresh(self, messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return those of *messages* that are not cached."""
        with self._lock:
            return [m for m in messages if (m.topic, m.partition, m.message_id) not in self._seen]

    def remember(self, messages: Iterable[ReceivedMessage]) -> None:
        """Cache consumed *messages*."""
        with self._lock:
            for message in messages:
                key = message.topic, message.partition, message.message_id
                self._seen.pop(key, None)
                self._seen[key] = None
            while len(self._seen) > self._capacity:
                del self._seen[next(iter(self._seen))]

    def clear(self, partition: TopicPartition) -> None:
        """Drop a partition's messages, so that they are delivered again."""
        with self._lock:
            for key in [key for key in self._seen if key[:2] == partition]:
                del self._seen[key]


class MessageFilter:
    """A subscription's filter and its consumer's duplicate cache, either of which may be missing."""

    def __init__(self, accept: AcceptMessage | None, duplicates: DuplicateCache | None) -> None:
        self._accept = accept
        self._duplicates = duplicates

    @property
    def passes_all(self) -> bool:
        return self._accept is None and self._duplicates is None

    def accepts(self, message: ReceivedMessage) -> bool:
        """Return True if *message* is to be delivered. Raises what the filter raises."""
        if self._duplicates is not None and not self._duplicates.fresh([message]):
            return False
        return self._accept is None or self._accept(message)

    def filter(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return the messages to deliver. Raises what the filter raises."""
        if self._duplicates is not None:
            messages = self._duplicates.fresh(messages)
        return messages if self._accept is None else [m for m in messages if self._accept(m)]

    def remember(self, messages: Iterable[ReceivedMessage]) -> None:
        if self._duplicates is not None:
            self._duplicates.remember(messages)

    def clear(self, partition: TopicPartition) -> None:
        if self._duplicates is not None:
            self._duplicates.clear(partition)
