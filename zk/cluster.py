"""Reading the cluster: which brokers there are, and which partitions of a topic they offer (spec 6.6).

First the pure part, over what was read; then the readers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from zk.broker_url import BrokerUrl
from zk.nodes import BrokerName, Partition, TopicNode, decode_broker_url, decode_topic_node, string_order
from zk.paths import Broker, Master, Slave, TopicBroker, TopicKind, TopicParent, slave_id_of
from zk.session import ZooKeeperSession


@dataclass(frozen=True, slots=True)
class BrokerEntry:
    """The brokers of one broker id that are up: at most one master, and slaves by id."""

    master: BrokerUrl | None = None
    slaves: Mapping[int, BrokerUrl] = field(default_factory=dict)


Brokers = Mapping[int, BrokerEntry]
"""Every broker id with at least one broker up. Two equal views mean: reconnect to nobody (spec 9.3)."""

TopicBrokers = Mapping[BrokerName, TopicNode]
"""What the brokers below one topics-pub/T or topics-sub/T say."""


def publishable_partitions(publishers: TopicBrokers) -> list[Partition]:
    """Partitions a producer may choose from: the masters' alone, by number."""
    return sorted(
        Partition(name.broker_id, number)
        for name, node in publishers.items()
        if name.slave_id is None
        for number in range(node.partitions)
    )


def subscribable_partitions(subscribed: TopicBrokers) -> list[Partition]:
    """Partitions a group shares out: masters' and slaves', each once, in the order of their names."""
    found = {
        Partition(name.broker_id, number) for name, node in subscribed.items() for number in range(node.partitions)
    }
    return sorted(found, key=string_order)


def master_urls(publishers: TopicBrokers, brokers: Brokers) -> dict[int, BrokerUrl]:
    """Where to send messages of a topic, by broker id: its publishing masters that are up."""
    return {
        name.broker_id: master
        for name in publishers
        if name.slave_id is None
        and (entry := brokers.get(name.broker_id)) is not None
        and (master := entry.master) is not None
    }


def read_brokers(session: ZooKeeperSession) -> dict[int, BrokerEntry]:
    """Read all brokers that are up. A broker that vanishes meanwhile is left out. Raises MalformedNode."""
    paths = session.paths
    places = [paths.maybe_parse(f"{paths.brokers}/{child}") for child in session.children(paths.brokers)]
    ids = [place.broker_id for place in places if isinstance(place, Broker)]
    wanted: dict[str, Master | Slave] = {}
    for broker_id in ids:
        for child in session.children(paths.of(Broker(broker_id))):
            if child == "master":
                wanted[paths.of(Master(broker_id))] = Master(broker_id)
            elif (slave_id := slave_id_of(child)) is not None:
                wanted[paths.of(Slave(broker_id, slave_id))] = Slave(broker_id, slave_id)
    masters: dict[int, BrokerUrl] = {}
    slaves: dict[int, dict[int, BrokerUrl]] = {}
    for path, node in session.read_many(wanted).items():
        if (url := decode_broker_url(path, node.data)) is None:
            continue
        match wanted[path]:
            case Master(broker_id):
                masters[broker_id] = url
            case Slave(broker_id, slave_id):
                slaves.setdefault(broker_id, {})[slave_id] = url
    return {
        broker_id: BrokerEntry(masters.get(broker_id), slaves.get(broker_id, {}))
        for broker_id in sorted(masters.keys() | slaves.keys())
    }


def read_topic(session: ZooKeeperSession, kind: TopicKind, topic: str) -> dict[BrokerName, TopicNode]:
    """Read what the brokers offer of a topic: TopicKind.PUB for producers, SUB for consumers.

    Children that are no brokers are ignored. Raises MalformedNode.
    """
    assert kind is not TopicKind.LEGACY, "those hold a plain number, for clients before 1.4.3"
    names = [
        name
        for child in session.children(session.paths.of(TopicParent(kind, topic)))
        if (name := BrokerName.maybe_parse(child)) is not None
    ]
    wanted = {session.paths.of(TopicBroker(kind, topic, name)): name for name in names}
    return {
        wanted[path]: decode_topic_node(path, node.data, wanted[path])
        for path, node in session.read_many(wanted).items()
    }


def read_topic_names(session: ZooKeeperSession) -> list[str]:
    """Every topic that ever had a publisher or a subscriber, by name."""
    return sorted(
        {topic for kind in (TopicKind.PUB, TopicKind.SUB) for topic in session.children(session.paths.topics(kind))}
    )
