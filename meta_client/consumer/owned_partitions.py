"""Partitions owned by a member: claimed in ZooKeeper, fetched, and their progress stored (spec 9.3, 9.4).

The group's thread only, except keys().
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.fetched_partition import PartitionEvent
from meta_client.consumer.fetcher import Fetcher
from meta_client.consumer.listener_exit import exits_as_errors
from meta_client.consumer.offsets import ManyOffsets, OffsetEntry, OffsetStore, OffsetTracker, ZooKeeperOffsetStore
from meta_client.consumer.subscription import Subscription
from meta_client.errors import OwnershipLost
from zk.groups.ownership import Ownership
from zk.tree.claims import Claimed, OwnedBy
from zk.tree.nodes import TopicPartition

_log = logging.getLogger(__name__)


class OwnedPartitions:
    """Owned partitions of one member."""

    def __init__(
        self,
        ownership: Ownership,
        fetcher: Fetcher,
        tracker: OffsetTracker,
        store: OffsetStore,
        subscriptions: Mapping[str, Subscription],
        config: ConsumerConfig,
        may_commit: Callable[[], bool],
    ) -> None:
        """*may_commit* returns True while the ownership is certain; called before progress is stored."""
        self._ownership = ownership
        self._may_commit = may_commit
        self._fetcher = fetcher
        self._assignments = fetcher.assignments
        self._tracker = tracker
        self._store = store
        self._subscriptions = subscriptions
        self._config = config
        self._uncertain: set[TopicPartition] = set()  # may have an owner node of ours: claimed or lost
        self._lost: set[TopicPartition] = set()  # to other members, see take_lost
        self.blocked: dict[TopicPartition, str] = {}  # owners of what the last claim did not get
        self._replaced: int | None = None  # see note_tree()
        self._is_store_lost = False  # ever
        self._dropped: set[TopicPartition] = set()  # with the last session
        self._owned_at_loss: set[TopicPartition] = set()  # of what the store had
        self._epochs_min: dict[TopicPartition, int] = {}  # of lost partitions: above the epoch that a broker has seen

    def keys(self) -> set[TopicPartition]:
        """Return the owned partitions. Any thread."""
        return self._assignments.assigned()

    def claim(self, keys: Collection[TopicPartition]) -> set[TopicPartition]:
        """Claim partitions and start to fetch them. Returns those now owned; claim the others again later.

        Raises ZooKeeperError; then call claim() again, or finish_releases().
        """
        held = self._assignments.held()
        wanted = [key for key in keys if key not in held]
        self._uncertain |= set(wanted)
        outcomes = self._ownership.claim_many(wanted, self._epochs_min)
        self._uncertain -= set(wanted)
        for key in outcomes:
            self._epochs_min.pop(key, None)
        self.blocked = {key: outcome.consumer_id for key, outcome in outcomes.items() if isinstance(outcome, OwnedBy)}
        claims = {key: outcome for key, outcome in outcomes.items() if isinstance(outcome, Claimed)}
        offsets = self._load(claims)
        regained = self._regain(offsets)
        partitions = {
            key: self._subscriptions[key[0]].partition(key, offsets.get(key), self._config, claimed)
            for key, claimed in claims.items()
        }
        for key in claims.keys() - offsets.keys():  # given back without a fetch
            partitions[key].on(PartitionEvent.REVOKE)
            self._assignments.add(partitions[key])
        for key, offset in offsets.items():
            if offset is not None and self._tracker.is_before_stored(key, offset):
                partitions[key].delivery.discard(key, is_seek=True)  # its messages are wanted again
        for key in offsets:
            self._tracker.own(*key, claims[key])
            if (offset := offsets[key]) is not None:
                self._tracker.loaded(key, offset)
        self._fetcher.assign([partitions[key] for key in offsets])
        for topic, partition in regained:
            self._tracker.advance(OffsetEntry(topic, partition, regained[topic, partition]))
        if regained:
            self.commit()
        self.finish_releases(())
        return set(offsets)

    def _regain(self, offsets: dict[TopicPartition, int | None]) -> dict[TopicPartition, int]:
        """Put back into *offsets* what this member knows from before the store lost it. Returns those offsets."""
        if self._config.starts_anew:
            return {}
        known = {key: offset for key in offsets if (offset := self._tracker.before_loss(key)) is not None}
        # A later offset may be one that began at start="latest"; of others' partitions ours may be long outdated.
        regained = {
            key: offset
            for key, offset in known.items()
            if (stored := offsets[key]) is None or (stored > offset and key in self._owned_at_loss)
        }
        offsets |= regained
        if regained:
            _log.warning("going on at offsets from before ZooKeeper's tree was replaced partitions=%d", len(regained))
        unknown = [f"{topic}/{it}" for (topic, it), offset in offsets.items() if offset is None]
        if self._is_store_lost and unknown:
            _log.error(
                "offsets are gone with ZooKeeper's tree, beginning at start=%s partitions=%s: see `metaq groups reset`",
                *(self._config.start, ",".join(sorted(unknown))),
            )
        return regained

    def note_tree(self, replaced: int) -> None:
        """Note how often ZooKeeper's tree was replaced; what it stored went with it."""
        if self._replaced not in (None, replaced) and isinstance(self._store, ZooKeeperOffsetStore):
            self._is_store_lost = True
            self._owned_at_loss = self._dropped
            self._tracker.store_lost()
        self._replaced, self._dropped = replaced, set()

    def _load(self, keys: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Load offsets, None: not stored. A partition whose offset can't be loaded is left out, and is not fetched."""
        if isinstance(self._store, ManyOffsets) and keys:
            try:
                with exits_as_errors():
                    found = self._store.load_many(keys)
                return {key: found.get(key) for key in keys}
            except Exception as error:  # a user's store may raise anything
                _log.warning("offsets not loaded together, trying one by one error=%r", error)
        offsets: dict[TopicPartition, int | None] = {}
        for topic, partition in keys:
            try:
                with exits_as_errors():
                    offsets[topic, partition] = self._store.load(topic, partition)
            except Exception as error:
                _log.warning("offset not loaded, trying again partition=%s/%s error=%r", topic, partition, error)
        return offsets

    def release(self, keys: Collection[TopicPartition]) -> None:
        """Release partitions: stop delivery, store their progress, then delete the owner nodes. A partition whose
        listener is running is released by finish_releases() after it returned.

        Raises ZooKeeperError; call finish_releases() again then.
        """
        self._fetcher.withdraw(keys, PartitionEvent.REVOKE)
        self.finish_releases(())

    def finish_releases(self, wanted: Iterable[TopicPartition]) -> bool:
        """Finish releases, and abandon what may still be claimed, except the *wanted* ones. Raises as release.

        Returns True once everything is released.
        """
        if leaving := self._assignments.leaving():
            self.commit()
            self._tracker.disown([it.key for it in leaving])
            self._ownership.release_many({it.key: it.claimed for it in leaving if it.claimed is not None})
            self._assignments.released(leaving)
        if doubtful := self._uncertain.difference(wanted, self._assignments.held()):
            self._ownership.abandon_many(doubtful)
            self._uncertain -= doubtful
        return self._assignments.held().keys() == self._assignments.assigned()

    def drop_all(self) -> set[TopicPartition]:
        """Drop everything after the session has ended, and its owner nodes with it: another member may own our
        partitions already, so progress is not stored, and unstored messages are delivered again. Returns the dropped
        partitions."""
        dropped = set(self._assignments.held())
        self._discard(dropped)
        self._dropped |= dropped
        return dropped

    def release_stale(self, key: TopicPartition, epoch: int, epoch_seen: int) -> bool:
        """Give up a partition: a broker refused *epoch*, because it has seen *epoch_seen*. A new claim shows the owner;
        if it is ours after all, as after a loss of ZooKeeper's tree, its epoch exceeds *epoch_seen*. False:
        outdated."""
        if (request := self._assignments.get(key)) is None or request.epoch != epoch:
            return False
        self._epochs_min[key] = epoch_seen + 1
        self.reclaim([key])
        return True

    def reclaim(self, keys: Collection[TopicPartition]) -> None:
        """Give up these partitions, to be claimed again."""
        self._lost |= set(keys)
        self._discard(keys)

    def take_lost(self) -> set[TopicPartition]:
        """Return the partitions lost to other members since the last call."""
        lost, self._lost = self._lost, set()
        return lost

    def commit(self) -> None:
        """Store progress. A failure is logged: the progress is kept for the next time, and a crash or a release causes
        a second delivery at worst.

        Stores nothing while the ownership is uncertain, as after a suspend: ZooKeeper would refuse it, but a database
        knows no owners, and the group's offset may have been moved meanwhile.
        """
        if not self._may_commit():
            return
        try:
            self._tracker.commit(self._store)
        except OwnershipLost as error:
            _log.warning("progress not stored, it is another member's error=%s", error)
            self.reclaim(error.partitions)
        except Exception as error:  # a user's store may raise anything
            _log.warning("offsets not committed, trying again later error=%r", error)

    def _discard(self, keys: Collection[TopicPartition]) -> None:
        """Drop partitions without waiting for running listeners, whose progress is not stored."""
        self._tracker.disown(keys)
        self._fetcher.withdraw(keys, PartitionEvent.LOSE)
        # Owner nodes of ours may be left, which only we can delete: a broker may have told of an epoch that ended with
        # ZooKeeper's tree, and after a loss of the session a concurrent claim may have succeeded in the new one.
        self._uncertain |= set(keys)
