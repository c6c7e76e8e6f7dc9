"""A consumer's local store with its redelivery, from the consumer's start to its end; nothing, if it has none."""

import contextlib
import functools
from collections.abc import Mapping
from pathlib import Path

from meta_client.consumer.assignments import Assignments
from meta_client.consumer.batch import ReceivedMessage
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.listening import MessageListener
from meta_client.consumer.workers import Workers
from meta_client.refused.redelivery import Redelivery
from meta_client.refused.store import RefusedStore
from meta_client.refused.waiting import Waiting


class Parking:
    """Where one consumer parks messages. Any thread, but for open, start and close."""

    def __init__(self, config: ConsumerConfig, group: str, assignments: Assignments, workers: Workers) -> None:
        self.has_directory = config.refused_directory is not None
        self._config = config
        self._group = group
        self._assignments = assignments
        self._workers = workers
        self._store: RefusedStore | None = None
        self._redelivery: Redelivery | None = None

    def open(self, listener_of: Mapping[str, MessageListener]) -> None:
        """Before anything is delivered. Raises StoreInUse, ForeignStore, JournalError."""
        config = self._config
        if config.refused_directory is None:
            return
        directory = Path(config.refused_directory)
        self._store = store = RefusedStore.open(directory, self._group, bytes_max=config.refused_bytes_max)
        self._redelivery = Redelivery(store, self._assignments, listener_of, config.redelivery_period_s, self._group)

    def start(self) -> None:
        """Begin to offer what waits."""
        if self._redelivery is not None:
            self._redelivery.start()

    def stop(self) -> None:
        """Offer nothing more, and wait for the listener. Idempotent."""
        if self._redelivery is not None:
            self._redelivery.close()

    def close(self) -> None:
        """After the last delivery. Idempotent. Raises StorageFailed."""
        with contextlib.ExitStack() as closing:
            if self._store is not None:
                closing.callback(self._store.close)
            self.stop()

    def is_this_thread(self) -> bool:
        """Whether the calling thread is the one that offers messages again."""
        return self._redelivery is not None and self._redelivery.is_this_thread()

    def park(self, message: ReceivedMessage, error: Exception) -> None:
        """A reject handler. Raises StoreFull, StorageFailed."""
        assert self._store is not None, "it is opened before anything is delivered"
        self._workers.block(functools.partial(self._store.park, message, error))

    def waiting(self) -> list[Waiting]:
        """What is parked, first refused first."""
        return [] if self._store is None else self._store.waiting()

    def redeliver(self) -> None:
        """Offer everything now. Does not wait."""
        if self._redelivery is not None:
            self._redelivery.now()
