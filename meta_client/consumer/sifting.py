"""What a subscription does not deliver: what its own filter rejects, and what it delivered lately."""

import threading
from collections.abc import Callable, Iterable

from meta_client.consumer.batch import ReceivedMessage
from meta_client.consumer.plan import TopicPartition
from zk.nodes import Partition

Accept = Callable[[ReceivedMessage], bool]


class DuplicateCache:
    """The messages that one consumer consumed last, *capacity* of them. Any thread.

    The ancestor has one cache a process, by group and message id, so that two consumers of a process hide messages
    from each other. This one is a consumer's own. Ids of a genuine broker come again after its host has been
    restarted (spec 3.4), so the partition counts, too; that leaves a small chance, and the cache off by default.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, Partition, int], None] = {}  # oldest first; under the lock

    def fresh(self, messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
        """Those of *messages* that are not in it."""
        with self._lock:
            return [m for m in messages if (m.topic, m.partition, m.message_id) not in self._seen]

    def remember(self, messages: Iterable[ReceivedMessage]) -> None:
        """*messages* have been consumed."""
        with self._lock:
            for message in messages:
                key = message.topic, message.partition, message.message_id
                self._seen.pop(key, None)
                self._seen[key] = None
            while len(self._seen) > self._capacity:
                del self._seen[next(iter(self._seen))]

    def forget(self, partition: TopicPartition) -> None:
        """Somebody wants to see the messages of a partition again."""
        with self._lock:
            for key in [key for key in self._seen if key[:2] == partition]:
                del self._seen[key]


class Sieve:
    """A subscription's filter and its consumer's duplicate cache, either of which may be missing."""

    def __init__(self, accept: Accept | None, duplicates: DuplicateCache | None) -> None:
        self._accept = accept
        self._duplicates = duplicates

    @property
    def passes_all(self) -> bool:
        return self._accept is None and self._duplicates is None

    def accepts(self, message: ReceivedMessage) -> bool:
        """Whether to deliver one message. Raises what the filter raises."""
        if self._duplicates is not None and not self._duplicates.fresh([message]):
            return False
        return self._accept is None or self._accept(message)

    def sift(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Those to deliver. Raises what the filter raises."""
        if self._duplicates is not None:
            messages = self._duplicates.fresh(messages)
        return messages if self._accept is None else [m for m in messages if self._accept(m)]

    def remember(self, messages: Iterable[ReceivedMessage]) -> None:
        """*messages* have been consumed."""
        if self._duplicates is not None:
            self._duplicates.remember(messages)

    def forget(self, partition: TopicPartition) -> None:
        """The partition is to be read again."""
        if self._duplicates is not None:
            self._duplicates.forget(partition)
