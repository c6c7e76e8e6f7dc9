"""Rows of a topic's brokers, as ZooKeeper has them."""

from collections.abc import Iterable

from meta_client.client import Client
from meta_client.metadata.topology import WILDCARD_TOPIC
from zk.brokers.cluster import TopicBrokers, read_topic
from zk.tree.nodes import BrokerName
from zk.tree.paths import TopicKind


def topic_rows(client: Client, topic: str) -> Iterable[dict[str, object]]:
    """Return a row for each broker of a topic, from ZooKeeper; one without a broker if nobody offers it."""
    publishers = read_topic(client.session, TopicKind.PUB, topic)
    subscribed = read_topic(client.session, TopicKind.SUB, topic)
    rows = [_topic_row(topic, name, publishers, subscribed) for name in sorted({*publishers, *subscribed}, key=str)]
    if not rows and topic != WILDCARD_TOPIC:  # producers look that one up, whether brokers have it or not
        return [{"topic": topic, "broker": None, "partitions": 0, "publish": False, "subscribe": False}]
    return rows


def _topic_row(topic: str, name: BrokerName, publishers: TopicBrokers, subscribed: TopicBrokers) -> dict[str, object]:
    node = publishers.get(name) or subscribed[name]
    return {
        "topic": topic,
        "broker": str(name),
        "partitions": node.partitions,
        "publish": name in publishers,
        "subscribe": name in subscribed,
    }
