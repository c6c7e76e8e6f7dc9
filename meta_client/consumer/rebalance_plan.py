"""Decisions of a rebalance (spec 9.3 - 9.5). Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from zk.groups.strategy import LoadBalanceStrategy
from zk.tree.nodes import Partition, TopicPartition


@dataclass(frozen=True, slots=True)
class Member:
    """Identity of a member in its group."""

    group: str
    consumer_id: str
    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """Group as read from ZooKeeper: members and partitions per topic, both in string order."""

    consumers: Mapping[str, Sequence[str]]
    partitions: Mapping[str, Sequence[Partition]]


@dataclass(frozen=True, slots=True)
class Plan:
    """Next steps of a member: release first, so that no other member waits for it, then claim."""

    release: tuple[TopicPartition, ...]
    claim: tuple[TopicPartition, ...]


def plan_rebalance(
    snapshot: GroupSnapshot, consumer_id: str, owned: Collection[TopicPartition], strategy: LoadBalanceStrategy
) -> Plan:
    """Return the steps from *owned* to this member's share. The same snapshot gives consistent shares on every member;
    partitions that stay owned are in neither list and are not interrupted."""
    share = [
        (topic, partition)
        for topic, partitions in sorted(snapshot.partitions.items())
        for partition in strategy(consumer_id, snapshot.consumers.get(topic, ()), partitions)
    ]
    wanted = set(share)
    return Plan(
        release=tuple(sorted(key for key in owned if key not in wanted)),
        claim=tuple(key for key in share if key not in owned),
    )
