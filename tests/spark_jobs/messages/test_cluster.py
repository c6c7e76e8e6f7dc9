"""Partitions that a cluster offers to a query, told by brokers that are none of ours, away, or come back."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from meta_client.errors import BrokerAway, ConnectionLost, NothingToRead
from meta_client.protocol.answers import PartitionOffsets
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import OffsetQuery, Request, Version
from meta_client.protocol.status import Status
from spark_jobs.messages import cluster as clusters
from spark_jobs.messages.cluster import Cluster
from spark_jobs.messages.options import ClusterAddress, InvalidOption
from spark_jobs.messages.selection import Selection
from tests.fixtures.broker import BrokerProcess
from tests.meta_client.peer import HANG_UP, Peer
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession
from zk.tree.nodes import BrokerName, TopicNode

GENUINE, AWAY, HANGS_UP = 1, 2, 3
ENDS = {0: (5, 70), 1: None}  # of the genuine broker's partitions


def genuine(request: Request) -> bytes:
    match request:
        case Version():
            return encode_result(Status.SUCCESS, b"1.4.6", request.opaque)
        case OffsetQuery(partition=partition, offset=offset):
            if (found := ENDS[partition]) is None:
                return encode_result(Status.NOT_FOUND, b"no such partition", request.opaque)
            return encode_result(Status.SUCCESS, b"%d" % found[offset != 0], request.opaque)
    raise AssertionError(request)


def hangs_up(request: Request) -> bytes:
    return genuine(request) if isinstance(request, Version) else HANG_UP


@pytest.fixture
def cluster(zookeeper: Chroot) -> Iterator[Cluster]:
    with (
        ZooKeeperSession(zookeeper.connect) as session,
        closing(Peer(genuine)) as peer,
        closing(Peer(hangs_up)) as other,
    ):
        for broker_id, topic, partitions in ((GENUINE, "plain", 2), (AWAY, "gone", 1), (HANGS_UP, "lost", 1)):
            name = BrokerName(broker_id)
            for kind in ("topics-pub", "topics-sub"):
                session.write(f"/meta/brokers/{kind}/{topic}/{name}", TopicNode(partitions, name).encode())
        session.write(f"/meta/brokers/ids/{GENUINE}/master", str(peer.url).encode())
        session.write(f"/meta/brokers/ids/{HANGS_UP}/master", str(other.url).encode())
        with Cluster(ClusterAddress(zookeeper.connect)) as found:
            yield found


def of(*topics: str) -> Selection:
    return Selection(topics=frozenset(topics))


def test_a_broker_without_the_extension_is_asked_for_begin_and_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "AT_ONCE_MAX", 1)
    found = cluster.cut(of("plain"))
    assert found.ranges == {
        ("plain", "1-0"): PartitionOffsets(5, 70, 5),
        ("plain", "1-1"): PartitionOffsets(0, 0, 0),  # no message was ever put there
    }
    assert set(found.places) == set(found.ranges)
    assert cluster.cut(Selection(pattern="pl.*")).ranges == found.ranges
    only = of("plain")
    only.ends = {("plain", "1-0"): 0}
    assert set(cluster.cut(only).ranges) == {("plain", "1-1")}
    with pytest.raises(InvalidOption, match="the broker of plain/1-0 knows no times: it is no metaq broker"):
        cluster.cut(of("plain"), time_ms=1)


def test_what_is_not_up_ends_a_batch_and_is_left_out_of_a_stream(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(NothingToRead, match="read none: no broker offers this topic"):
        cluster.cut(of("none"))
    with pytest.raises(BrokerAway, match="read gone/2-0: its broker is not up: start it, or wait"):
        cluster.cut(of("gone"))
    with pytest.raises(ConnectionLost):
        cluster.cut(of("lost"))
    assert [cluster.is_up(topic, broker_id) for topic, broker_id in (("plain", GENUINE), ("gone", AWAY))] == [
        True,
        False,
    ]
    found = cluster.cut(of("none", "gone", "lost", "plain"), may_lack=True)
    assert set(found.ranges) == {("plain", "1-0"), ("plain", "1-1")}
    assert "partitions of a broker are left out" in caplog.text


def test_without_zookeeper_topics_are_named(lone_broker: BrokerProcess) -> None:
    with Cluster(ClusterAddress(None, addresses=(lone_broker.url,))) as direct:
        found = direct.cut(of("orders"))
        assert set(found.ranges) == {("orders", f"0-{number}") for number in range(len(found.ranges))}
        assert found.ranges
        with pytest.raises(InvalidOption, match='"subscribePattern" needs "zookeeper"'):
            direct.cut(Selection(pattern=".*"))
