"""Dead-letter store and redelivery of one consumer, from its start to its end; inactive without a directory."""

import contextlib
import functools
from collections.abc import Mapping
from pathlib import Path

from meta_client.consumer.assignments import Assignments
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.dead_letters.index import DeadLetterEntry
from meta_client.consumer.dead_letters.store import DeadLetterStore
from meta_client.consumer.listening import MessageListener
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.redelivery import Redelivery
from meta_client.consumer.workers import Workers


class DeadLetterQueue:
    """Dead letters of one consumer. Any thread, except open, start and close."""

    def __init__(self, config: ConsumerConfig, group: str, assignments: Assignments, workers: Workers) -> None:
        self.has_directory = config.dead_letter_directory is not None
        self._config = config
        self._group = group
        self._assignments = assignments
        self._workers = workers
        self._store: DeadLetterStore | None = None
        self._redelivery: Redelivery | None = None

    def open(self, listener_of: Mapping[str, MessageListener]) -> None:
        """Open the store; before any delivery. Raises StoreInUse, ForeignStore, JournalError."""
        config = self._config
        if config.dead_letter_directory is None:
            return
        directory = Path(config.dead_letter_directory)
        self._store = store = DeadLetterStore.open(directory, self._group, bytes_max=config.dead_letter_bytes_max)
        self._redelivery = Redelivery(store, self._assignments, listener_of, config.redelivery_period_s, self._group)

    def start(self) -> None:
        if self._redelivery is not None:
            self._redelivery.start()

    def stop(self) -> None:
        """Stop redelivery and wait for the listener. Idempotent."""
        if self._redelivery is not None:
            self._redelivery.close()

    def close(self) -> None:
        """Close the store; after the last delivery. Idempotent. Raises StorageFailed."""
        with contextlib.ExitStack() as closing:
            if self._store is not None:
                closing.callback(self._store.close)
            self.stop()

    def is_this_thread(self) -> bool:
        """Return True if the calling thread is the redelivery thread."""
        return self._redelivery is not None and self._redelivery.is_this_thread()

    def add(self, message: ReceivedMessage, error: Exception) -> None:
        """Keep *message*; the reject handler of "dead_letter". Raises as DeadLetterStore.add."""
        assert self._store is not None, "it is opened before anything is delivered"
        self._workers.block(functools.partial(self._store.add, message, error))

    def entries(self) -> list[DeadLetterEntry]:
        """Return the dead letters, oldest first."""
        return [] if self._store is None else self._store.entries()

    def redeliver(self) -> None:
        """Redeliver everything now. Does not wait."""
        if self._redelivery is not None:
            self._redelivery.now()
