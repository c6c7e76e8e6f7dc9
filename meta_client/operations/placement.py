"""Brokers and partitions as a command reads them: from ZooKeeper, or with --broker from the brokers that were named.

Stands alone: seven commands share it."""

from meta_client.client import Client
from zk.brokers.cluster import BrokerEntry, known_broker_ids, read_brokers, read_topic, subscribable_partitions
from zk.tree.nodes import Partition
from zk.tree.paths import TopicKind

ANSWER_TIMEOUT_S = 10.0


def brokers_of(client: Client) -> dict[int, BrokerEntry]:
    """Return the brokers that are up, by id; without ZooKeeper, the masters that were named and answer."""
    if client.is_direct:
        return {broker_id: BrokerEntry(url) for broker_id, url in client.topology.read_masters().items()}
    return read_brokers(client.session)


def away_brokers(client: Client) -> list[int]:
    """Return the ids of known brokers that are down, with their slaves: `partitions_of` leaves their partitions out, as
    ZooKeeper does not tell which topics they have."""
    return [] if client.is_direct else sorted(known_broker_ids(client.session) - brokers_of(client).keys())


def partitions_of(client: Client, topic: str) -> list[Partition]:
    """Return the partitions of *topic* that can be read, in string order; without ZooKeeper, of the brokers named."""
    if client.is_direct:
        return sorted(client.topology.view(topic, ANSWER_TIMEOUT_S).partitions)
    return subscribable_partitions(read_topic(client.session, TopicKind.SUB, topic))
