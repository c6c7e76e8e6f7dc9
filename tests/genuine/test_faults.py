"""Java clients that run while brokers end, move, are promoted or idle."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meta_client.client import Client
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.replicas import Replicas
from tests.genuine.conftest import OpenJava
from tests.genuine.java_client import Actor, JavaError, SendRefused
from tests.integration.conftest import Inbox, wait_until
from zk.brokers.replication import read_replication
from zk.embedded.chroot import Chroot
from zk.embedded.server import EmbeddedZooKeeper

STEADY = CONFIG.replace("session_timeout_ms = 4000", "session_timeout_ms = 8000")
IDLE_S = 35  # three heartbeats of the client, whose third failure would close the connection


def send_until_taken(producer: Actor, topic: str, payloads: list[bytes], partition: str = "") -> None:
    """Send each, again after a failure: the client itself never does."""
    deadline = time.monotonic() + 90
    for payload in payloads:
        while True:
            try:
                producer.send(topic, payload, partition=partition)
                break
            except (JavaError, SendRefused):
                assert time.monotonic() < deadline
                time.sleep(0.1)


def numbered(word: str, count: int = 50) -> list[bytes]:
    return [f"{word} {number}".encode() for number in range(count)]


def test_a_broker_is_killed_and_comes_back(broker: BrokerProcess, zookeeper: Chroot, open_java: OpenJava) -> None:
    producer, java, inbox = open_java(), open_java(), Inbox()
    producer.ask("publish", "orders")
    java.subscribe("java", "orders")
    with Client(zookeeper.connect) as client, client.consumer("ours") as ours:
        ours.subscribe("orders", inbox)
        ours.start()
        send_until_taken(producer, "orders", before := numbered("before"))
        broker.kill()
        broker.start()
        send_until_taken(producer, "orders", after := numbered("after"))
        assert broker.stop() == 0
        broker.start()
        send_until_taken(producer, "orders", last := numbered("last"))
        sent = set(before + after + last)
        wait_until(lambda: set(java.payloads) == inbox.payloads.keys() == sent)


def test_an_idle_connection_lives(broker: BrokerProcess, open_java: OpenJava) -> None:
    producer = open_java()
    producer.ask("publish", "orders")
    producer.send("orders", b"before")
    (before,) = producer.ask("stats", "")
    time.sleep(IDLE_S)
    producer.send("orders", b"after")
    (after,) = producer.ask("stats", "")
    assert "curr_connections=1," in before
    assert "curr_connections=1," in after
    assert broker.log.count("connection closed") == 0


@pytest.fixture
def pair(tmp_path: Path, zookeeper: Chroot) -> Iterator[Replicas]:
    """Master 0 and its slave 1."""
    with Replicas(tmp_path / "pair", zookeeper.connect, STEADY) as running:
        yield running


def test_a_slave_serves_and_is_promoted(pair: Replicas, zookeeper: Chroot, open_java: OpenJava) -> None:
    (slave,) = pair.slaves
    producer, java = open_java(), open_java()
    producer.ask("publish", "orders")
    java.subscribe("group", "orders")
    with Client(zookeeper.connect) as client:
        wait_until(lambda: pair.is_in_sync(slave))
        wait_until(lambda: client.session.read("/meta/brokers/ids/0/slave1") is not None)
        send_until_taken(producer, "orders", before := numbered("before"))
        wait_until(lambda: set(java.payloads) == set(before))
        wait_until(lambda: pair.is_in_sync(slave))
        pair.master.stop()
        late = open_java()
        late.subscribe("late", "orders")
        wait_until(lambda: set(late.payloads) == set(before))  # from the slave
        with slave.client() as wire:
            assert any(line.startswith("cmd_get ") and line != "cmd_get 0" for line in wire.stats())
        slave.stop()
        pair.promote(slave, accept_loss=True)  # it was asynchronous
        send_until_taken(producer, "orders", after := numbered("after"))
        sent = set(before + after)
        wait_until(lambda: set(java.payloads) == set(late.payloads) == sent)
        ids = [it.message_id for it in java.deliveries]  # a send that was given up may be there twice
        assert sorted(ids) == sorted(set(ids))
        assert read_replication(client.session, 0).node is not None


def test_another_broker_has_its_address(tmp_path: Path, zookeeper: Chroot, open_java: OpenJava) -> None:
    """The client asks for `version` and takes any answer."""
    with (
        running_broker(tmp_path / "dead", zookeeper.connect, config=CONFIG) as dead,
        running_broker(tmp_path / "heir", zookeeper.connect, broker_id=1, config=CONFIG) as heir,
        Client(zookeeper.connect) as client,
    ):

        def wait_offered(*brokers: str) -> None:
            wait_until(lambda: sorted(client.session.children("/meta/brokers/topics-pub/orders")) == [*brokers])

        producer, java = open_java(), open_java()
        producer.ask("publish", "orders")
        java.subscribe("group", "orders")
        send_until_taken(producer, "orders", before := numbered("before"))
        wait_until(lambda: set(java.payloads) == set(before))
        heir.stop()
        dead.kill()
        heir.port, dead.port = dead.port, 0
        heir.start()
        wait_offered("1-m")
        send_until_taken(producer, "orders", after := numbered("after"))
        dead.start()
        wait_offered("0-m", "1-m")
        send_until_taken(producer, "orders", last := numbered("last"), "0-1")
        wait_until(lambda: set(java.payloads) == set(before + after + last))
        assert {it.partition[0] for it in java.deliveries if it.payload in last} == {"0"}


def test_zookeeper_restarts(tmp_path: Path, open_java: OpenJava) -> None:
    with (
        EmbeddedZooKeeper(tmp_path / "zookeeper") as server,
        running_broker(tmp_path / "broker", server.connect) as broker,
    ):
        producer, java = open_java("plain", server.connect), open_java("plain", server.connect)
        producer.ask("publish", "orders")
        java.subscribe("group", "orders")
        send_until_taken(producer, "orders", sent := numbered("before"))
        server.stop()
        broker.kill()
        broker.launch()
        server.start()
        broker.wait_ready()
        send_until_taken(producer, "orders", numbered("after"))
        sent += numbered("after")
        wait_until(lambda: set(java.payloads) == set(sent))
        other = open_java("plain", server.connect)
        other.subscribe("group", "orders")
        send_until_taken(producer, "orders", last := numbered("last"))
        wait_until(lambda: set(java.payloads) | set(other.payloads) == set(sent + last))
        assert other.payloads
        for actor in (producer, java, other):
            actor.ask("shutdown")
