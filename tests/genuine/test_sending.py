"""Java producers and metaq's brokers: results, choice of partitions, errors, transactions."""

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from meta_client.client import Client
from meta_client.protocol.requests import TopicVerb
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.topic_commands import done
from tests.genuine.conftest import OpenJava
from tests.genuine.java_client import JavaError, JavaProcess, SendRefused
from tests.integration.conftest import wait_until
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition


@pytest.fixture
def client(zookeeper: Chroot, broker: BrokerProcess) -> Iterator[Client]:
    del broker
    with Client(zookeeper.connect) as client:
        yield client


def test_a_send_tells_where_the_message_is(client: Client, open_java: OpenJava) -> None:
    producer = open_java()
    producer.ask("publish", "meta-test")
    first = producer.send("meta-test", b"hello")
    second = producer.send("meta-test", b"", attribute="tag \u4e2d")
    third = producer.send("meta-test", bytes(range(256)), attribute="")
    assert (first.partition, first.offset, second.offset) == ("0-0", 0, 25)
    found = list(client.browse("meta-test"))
    assert [(it.offset, it.message_id, it.attribute, it.payload) for it in found] == [
        (0, first.message_id, None, b"hello"),
        (25, second.message_id, "tag \u4e2d", b""),
        (second.offset + 20 + 4 + 7, third.message_id, "", bytes(range(256))),
    ]
    assert producer.browse("meta-test") == [b"hello", b"", bytes(range(256))]
    assert producer.get("meta-test", "0-0", 25) == [b"", bytes(range(256))]


def test_partitions_take_turns(client: Client, open_java: OpenJava) -> None:
    producer = open_java()
    producer.ask("publish", "orders")
    assert producer.ask("partitions", "orders") == [f"0-{number}" for number in range(4)]
    partitions = [producer.send("orders", b"%d" % number).partition for number in range(8)]
    assert partitions == [f"0-{(number + 1) % 4}" for number in range(8)]


def test_callbacks_say_success_once_a_message(client: Client, open_java: OpenJava) -> None:
    producer = open_java()
    producer.ask("publish", "orders")
    assert producer.ask("flood", "orders", 2_000, "m") == ["2000", "0"]
    assert Counter(it.payload for it in client.browse("orders")) == {b"m%d" % number: 1 for number in range(2_000)}


def test_what_a_broker_refuses(broker: BrokerProcess, client: Client, open_java: OpenJava) -> None:
    producer = open_java()
    producer.ask("publish", "orders")
    with pytest.raises(JavaError, match="There is no aviable partition for topic unknown"):
        producer.send("unknown", b"x")
    producer.ask("publish", "unknown")
    with pytest.raises(JavaError, match="There is no aviable partition for topic unknown"):
        producer.send("unknown", b"x")
    with pytest.raises(SendRefused, match="wrong partition 9"):
        producer.send("orders", b"x", partition="0-9")
    direct = open_java("direct", broker.url)
    with pytest.raises(SendRefused, match="The server do not accept topic unknown"):
        direct.send("unknown", b"x")
    assert direct.send("orders", b"direct").offset == 0
    other = open_java()
    other.ask("default_topic", "orders")
    other.send("dynamic-1", b"under its own name", partition="0-1")
    java = open_java()
    java.subscribe("group", "dynamic-1")
    wait_until(lambda: java.payloads == [b"under its own name"])


def test_a_local_transaction(client: Client, open_java: OpenJava) -> None:
    producer = open_java()
    producer.ask("publish", "orders")
    producer.ask("publish", "invoices")
    producer.ask("begin")
    results = [producer.send("orders", b"a"), producer.send("invoices", b"b"), producer.send("orders", b"c")]
    assert {result.offset for result in results} == {-1}
    assert list(client.browse("orders")) == []
    producer.ask("commit")
    assert {it.payload for it in client.browse("orders")} == {b"a", b"c"}
    assert {it.message_id for topic in ("orders", "invoices") for it in client.browse(topic)} == {
        result.message_id for result in results
    }
    producer.ask("begin")
    producer.send("orders", b"never")
    producer.ask("rollback")
    producer.ask("begin")
    with pytest.raises(JavaError, match="No transaction is started"):
        producer.ask("commit")
    producer.ask("timeout", 1)
    producer.ask("begin")
    producer.send("orders", b"too late")
    time.sleep(2)  # no proof: the broker's answer is
    with pytest.raises(JavaError, match="has not been started"):
        producer.ask("commit")
    assert {it.payload for it in client.browse("orders")} == {b"a", b"c"}


def test_a_connection_that_ends_rolls_back(
    client: Client, open_java: OpenJava, own_java: JavaProcess, zookeeper: Chroot
) -> None:
    producer = open_java("plain", zookeeper.connect, within=own_java)
    producer.ask("publish", "orders")
    producer.ask("begin")
    producer.send("orders", b"never")
    own_java.kill()
    assert list(client.browse("orders")) == []


def test_stats(broker: BrokerProcess, client: Client, open_java: OpenJava) -> None:
    producer = open_java()
    producer.ask("publish", "orders")
    producer.send("orders", b"a")
    (told,) = producer.ask("stats", "")
    assert f"pid={broker.pid}, " in told
    assert "total_messages=1, " in told
    (told,) = producer.ask("stats", "topics")
    assert "orders=partitions 4 message_count 1 message_bytes 21" in told


def test_a_closed_partition(broker: BrokerProcess, client: Client, open_java: OpenJava) -> None:
    """The client knows the code 403 alone."""
    producer = open_java()
    producer.ask("publish", "orders")
    with broker.client() as wire:
        done(wire, TopicVerb.CLOSE, "orders", partitions="2")
        with pytest.raises(SendRefused, match=r"^403$"):
            producer.send("orders", b"x", partition="0-2")
        done(wire, TopicVerb.OPEN, "orders", partitions="2")
    assert producer.send("orders", b"x", partition="0-2").offset == 0


def test_an_ordered_producer(client: Client, open_java: OpenJava, zookeeper: Chroot) -> None:
    producer = open_java("ordered", zookeeper.connect, "orders=0:4")
    producer.ask("publish", "orders")
    for number in range(40):
        assert producer.send("orders", b"%d" % number, attribute=str(number % 4)).partition == f"0-{number % 4}"
    for number in range(4):
        found = [int(it.payload) for it in client.browse("orders") if it.partition == Partition(0, number)]
        assert found == list(range(number, 40, 4))


def test_partitions_are_added_while_it_sends(broker: BrokerProcess, client: Client, open_java: OpenJava) -> None:
    """The client connects again after each change of a topic, and gives up what is under way; but it never reads that
    the topic has no broker."""
    producer, java = open_java(), open_java()
    producer.ask("publish", "orders")
    java.subscribe("grown", "orders")
    sent: list[bytes] = []
    for partitions in range(5, 25):
        with broker.client() as wire:
            done(wire, TopicVerb.ALTER, "orders", partitions=str(partitions))
        for _ in range(20):
            sent.append(b"%d" % len(sent))
            try:
                producer.send("orders", sent[-1])
            except (SendRefused, JavaError) as error:
                assert "aviable" not in str(error)  # noqa: PT017 - its word, also for a server
    wait_until(lambda: len(producer.ask("partitions", "orders")) == 24)
    last = [producer.send("orders", b"last", attribute=str(number)) for number in range(24)]
    assert {it.partition for it in last} == {f"0-{number}" for number in range(24)}
    ids = [it.message_id for it in client.browse("orders")]
    wait_until(lambda: sorted(it.message_id for it in java.deliveries) == sorted(ids))
