"""A client without ZooKeeper: brokers listed by hand, asked what they have."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.records.xid import Xid
from meta_client.client import Client
from meta_client.errors import NoBroker, NoPartition, NotConnected, NotSupported
from meta_client.metadata import direct
from meta_client.producer.partitioners import ByAttribute
from meta_client.protocol.errors import XaError
from meta_client.protocol.requests import Put, Request, Stats, Version
from meta_client.protocol.xa import XaCode
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.meta_client.peer import listening, ok
from zk.errors import ZooKeeperUnavailable
from zk.tree.broker_url import InvalidUrl
from zk.tree.nodes import Partition


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BrokerProcess]]:
    """Two without ZooKeeper."""
    with contextlib.ExitStack() as stack:
        directory: Path = tmp_path_factory.mktemp("direct")
        yield [
            stack.enter_context(running_broker(directory / str(broker_id), None, broker_id=broker_id, config=CONFIG))
            for broker_id in (0, 1)
        ]


@pytest.fixture
def client(brokers: list[BrokerProcess]) -> Iterator[Client]:
    with Client.direct(*(broker.url for broker in brokers)) as it:
        yield it


def test_everything_but_groups(client: Client) -> None:
    producer = client.producer(qualifier="direct")
    assert len(producer.partitions("orders")) == 8
    assert {producer.send("orders", b"").partition.broker_id for _ in range(8)} == {0, 1}
    assert producer.send_async("orders", b"", partition="1-2").result(60).partition == Partition(1, 2)
    keyed = client.producer(partitioner=ByAttribute())
    assert len({keyed.send("orders", b"", attribute="a").partition for _ in range(5)}) == 1
    with producer.transaction():
        assert producer.send("invoices", b"").offset is None
    xid = Xid.of("direct", "1")
    producer.tpc_begin(xid, ["orders", "invoices"])
    producer.send("orders", b"")
    assert producer.tpc_prepare()
    assert client.producer(qualifier="direct").tpc_recover() == [xid]
    producer.tpc_commit()
    assert producer.partitions("dynamic-7") == tuple(Partition(b, n) for b in (0, 1) for n in (0, 1))
    with pytest.raises(NoPartition, match="no broker offers this topic"):
        producer.send("nothing", b"")
    with pytest.raises(NotSupported, match="no ZooKeeper, which groups"):
        client.consumer("g")


def test_a_broker_that_goes_and_comes(client: Client, brokers: list[BrokerProcess]) -> None:
    producer = client.producer(qualifier="other")
    producer.send("orders", b"")
    brokers[1].kill()
    assert {producer.send("orders", b"").partition.broker_id for _ in range(8)} == {0}
    with pytest.raises(NoBroker, match=r"orders/1-0.*not sent within 0\.3 s"):
        producer.send("orders", b"", partition="1-0", timeout_s=0.3)
    with pytest.raises(XaError) as caught:
        producer.tpc_recover()
    assert caught.value.code == XaCode.XAER_RMFAIL
    brokers[1].start()
    assert producer.send("orders", b"", partition="1-0", timeout_s=60).partition == Partition(1, 0)
    assert producer.tpc_recover() == []


def test_one_that_is_away_from_the_beginning(brokers: list[BrokerProcess]) -> None:
    with Client.direct(brokers[0].url, "127.0.0.1:1") as client:
        producer = client.producer(qualifier="third")
        assert {partition.broker_id for partition in producer.partitions("orders")} == {0}
        producer.tpc_begin(Xid.of("direct", "2"))
        producer.tpc_rollback()
        with pytest.raises(XaError, match=r"broker at meta://127\.0\.0\.1:1: no connection"):
            producer.tpc_recover()


def test_a_default_topic(brokers: list[BrokerProcess]) -> None:
    with Client.direct(brokers[0].url, default_topic="meta-test") as client:
        assert client.producer().partitions("nothing") == (Partition(0, 0),)


def test_lists_that_make_no_sense(brokers: list[BrokerProcess]) -> None:
    with pytest.raises(NotConnected, match=r"broker at meta://127\.0\.0\.1:1: no connection.*is the broker up"):
        Client.direct("127.0.0.1:1")
    with pytest.raises(NotConnected, match="name one as host:port"):
        Client.direct()
    with pytest.raises(InvalidUrl, match="is not meta://"):
        Client.direct("localhost")
    port = brokers[0].port
    with pytest.raises(NotConnected, match="are both broker 0: list each broker once"):
        Client.direct(f"127.0.0.1:{port}", f"localhost:{port}")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"STATS\r\nEND\r\n", "no sound broker_id"),
        (b"broker_id -4", "no sound broker_id"),
        (b"broker_id 99999999999", "no sound broker_id"),
        (b"broker_id 0\r\nslave true", "it is a slave: name its master"),
    ],
)
def test_what_a_peer_says_of_itself_is_checked(text: bytes, error: str) -> None:
    with listening(lambda request: ok(request, text)) as peer, pytest.raises(NotConnected, match=error):
        Client.direct(str(peer.url))


def test_a_genuine_broker() -> None:
    def genuine(request: Request) -> bytes:
        match request:
            case Stats(item=""):
                return ok(request, b"STATS\r\npid 1\r\nbroker_id 7\r\nslave false\r\nEND\r\n")
            case Stats(item="orders"):
                return ok(request, b"STATS\r\norders\r\nresultCode 2\r\npartitions 3\r\nEND\r\n")
            case Put():
                return ok(request, b"5 %d 0" % request.partition)
            case Version():
                return ok(request, b"1.4.6")
        return ok(request, b"STATS\r\nx\r\nresultCode 1\r\nEND\r\n")

    with listening(genuine) as peer, Client.direct(str(peer.url)) as client:
        producer = client.producer()
        assert [str(producer.send("orders", b"").partition) for _ in range(3)] == ["7-1", "7-2", "7-0"]
        with pytest.raises(NoPartition):
            producer.send("other", b"")


def test_a_view_that_is_due_is_the_former_one_while_brokers_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "REFRESH_S", 0.0)
    is_asked, may_answer = threading.Event(), threading.Event()

    def handle(request: Request) -> bytes:
        if isinstance(request, Stats) and request.item == "slow":
            is_asked.set()
            assert may_answer.wait(60)
        topic = b"x\r\nresultCode 2\r\npartitions 3" if isinstance(request, Stats) and request.item else b"broker_id 7"
        return ok(request, b"STATS\r\n%b\r\nEND\r\n" % topic)

    with listening(handle) as peer, Client.direct(str(peer.url)) as client:
        view = client.topology.view("orders", 60)
        assert client.topology.view("orders", 60) is view, "producers tell a change by the object"
        asking = threading.Thread(target=client.topology.view, args=("slow", 60))
        asking.start()
        assert is_asked.wait(60)
        assert client.topology.view("orders", 0.01) is view
        with pytest.raises(ZooKeeperUnavailable, match=r"no answer about topic 'new' within 0\.01 s: try again"):
            client.topology.view("new", 0.01)
        monkeypatch.undo()  # two that wait for the same topic
        both = [asking, *(threading.Thread(target=client.topology.view, args=("fresh", 60)) for _ in range(2))]
        for thread in both[1:]:
            thread.start()
        time.sleep(0.05)  # that they wait, mostly
        may_answer.set()
        for thread in both:
            thread.join()
        assert sum(isinstance(it, Stats) and it.item == "fresh" for it in peer.received) == 1
        monkeypatch.setattr(direct, "REFRESH_S", 0.0)
        client.topology.view("orders", 60)
        peer.close()
        with pytest.raises(ZooKeeperUnavailable, match=r"no broker answered about topic 'new' within 0\.3 s"):
            client.topology.view("new", 0.3)
        after = client.topology.view("orders", 0.3)
        assert (after.partitions, after.known) == ((), view.known), "its partitions may come back"
