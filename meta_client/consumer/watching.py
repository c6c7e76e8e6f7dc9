"""Watchdog of a running member: reads the owners from ZooKeeper, and logs findings.

The group's thread only, except `current`.
"""

import logging
import time
from collections.abc import Mapping

from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.fetcher import Fetcher
from meta_client.consumer.owned_partitions import OwnedPartitions
from meta_client.consumer.rebalance_plan import GroupSnapshot, Member
from meta_client.consumer.watchdog import Cure, PartitionFinding, Watchdog
from zk.groups.ownership import read_owned
from zk.groups.strategy import LoadBalanceStrategy
from zk.session.session import ZooKeeperSession
from zk.tree.nodes import Partition, TopicPartition

CHECKS = 4  # per watchdog_s
TAKEOVER_S = 2.0  # allowance for the rebalance after a dead member's session has ended

_log = logging.getLogger(__name__)


class Watching:
    """Runs the watchdog several times per `watchdog_s`, with one request per topic."""

    def __init__(
        self,
        session: ZooKeeperSession,
        member: Member,
        strategy: LoadBalanceStrategy,
        owned: OwnedPartitions,
        fetcher: Fetcher,
        config: ConsumerConfig,
    ) -> None:
        self._session = session
        self._member = member
        self._strategy = strategy
        self._owned = owned
        self._fetcher = fetcher
        self._period_s = config.watchdog_s / CHECKS
        still_s = config.watchdog_s + config.fetch_wait_s + config.fetch_timeout_s  # a long poll is no lack of progress
        self._unowned_s = session.session_timeout_s + TAKEOVER_S
        self._watchdog = Watchdog(still_s, self._unowned_s)
        self._call_at = 0.0
        self.check_at = time.monotonic() + self._period_s

    def current(self) -> tuple[PartitionFinding, ...]:
        """Return the current findings. Any thread."""
        return self._watchdog.current()

    def maybe_check(self, snapshot: GroupSnapshot | None) -> dict[Cure, list[TopicPartition]]:
        """Run the watchdog if due, and log each new finding; return the partitions to cure. Raises ZooKeeperError."""
        if time.monotonic() < self.check_at:
            return {}
        self.check_at = time.monotonic() + self._period_s
        if snapshot is None or not self._session.lease.is_valid():
            return {}  # ownership is uncertain: logged elsewhere, and soon over
        owned = {topic: read_owned(self._session, self._member.group, topic) for topic in snapshot.partitions}
        ours = self._owned.keys()
        ownerless = {(topic, partition) for topic, partition in ours if partition not in owned.get(topic, ())}
        unowned = self._unowned(snapshot, owned) | self._blocked(snapshot)
        cures: dict[Cure, list[TopicPartition]] = {}
        for finding in self._watchdog.update(time.monotonic(), self._fetcher.statuses(), unowned, ownerless):
            _log.warning(
                "watchdog: %s group=%s partition=%s/%s cure=%s",
                *(finding.text, self._member.group, *finding.key, finding.cure.value),
            )
            cures.setdefault(finding.cure, []).append(finding.key)
        # Repeated while the finding lasts: a called member may fail again.
        if time.monotonic() >= self._call_at:
            cures[Cure.CALL] = [finding.key for finding in self.current() if finding.cure is Cure.CALL]
            self._call_at = time.monotonic() + self._unowned_s if cures[Cure.CALL] else self._call_at
        return cures

    def _unowned(
        self, snapshot: GroupSnapshot, owned: Mapping[str, frozenset[Partition]]
    ) -> dict[TopicPartition, tuple[str, Cure]]:
        """Return the unowned partitions that this member reports: those of its own share, and those of another member's
        share if it is the first of the others, so that each is reported once."""
        told, ours = dict[TopicPartition, tuple[str, Cure]](), self._owned.keys()
        for topic, partitions in snapshot.partitions.items():
            missing = [p for p in partitions if p not in owned[topic] and (topic, p) not in ours]
            consumers = snapshot.consumers.get(topic, ()) if missing else ()
            for consumer in consumers:
                teller = next((other for other in consumers if other != consumer), consumer)
                for partition in set(self._strategy(consumer, consumers, partitions)).intersection(missing):
                    if consumer == self._member.consumer_id:
                        text = "nobody owns it, and it is this consumer's share: claiming it"
                        told[topic, partition] = text, Cure.REBALANCE
                    elif teller == self._member.consumer_id:
                        text = f"nobody owns it: look why {consumer} does not, or restart that one"
                        told[topic, partition] = text, Cure.CALL
        return told

    def _blocked(self, snapshot: GroupSnapshot) -> dict[TopicPartition, tuple[str, Cure]]:
        """Return the partitions of our share that another member does not release."""
        told: dict[TopicPartition, tuple[str, Cure]] = {}
        for (topic, partition), owner in self._owned.blocked.items():
            if owner in snapshot.consumers.get(topic, ()):
                text = f"{owner} holds this consumer's share: see what its listener waits for, or restart it"
            else:
                text = f"{owner} holds this consumer's share and is no member of the group any more: end that process"
            told[topic, partition] = text, Cure.NONE
        return told
