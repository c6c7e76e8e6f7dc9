"""Reads the cluster: the brokers that are up, and the partitions of a topic they offer (spec 6.6).

First the pure functions over what was read, then the readers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from zk.errors import RefusedNode
from zk.session.session import ZooKeeperSession
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import BrokerName, Partition, TopicNode, decode_broker_url, decode_topic_node, string_order
from zk.tree.paths import BrokerKey, BrokerNode, PresenceKey, TopicKind, TopicParentKey, is_name


@dataclass(frozen=True, slots=True)
class BrokerEntry:
    """The brokers of one broker id that are up: at most one master, and slaves by id."""

    master: BrokerUrl | None = None
    slaves: Mapping[int, BrokerUrl] = field(default_factory=dict)


BrokerEntries = Mapping[int, BrokerEntry]
"""Every broker id with at least one broker up. Clients reconnect only when two views differ (spec 9.3)."""

TopicBrokers = Mapping[BrokerName, TopicNode]
"""The children of one topics-pub/T or topics-sub/T, decoded."""


def publishable_partitions(publishers: TopicBrokers) -> list[Partition]:
    """Return the partitions a producer may choose from, sorted: those of masters."""
    return sorted(
        Partition(name.broker_id, number)
        for name, node in publishers.items()
        if name.slave_id is None
        for number in range(node.partitions)
    )


def subscribable_partitions(subscribed: TopicBrokers) -> list[Partition]:
    """Return the partitions that a group divides, of masters and slaves, each once, in string order."""
    found = {
        Partition(name.broker_id, number) for name, node in subscribed.items() for number in range(node.partitions)
    }
    return sorted(found, key=string_order)


def master_urls(publishers: TopicBrokers, brokers: BrokerEntries) -> dict[int, BrokerUrl]:
    """Return the URLs of the masters that are up and accept messages of a topic, by broker id."""
    return {
        name.broker_id: master
        for name in publishers
        if name.slave_id is None
        and (entry := brokers.get(name.broker_id)) is not None
        and (master := entry.master) is not None
    }


def known_broker_ids(session: ZooKeeperSession) -> set[int]:
    """Return every broker id that has a node, up or not: metaq's own, the replication node and the journal's, outlive
    the broker, and its address may. Raises ZooKeeperUnavailable."""
    paths = session.paths
    own, journals = f"{paths.root}/metaq/brokers", f"{paths.root}/metaq/journals"
    nodes = [paths.maybe_parse(f"{paths.brokers}/{child}") for child in session.children(paths.brokers)]
    nodes += [paths.maybe_parse(f"{own}/{child}/replication") for child in session.children(own)]
    nodes += [paths.maybe_parse(f"{journals}/{child}") for child in session.children(journals)]
    return {node.broker_id for node in nodes if isinstance(node, BrokerKey)}


def read_brokers(session: ZooKeeperSession) -> dict[int, BrokerEntry]:
    """Read all brokers that are up. Omits one that goes meanwhile, and skips malformed nodes: `session.malformed` has
    them."""
    paths = session.paths
    places = [paths.maybe_parse(f"{paths.brokers}/{child}") for child in session.children(paths.brokers)]
    wanted: dict[str, BrokerName] = {}
    for place in places:
        if isinstance(place, BrokerKey):
            try:
                wanted |= _nodes_of(session, place.broker_id)
            except RefusedNode as error:
                session.malformed.skip(error)
    return _entries(wanted, session.malformed.read(session.read_readable, wanted, decode_broker_url))


def read_broker(session: ZooKeeperSession, broker_id: int) -> BrokerEntry:
    """Read the brokers of one id, strictly. Raises MalformedNode, RefusedNode."""
    wanted = _nodes_of(session, broker_id)
    urls = {path: decode_broker_url(path, node.data) for path, node in session.read_many(wanted).items()}
    return _entries(wanted, urls).get(broker_id, BrokerEntry())


def _nodes_of(session: ZooKeeperSession, broker_id: int) -> dict[str, BrokerName]:
    paths = session.paths
    parent = paths.of(BrokerKey(BrokerNode.ADDRESS, broker_id))
    places = {path: paths.maybe_parse(path) for path in (f"{parent}/{child}" for child in session.children(parent))}
    return {path: place.name for path, place in places.items() if isinstance(place, PresenceKey)}


def _entries(wanted: Mapping[str, BrokerName], urls: Mapping[str, BrokerUrl | None]) -> dict[int, BrokerEntry]:
    masters: dict[int, BrokerUrl] = {}
    slaves: dict[int, dict[int, BrokerUrl]] = {}
    for path, url in urls.items():
        if url is None:
            continue
        name = wanted[path]
        if name.slave_id is None:
            masters[name.broker_id] = url
        else:
            slaves.setdefault(name.broker_id, {})[name.slave_id] = url
    return {
        broker_id: BrokerEntry(masters.get(broker_id), slaves.get(broker_id, {}))
        for broker_id in sorted(masters.keys() | slaves.keys())
    }


def read_topic(session: ZooKeeperSession, kind: TopicKind, topic: str) -> dict[BrokerName, TopicNode]:
    """Read the brokers of a topic: TopicKind.PUB for producers, SUB for consumers.

    Ignores children that are no brokers; skips malformed nodes: `session.malformed` has them. Raises InvalidName.
    """
    assert kind is not TopicKind.LEGACY, "those hold a plain number, for clients before 1.4.3"
    parent = session.paths.of(TopicParentKey(kind, topic))
    try:
        children = session.children(parent)
    except RefusedNode as error:
        session.malformed.skip(error)
        return {}
    wanted = {f"{parent}/{name}": name for child in children if (name := BrokerName.maybe_parse(child)) is not None}

    def decode(path: str, data: bytes) -> TopicNode:
        return decode_topic_node(path, data, wanted[path])

    found = session.malformed.read(session.read_readable, wanted, decode)
    return {wanted[path]: node for path, node in found.items()}


def read_topic_names(session: ZooKeeperSession) -> list[str]:
    """Return all topics that ever had a publisher or a subscriber, sorted."""
    found = {topic for kind in (TopicKind.PUB, TopicKind.SUB) for topic in session.children(session.paths.topics(kind))}
    return sorted(filter(is_name, found))  # a longer name can't be a topic
