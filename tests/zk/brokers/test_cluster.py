"""Reading the cluster: numeric order for producers, string order for consumers, absent and odd nodes."""

import re
from collections.abc import Callable

import pytest
from kazoo.security import make_digest_acl

from zk.brokers.cluster import (
    BrokerEntry,
    master_urls,
    publishable_partitions,
    read_broker,
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


def test_a_malformed_node_costs_itself_and_is_named(session: ZooKeeperSession) -> None:
    session.write("/meta/brokers/topics-sub/t/0-m", b"{}")
    session.write("/meta/brokers/topics-sub/t/1-m", TopicNode(3, BrokerName(1)).encode())
    assert read_topic(session, TopicKind.SUB, "t") == {BrokerName(1): TopicNode(3, BrokerName(1))}
    session.write("/meta/brokers/ids/0/master", b"http://h:1")
    session.write("/meta/brokers/ids/1/master", b"meta://h:1")
    assert read_brokers(session) == {1: BrokerEntry(BrokerUrl("h", 1))}
    bad = {"/meta/brokers/topics-sub/t/0-m": r"holds b'\{\}'", "/meta/brokers/ids/0/master": "holds b'http://h:1'"}
    assert session.malformed.found.keys() == bad.keys()
    for path, text in bad.items():
        assert re.search(f"{path} {text}", str(session.malformed.found[path]))
    assert read_broker(session, 1) == BrokerEntry(BrokerUrl("h", 1))
    with pytest.raises(MalformedNode, match="/meta/brokers/ids/0/master holds"):
        read_broker(session, 0)  # who promotes a slave must not take it for a master that is away
    session.write("/meta/brokers/ids/0/master", b"meta://h:2")
    session.delete("/meta/brokers/topics-sub/t/0-m")
    assert read_brokers(session).keys() == {0, 1}
    session.write("/meta/brokers/topics-sub/t/0-m", TopicNode(3, BrokerName(0)).encode())
    read_topic(session, TopicKind.SUB, "t")
    assert session.malformed.found == {}


def test_a_node_that_access_rules_deny_costs_itself(session: ZooKeeperSession) -> None:
    session.write("/meta/brokers/ids/1/master", b"meta://h:1")
    session.ensure("/meta/brokers/ids/2")
    nobody = [make_digest_acl("stranger", "secret", all=True)]
    session._client.create("/meta/brokers/ids/2/master", b"meta://h:2", acl=nobody)
    session._client.create("/meta/brokers/ids/3", b"", acl=nobody)
    assert read_brokers(session) == {1: BrokerEntry(BrokerUrl("h", 1))}
    assert session.malformed.found.keys() == {"/meta/brokers/ids/2/master", "/meta/brokers/ids/3"}
    assert all(session.delete(path) for path in session.malformed.found)  # the fixture can't look below them
