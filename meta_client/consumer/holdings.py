"""What a member owns: claimed in ZooKeeper, fetched, and its progress stored (spec 9.3, 9.4).

The group's thread alone, but for keys().
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.fetch_request import FetchRequest, Listener
from meta_client.consumer.fetcher import Fetcher
from meta_client.consumer.offsets import OffsetStore, OffsetTracker
from meta_client.consumer.plan import TopicPartition
from zk.nodes import Partition
from zk.ownership import OwnedBy, Ownership

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Subscription:
    """What to do with the messages of one topic."""

    listener: Listener
    bytes_max: int


class Holdings:
    """The partitions of one member."""

    def __init__(
        self,
        ownership: Ownership,
        fetcher: Fetcher,
        tracker: OffsetTracker,
        store: OffsetStore,
        subscriptions: Mapping[str, Subscription],
        config: ConsumerConfig,
    ) -> None:
        self._ownership = ownership
        self._fetcher = fetcher
        self._tracker = tracker
        self._store = store
        self._subscriptions = subscriptions
        self._config = config
        self._epochs: dict[TopicPartition, int] = {}  # of the ownership of each; swapped whole
        self._leaving: set[TopicPartition] = set()  # not fetched any more, owner nodes perhaps not deleted yet

    def keys(self) -> Collection[TopicPartition]:
        """What is owned now. Any thread."""
        return self._epochs.keys()

    def claim(self, topic: str, partition: Partition) -> bool:
        """Own a partition and begin to fetch it; False: not yet, ask again. Raises ZooKeeperUnavailable."""
        claimed = self._ownership.claim(topic, partition)
        if isinstance(claimed, OwnedBy):
            _log.debug("still owned partition=%s/%s owner=%s", topic, partition, claimed.consumer_id)
            return False
        try:
            offset = self._store.load(topic, partition)
        except Exception as error:
            # The store may be the user's, and raise anything. Without an offset there is nothing to do here.
            _log.warning("offset not loaded, trying again partition=%s/%s error=%r", topic, partition, error)
            self._ownership.release(topic, partition)
            return False
        self._epochs = {**self._epochs, (topic, partition): claimed.epoch}
        self._tracker.own(topic, partition)
        wanted = self._subscriptions[topic]
        start = self._config.start_offset if offset is None else offset
        self._fetcher.assign(
            [FetchRequest(topic, partition, start, wanted.bytes_max, wanted.listener, self._config.rest_s_max)]
        )
        return True

    def release(self, keys: Collection[TopicPartition]) -> None:
        """Let partitions go: first nothing of them is delivered any more, then their progress is stored, then
        another member may have them. Raises ZooKeeperUnavailable; then finish_releases() has to be called again."""
        leaving = set(keys)
        self._fetcher.withdraw(leaving)
        self.commit()
        self._tracker.disown(leaving)
        self._leaving |= leaving
        self._epochs = {key: epoch for key, epoch in self._epochs.items() if key not in leaving}
        self.finish_releases()

    def finish_releases(self) -> None:
        """Delete the owner nodes that release() could not; before anything is claimed. Raises as release."""
        while self._leaving:
            key = min(self._leaving)
            self._ownership.release(*key)
            self._leaving.discard(key)

    def drop(self) -> int:
        """The session is over, and its owner nodes with it: another member may own our partitions already, so
        nothing is stored, and what was not is delivered again. Returns how many there were."""
        dropped, self._epochs = self._epochs, {}
        self._leaving.clear()
        self._tracker.disown(dropped)
        self._fetcher.withdraw(self._fetcher.assigned())
        return len(dropped)

    def commit(self) -> None:
        """Store progress. A failure is logged: the progress is kept for the next time, and the worst that a crash
        or a release can make of it is a second delivery."""
        try:
            self._tracker.commit(self._store)
        except Exception as error:  # the user's store may raise anything
            _log.warning("offsets not committed, trying again later error=%r", error)
