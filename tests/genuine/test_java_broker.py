"""metaq's client at the genuine Java broker, and clusters of both kinds of broker."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.records.xid import Xid
from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from tests.fixtures.broker import BrokerProcess
from tests.genuine.conftest import OpenJava
from tests.genuine.java_broker import JavaBroker
from tests.integration.conftest import Inbox, wait_until
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

QUICK = ConsumerConfig(backoff_s_max=0.2, commit_period_s=0.2)


@pytest.fixture
def java_broker(tmp_path: Path, zookeeper: Chroot) -> Iterator[JavaBroker]:
    """Broker 1."""
    with JavaBroker(tmp_path / "java-broker", zookeeper.connect) as broker:
        yield broker


@pytest.fixture
def client(java_broker: JavaBroker, zookeeper: Chroot) -> Iterator[Client]:
    del java_broker
    with Client(zookeeper.connect) as client:
        wait_until(lambda: client.session.children("/meta/brokers/topics-sub/orders") == ["1-m"])
        yield client


def restart(broker: JavaBroker, client: Client) -> None:
    """Kill it and start it again, once its session is over: else its start fails."""
    broker.kill()
    wait_until(lambda: client.session.children("/meta/brokers/topics-sub/orders") == [])
    broker.start()
    wait_until(lambda: client.session.children("/meta/brokers/topics-sub/orders") == ["1-m"])


def orders(client: Client) -> list[bytes]:
    return sorted(it.payload for it in client.browse("orders"))


def test_sends_transactions_and_groups(client: Client) -> None:
    producer, inbox = client.producer(), Inbox()
    sent = [b"%d" % number for number in range(20)]
    results = [producer.send("orders", payload, attribute="a" if payload == b"3" else None) for payload in sent]
    assert {result.partition for result in results} == {Partition(1, number) for number in range(4)}
    handles = [producer.send_async("orders", b"async %d" % number) for number in range(50)]
    for handle in handles:
        handle.result(timeout_s=60)
    producer.send_many("orders", [b"many %d" % number for number in range(50)]).result(timeout_s=60)
    with producer.transaction():
        producer.send("orders", b"local")
        producer.send("invoices", b"local")
    transaction = producer.transaction()
    producer.send("orders", b"never")
    transaction.rollback()
    sent += [b"async %d" % number for number in range(50)] + [b"many %d" % number for number in range(50)] + [b"local"]
    with client.consumer("group", config=QUICK) as consumer:
        consumer.subscribe("orders", inbox)
        consumer.start()
        wait_until(lambda: inbox.payloads == Counter(sent))
        wait_until(consumer.is_caught_up)
    assert {it.attribute for it in inbox.messages if it.payload == b"3"} == {"a"}
    producer.send("orders", b"last")
    with client.consumer("group", config=QUICK) as consumer:
        consumer.subscribe("orders", inbox)
        consumer.start()
        wait_until(lambda: inbox.payloads == Counter([*sent, b"last"]))
    wait_until(lambda: orders(client) == sorted([*sent, b"last"]))


def test_a_prepared_branch_survives_its_kill(java_broker: JavaBroker, client: Client) -> None:
    producer = client.producer(qualifier="q")
    for name in (b"commit", b"rollback"):
        producer.tpc_begin(Xid(7, name, b"b"), topics=("orders",))
        producer.send("orders", name)
        assert producer.tpc_prepare()
        producer = client.producer(qualifier="q")
    producer.tpc_begin(Xid(7, b"open", b"b"), topics=("orders",))
    producer.send("orders", b"open")
    restart(java_broker, client)
    other = client.producer(qualifier="q")
    wait_until(lambda: {xid.gtrid for xid in other.tpc_recover()} == {b"commit", b"rollback"})
    other.tpc_commit(Xid(7, b"commit", b"b"))
    other.tpc_rollback(Xid(7, b"rollback", b"b"))
    assert other.tpc_recover() == []
    restart(java_broker, client)  # which shows what a commit after recovery has stored
    wait_until(lambda: orders(client) == [b"commit"])


def test_a_cluster_of_both(client: Client, broker: BrokerProcess, open_java: OpenJava) -> None:
    """Producers and members of both kinds at brokers of both kinds, while a service moves."""
    wait_until(lambda: sorted(client.session.children("/meta/brokers/topics-sub/orders")) == ["0-m", "1-m"])
    java, member, inbox = open_java(), open_java(), Inbox()
    java.ask("publish", "orders")
    member.subscribe("group", "orders")
    with client.consumer("group", config=QUICK) as consumer:
        consumer.subscribe("orders", inbox)
        consumer.start()
        producer, sent = client.producer(), list[bytes]()
        for number in range(80):
            sent += [b"java %d" % number, b"ours %d" % number]
            java.send("orders", sent[-2])
            producer.send("orders", sent[-1])
        wait_until(lambda: inbox.payloads.keys() | set(member.payloads) == set(sent))
        assert {it.partition[0] for it in member.deliveries} | {str(it.partition)[0] for it in inbox.messages} == {
            "0",
            "1",
        }
        broker.kill()
        broker.start()
        sent.append(b"after")
        producer.send("orders", b"after", partition=Partition(0, 0), timeout_s=60)
        wait_until(lambda: inbox.payloads.keys() | set(member.payloads) == set(sent))
