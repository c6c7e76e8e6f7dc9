"""Java consumers of what metaq's brokers hold, whoever sent it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.records.xid import Xid
from meta_client.client import Client
from meta_client.protocol.requests import TopicVerb
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.filters import install_filters
from tests.fixtures.topic_commands import done
from tests.genuine.conftest import OpenJava
from tests.genuine.java_client import JavaError
from tests.integration.conftest import Inbox, wait_until
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

MANY_RETRIES = 100


@pytest.fixture
def client(zookeeper: Chroot, broker: BrokerProcess) -> Iterator[Client]:
    del broker
    with Client(zookeeper.connect) as client:
        yield client


def test_all_that_metaq_sends(client: Client, open_java: OpenJava) -> None:
    java = open_java()
    java.subscribe("group", "meta-test")
    producer = client.producer()
    sent = [(None, b"plain"), ("tag", b"with one"), ("", b"")]
    for attribute, payload in sent:
        producer.send("meta-test", payload, attribute)
    producer.send_many("meta-test", [b"many %d" % number for number in range(500)]).result()
    sent += [(None, b"many %d" % number) for number in range(500)]
    with producer.transaction():
        producer.send("meta-test", b"local")
    producer.tpc_begin(Xid.of("x", "mq"), topics=("meta-test",))
    producer.send("meta-test", b"branch", attribute="a")
    producer.tpc_prepare()
    producer.tpc_commit()
    sent += [(None, b"local"), ("a", b"branch")]
    wait_until(lambda: [(it.attribute, it.payload) for it in java.deliveries] == sent)
    assert [it.message_id for it in java.deliveries] == [it.message_id for it in client.browse("meta-test")]


@pytest.mark.parametrize("fetch", [1 << 16, 1 << 20])
def test_big_messages(client: Client, open_java: OpenJava, fetch: int) -> None:
    """All sizes that the client reads: it doubles what it asks for, after six gets without a whole message, and with
    fewer retries diverts what it was for."""
    java = open_java()
    java.subscribe("group", "meta-test", MANY_RETRIES, size=fetch)
    sizes = [10, 70_000, (1 << 20) - 20, (1 << 20) + 1, 2_000_000, 3]
    producer = open_java()
    producer.ask("publish", "meta-test")
    for size in sizes:
        producer.send("meta-test", b"x" * size)
    wait_until(lambda: [len(it) for it in java.payloads] == sizes)


def test_a_refused_message_comes_again(client: Client, open_java: OpenJava) -> None:
    java = open_java()
    java.ask("refuse", "second", 2)
    java.subscribe("group", "meta-test")
    producer = client.producer()
    for payload in (b"first", b"second", b"third"):
        producer.send("meta-test", payload)
    wait_until(lambda: java.payloads[-1:] == [b"third"])
    assert java.payloads == [b"first", b"second", b"second", b"second", b"third"]


def test_from_the_end(client: Client, open_java: OpenJava) -> None:
    producer = client.producer()
    producer.send("meta-test", b"before")
    java = open_java()
    java.subscribe("group", "meta-test", "from_end")
    wait_until(lambda: client.session.read("/meta/consumers/group/offsets/meta-test/0-0") is not None)
    producer.send("meta-test", b"after")
    wait_until(lambda: java.payloads == [b"after"])


def test_gets_by_hand(client: Client, open_java: OpenJava) -> None:
    producer = client.producer()
    for payload in (b"first", b"second"):
        producer.send("meta-test", payload)
    java = open_java()
    java.ask("publish", "meta-test")
    assert java.get("meta-test", "0-0", 0) == [b"first", b"second"]
    assert java.get("meta-test", "0-0", 25) == [b"second"]
    for offset in (51, 10_000, 2**63 - 1):
        assert java.get("meta-test", "0-0", offset) == []
    assert java.get("orders", "0-1", 0) == []
    assert java.get("meta-test", "0-0", -5) == []
    with pytest.raises(JavaError, match="maxSize <=0"):  # which it does not ask a broker
        java.get("meta-test", "0-0", 0, size=0)


def test_a_topic_that_is_made_later(broker: BrokerProcess, client: Client, open_java: OpenJava) -> None:
    java = open_java()
    java.subscribe("group", "later")
    with broker.client() as wire:
        done(wire, TopicVerb.CREATE, "later", partitions="2")
    wait_until(lambda: client.session.children("/meta/brokers/topics-pub/later") == ["0-m"])
    for number in range(2):
        client.producer().send("later", b"%d" % number, partition=Partition(0, number))
    wait_until(lambda: sorted(java.payloads) == [b"0", b"1"])


def test_a_broadcast_consumer_gets_everything(client: Client, open_java: OpenJava) -> None:
    java, inbox = open_java("broadcast"), Inbox()
    java.subscribe("group", "orders")
    with client.consumer("group") as consumer:
        consumer.subscribe("orders", inbox)
        consumer.start()
        producer = client.producer()
        sent = [b"%d" % number for number in range(40)]
        for payload in sent:
            producer.send("orders", payload)
        wait_until(lambda: sorted(java.payloads) == sorted(sent) and len(inbox.messages) == 40)


def test_a_filter_at_the_broker(
    tmp_path: Path, zookeeper: Chroot, monkeypatch: pytest.MonkeyPatch, open_java: OpenJava
) -> None:
    install_filters(tmp_path / "site", monkeypatch)
    config = CONFIG + "\n[filters.meta-test]\nhalf = 'test-even'\n"
    with running_broker(tmp_path / "filtering", zookeeper.connect, config=config), Client(zookeeper.connect) as client:
        client.producer().send_many("meta-test", [b"%d:" % number for number in range(200)]).result()
        java, other = open_java(), open_java()
        java.subscribe("half", "meta-test")
        other.subscribe("all", "meta-test")
        wait_until(lambda: len(java.payloads) == 100 and len(other.payloads) == 200)
        assert java.payloads == [b"%d:" % number for number in range(0, 200, 2)]
