"""Reading the cluster: numeric order for producers, string order for consumers, absent and odd nodes."""

from collections.abc import Callable

import pytest

from zk.brokers.cluster import (
    BrokerEntry,
    master_urls,
    publishable_partitions,
    read_brokers,
    read_topic,
    read_topic_names,
    subscribable_partitions,
)
from zk.brokers.registration import BrokerRegistration, TopicRegistration
from zk.errors import MalformedNode
from zk.session.session import ZooKeeperSession
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import BrokerName, Partition, TopicNode
from zk.tree.paths import TopicKind


def nodes(**partitions_by_name: int) -> dict[BrokerName, TopicNode]:
    found = {}
    for name, partitions in partitions_by_name.items():
        broker = BrokerName.maybe_parse(name.removeprefix("b").replace("_", "-"))
        assert broker is not None
        found[broker] = TopicNode(partitions, broker)
    return found


def test_partitions_of_a_topic() -> None:
    found = nodes(b10_m=1, b2_m=12, b2_s0=12, b3_s1=1)
    assert publishable_partitions(found) == [*(Partition(2, n) for n in range(12)), Partition(10, 0)]
    assert [str(p) for p in subscribable_partitions(found)] == [
        *("10-0", "2-0", "2-1", "2-10", "2-11", "2-2", "2-3", "2-4", "2-5", "2-6", "2-7", "2-8", "2-9", "3-0")
    ]


def test_masters_of_a_topic() -> None:
    brokers = {0: BrokerEntry(BrokerUrl("h", 1)), 1: BrokerEntry(None, {0: BrokerUrl("h", 2)})}
    assert master_urls(nodes(b0_m=1, b1_m=1, b1_s0=1, b2_m=1), brokers) == {0: BrokerUrl("h", 1)}


def test_an_empty_tree(session: ZooKeeperSession) -> None:
    assert read_brokers(session) == {}
    assert read_topic(session, TopicKind.PUB, "t") == {}
    assert read_topic_names(session) == []


def test_what_brokers_registered_is_read_back(
    session: ZooKeeperSession, open_session: Callable[..., ZooKeeperSession]
) -> None:
    topics = {"t": TopicRegistration(2), "quiet": TopicRegistration(1, accept_publish=False)}
    other = open_session()
    BrokerRegistration(session, BrokerName(0), BrokerUrl("10.0.0.9", 8123), topics=topics).register()
    BrokerRegistration(other, BrokerName(0, 1), BrokerUrl("10.0.0.10", 8123), topics=topics).register()
    session.write("/meta/brokers/ids/7", b"meta://crashed:8123")  # stays after a crash, means nothing
    session.write("/meta/brokers/ids/8/master", b" ")  # blank: no master
    session.create("/meta/brokers/ids/" + "9" * 5_000)
    session.write("/meta/brokers/topics-pub/t/odd", b"not json")
    both = {0: BrokerEntry(BrokerUrl("10.0.0.9", 8123), {1: BrokerUrl("10.0.0.10", 8123)})}
    assert read_brokers(session) == both
    assert read_topic(session, TopicKind.PUB, "t") == nodes(b0_m=2, b0_s1=2)
    assert read_topic(session, TopicKind.PUB, "quiet") == {}
    assert read_topic(session, TopicKind.SUB, "quiet") == nodes(b0_m=1, b0_s1=1)
    assert read_topic_names(session) == ["quiet", "t"]


def test_a_broken_node_is_named(session: ZooKeeperSession) -> None:
    session.write("/meta/brokers/topics-sub/t/0-m", b"{}")
    with pytest.raises(MalformedNode, match=r"/meta/brokers/topics-sub/t/0-m holds b'\{\}'"):
        read_topic(session, TopicKind.SUB, "t")
    session.write("/meta/brokers/ids/0/master", b"http://h:1")
    with pytest.raises(MalformedNode, match="/meta/brokers/ids/0/master holds"):
        read_brokers(session)
