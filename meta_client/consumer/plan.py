"""Who takes what: the part of a rebalance that only thinks (spec 9.3 - 9.5). Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from zk.broker_url import BrokerUrl
from zk.cluster import Brokers
from zk.nodes import Partition
from zk.strategy import LoadBalanceStrategy

TopicPartition = tuple[str, Partition]


@dataclass(frozen=True, slots=True)
class Member:
    """Who we are in the group."""

    group: str
    consumer_id: str
    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A group as ZooKeeper showed it: per topic its members and its partitions, both in string order."""

    consumers: Mapping[str, Sequence[str]]
    partitions: Mapping[str, Sequence[Partition]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a member does next: let go first, so that nobody waits for it, then claim."""

    release: tuple[TopicPartition, ...]
    claim: tuple[TopicPartition, ...]


def plan_rebalance(
    snapshot: GroupSnapshot, consumer_id: str, owned: Collection[TopicPartition], strategy: LoadBalanceStrategy
) -> Plan:
    """The way from *owned* to this member's share. Same snapshot, same shares, on every member; what is owned and
    stays so is in neither list and is not interrupted."""
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


def plan_routes(brokers: Brokers) -> dict[int, BrokerUrl]:
    """Where to fetch each broker id's partitions: from its master, or while that is away from its first slave."""
    routes: dict[int, BrokerUrl] = {}
    for broker_id, entry in brokers.items():
        url = entry.master or next((entry.slaves[slave_id] for slave_id in sorted(entry.slaves)), None)
        if url is not None:
            routes[broker_id] = url
    return routes
