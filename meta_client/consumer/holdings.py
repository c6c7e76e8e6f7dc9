"""What a member owns: claimed in ZooKeeper, fetched, and its progress stored (spec 9.3, 9.4).

The group's thread alone, but for keys().
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.fetch_request import FetchRequest
from meta_client.consumer.fetcher import Fetcher
from meta_client.consumer.offsets import ManyOffsets, OffsetStore, OffsetTracker
from meta_client.consumer.plan import TopicPartition
from meta_client.consumer.subscription import Subscription
from meta_client.errors import OwnershipLost
from zk.claims import Claimed, OwnedBy
from zk.ownership import Ownership

_log = logging.getLogger(__name__)


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
        may_store: Callable[[], bool],
    ) -> None:
        """*may_store* is asked before progress is stored: whether what is owned is ours for sure."""
        self._ownership = ownership
        self._may_store = may_store
        self._fetcher = fetcher
        self._tracker = tracker
        self._store = store
        self._subscriptions = subscriptions
        self._config = config
        self._claims: dict[TopicPartition, Claimed] = {}  # swapped whole
        self._leaving: dict[TopicPartition, Claimed] = {}  # not fetched any more, owner nodes not deleted yet
        self._uncertain: set[TopicPartition] = set()  # ZooKeeper did not say whether a claim was done
        self._lost: set[TopicPartition] = set()  # another member's since, see take_lost
        self.blocked: dict[TopicPartition, str] = {}  # by whom, of what the last claim did not get
        self._epochs_min: dict[TopicPartition, int] = {}  # what a broker has seen of those that we lost

    def keys(self) -> Collection[TopicPartition]:
        """What is owned now. Any thread."""
        return self._claims.keys()

    def claim(self, keys: Collection[TopicPartition]) -> set[TopicPartition]:
        """Own partitions and begin to fetch them. Returns those that are ours now: for the others ask again.

        Raises ZooKeeperError; then ask again, or call settle().
        """
        wanted = [key for key in keys if key not in self._leaving]
        self._uncertain |= set(wanted)
        outcomes = self._ownership.claim_many(wanted, self._epochs_min)
        self._uncertain -= set(wanted)
        for key in outcomes:
            self._epochs_min.pop(key, None)
        self.blocked = {key: outcome.consumer_id for key, outcome in outcomes.items() if isinstance(outcome, OwnedBy)}
        claims = {key: outcome for key, outcome in outcomes.items() if isinstance(outcome, Claimed)}
        offsets = self._load(claims)
        self._leaving |= {key: claimed for key, claimed in claims.items() if key not in offsets}
        for key in offsets:
            self._tracker.own(*key, claims[key])
        self._claims = self._claims | {key: claims[key] for key in offsets}
        self._fetcher.assign(
            [
                (self._request(key, offset, claims[key]), self._subscriptions[key[0]].new_delivery())
                for key, offset in offsets.items()
            ]
        )
        self.settle(())
        return set(offsets)

    def _load(self, keys: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Where to go on, None: wherever one begins. Of what is left out, nobody knows: there is nothing to do here."""
        if isinstance(self._store, ManyOffsets) and keys:
            try:
                found = self._store.load_many(keys)
                return {key: found.get(key) for key in keys}
            except Exception as error:  # the store may be the user's, and raise anything
                _log.warning("offsets not loaded together, trying one by one error=%r", error)
        offsets: dict[TopicPartition, int | None] = {}
        for topic, partition in keys:
            try:
                offsets[topic, partition] = self._store.load(topic, partition)
            except Exception as error:
                _log.warning("offset not loaded, trying again partition=%s/%s error=%r", topic, partition, error)
        return offsets

    def _request(self, key: TopicPartition, offset: int | None, claimed: Claimed) -> FetchRequest:
        bytes_max = self._subscriptions[key[0]].bytes_max
        request = FetchRequest(*key, offset or 0, bytes_max, self._config.rest_s_max, claimed.epoch)
        if offset is None or self._config.starts_anew:
            request.begin_at(self._config.start)
        return request

    def release(self, keys: Collection[TopicPartition]) -> None:
        """Let partitions go: first nothing of them is delivered any more, then their progress is stored, then
        another member may have them. One whose listener is at work goes when settle() is called after it returned.

        Raises ZooKeeperError; then settle() has to be called again."""
        self._fetcher.withdraw(keys)
        self._leaving |= {key: self._claims[key] for key in keys}
        self._claims = {key: claimed for key, claimed in self._claims.items() if key not in self._leaving}
        self.settle(())

    def settle(self, wanted: Iterable[TopicPartition]) -> bool:
        """Finish what release() could not, and take back claims that nobody needs to know about: those whose answer
        was lost, but for the *wanted* ones. Raises as release.

        Returns whether everything that had to go is gone.
        """
        if ready := {key: claimed for key, claimed in self._leaving.items() if not self._fetcher.is_delivering(key)}:
            self.commit()
            self._tracker.disown(ready)
            self._ownership.release_many(ready)
            self._leaving = {key: claimed for key, claimed in self._leaving.items() if key not in ready}
        if doubtful := self._uncertain.difference(wanted, self._claims, self._leaving):
            self._ownership.abandon_many(doubtful)
            self._uncertain -= doubtful
        return not self._leaving

    def drop(self) -> set[TopicPartition]:
        """The session is over, and its owner nodes with it: another member may own our partitions already, so
        nothing is stored, and what was not is delivered again. Returns which there were."""
        dropped = {*self._claims, *self._leaving}
        self._forget(dropped)
        # What was being claimed meanwhile may have become the new session's, and nobody else's to take.
        self._uncertain |= dropped
        return dropped

    def lose_stale(self, key: TopicPartition, epoch: int, epoch_seen: int) -> bool:
        """A broker refused *epoch*, because it has seen *epoch_seen*: whose the partition is, a claim will show; if it
        is ours after all, as when ZooKeeper's tree was lost, that goes above what the broker has seen. False: this is
        old news."""
        if (claimed := self._claims.get(key)) is None or claimed.epoch != epoch:
            return False
        self._epochs_min[key] = epoch_seen + 1
        self._forfeit([key])
        return True

    def give_up(self, keys: Collection[TopicPartition]) -> None:
        """Something is wrong with these partitions: they have to be claimed anew."""
        self._uncertain |= set(keys)
        self._forfeit(keys)

    def _forfeit(self, keys: Collection[TopicPartition]) -> None:
        self._lost |= set(keys)
        self._forget(keys)

    def take_lost(self) -> set[TopicPartition]:
        """What turned out to be another member's since this was asked last: it is ours no longer."""
        lost, self._lost = self._lost, set()
        return lost

    def commit(self) -> None:
        """Store progress. A failure is logged: the progress is kept for the next time, and the worst that a crash
        or a release can make of it is a second delivery.

        Nothing is stored while we may have been given up without knowing it, after a sleep say: ZooKeeper would
        refuse it, but a database knows of no owners, and somebody may have set the group elsewhere meanwhile.
        """
        if not self._may_store():
            return
        try:
            self._tracker.commit(self._store)
        except OwnershipLost as error:
            _log.warning("progress not stored, it is another member's error=%s", error)
            self._forfeit(error.partitions)
        except Exception as error:  # the user's store may raise anything
            _log.warning("offsets not committed, trying again later error=%r", error)

    def _forget(self, keys: Collection[TopicPartition]) -> None:
        """A listener that is at work is not waited for: what it does is not stored."""
        gone = set(keys)
        self._claims = {key: claimed for key, claimed in self._claims.items() if key not in gone}
        self._leaving = {key: claimed for key, claimed in self._leaving.items() if key not in gone}
        self._tracker.disown(gone)
        self._fetcher.withdraw(gone)
