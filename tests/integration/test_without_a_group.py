"""Consuming without a share of a group's partitions: assigned by hand, broadcast, browsed."""

import time
from pathlib import Path

import pytest

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.errors import BrokerAway, ConsumerMisuse, InvalidGroup, NotConnected, NothingToRead
from tests.fixtures.broker import BrokerProcess, running_broker
from tests.fixtures.consuming import ONLY, QUICK, Calls, send, stored
from tests.fixtures.expiry import expire_session
from tests.integration.conftest import OpenClient, wait_until
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

TOPIC = "meta-test"  # one partition


def test_assigned_partitions_are_read_whatever_others_read(broker: BrokerProcess, client: Client) -> None:
    producer = client.producer()
    for number in range(40):
        producer.send("orders", b"%d" % number)
    mine = ("orders", Partition(0, 1)), ("orders", Partition(0, 3))
    calls: list[Calls] = [Calls(), Calls()]
    with client.consumer(None, config=QUICK) as one, client.consumer(None, config=QUICK) as other:
        for consumer, listener in zip((one, other), calls, strict=True):
            consumer.subscribe("orders", on_message=listener)
            consumer.assign(*mine)
            consumer.start()
        wait_until(lambda: one.is_caught_up() and other.is_caught_up())
        assert one.owned() == list(mine)
        assert len(calls[0].payloads) == len(calls[1].payloads) == 20
        expire_session(client.session)  # nobody can be given what is assigned: reading goes on
        for number in range(4):
            producer.send("orders", b"after %d" % number)
        wait_until(lambda: sum(payload.startswith(b"after") for payload in calls[0].payloads) == 2)
        broker.kill()
        broker.start()
        wait_until(lambda: _is_up(client))
        for number in range(4):
            producer.send("orders", b"again %d" % number)
        wait_until(lambda: sum(payload.startswith(b"again") for payload in calls[1].payloads) == 2)
    assert client.session.children("/meta/consumers") == []


def _is_up(client: Client) -> bool:
    return bool(client.topology.view("orders", 1.0).available)


def test_an_assignment_of_a_group_goes_on_where_it_stopped(broker: BrokerProcess, client: Client) -> None:
    expected = send(client, TOPIC, 20)
    seen: list[bytes] = []
    for _ in range(2):
        with client.consumer("group", config=QUICK) as consumer:
            consumer.subscribe(TOPIC)
            consumer.assign((TOPIC, ONLY))
            consumer.start()
            seen += [message.payload for message in consumer.fetch(10)]
    assert seen == expected
    assert stored(client, TOPIC) == 10 * 21 + 10 * 22
    with client.consumer("group", config=QUICK) as consumer:
        consumer.subscribe(TOPIC)
        consumer.assign((TOPIC, ONLY))
        consumer.start()
        assert consumer.seek(TOPIC, ONLY, 21)
        assert consumer.fetch(1)[0].payload == b"1"
    assert stored(client, TOPIC) == 42
    del broker


def test_wrong_assignments_are_named(broker: BrokerProcess, client: Client) -> None:
    consumer = client.consumer(None)
    with pytest.raises(ConsumerMisuse, match="subscribe to meta-test before"):
        consumer.assign((TOPIC, ONLY))
    consumer.subscribe(TOPIC, on_message=print)
    with pytest.raises(ConsumerMisuse, match="without a group needs assign"):
        consumer.start()
    with pytest.raises(ConsumerMisuse, match="all its partitions, at once"):
        consumer.assign()
    consumer.assign((TOPIC, ONLY))
    with pytest.raises(ConsumerMisuse, match="all its partitions, at once"):
        consumer.assign((TOPIC, ONLY))
    consumer.start()
    with pytest.raises(ConsumerMisuse, match="was started before"):
        consumer.assign((TOPIC, ONLY))
    consumer.close()
    del broker


def test_every_instance_of_a_broadcast_group_sees_everything_once(
    broker: BrokerProcess, client: Client, open_client: OpenClient
) -> None:
    other = open_client()
    expected = send(client, TOPIC, 30)
    seen: dict[str, list[bytes]] = {"web-1": [], "web-2": []}
    for _ in range(2):
        for instance, of in (("web-1", client), ("web-2", other)):
            with of.consumer("prices", broadcast=instance, config=QUICK) as consumer:
                consumer.subscribe(TOPIC)
                consumer.start()
                seen[instance] += [message.payload for message in consumer.fetch(15)]
    assert seen == {"web-1": expected, "web-2": expected}
    for wrong in ("", "a.b"):
        with pytest.raises(InvalidGroup):
            client.consumer("prices", broadcast=wrong)
    with pytest.raises(InvalidGroup):
        client.consumer(None, broadcast="web-1")
    del broker


@pytest.mark.scenario("A20")
def test_a_browser_shows_what_there_is_and_ends(broker: BrokerProcess, client: Client) -> None:
    """Spec 13.1, A20; and what is put while it reads does not keep it from ending."""
    producer = client.producer()
    expected = [b"%d" % number for number in range(100)]
    for payload in expected:
        producer.send("orders", payload)
    found: list[bytes] = []
    partitions: list[Partition] = []
    for message in client.browse("orders"):
        found.append(message.payload)
        partitions.append(message.partition)
        producer.send("orders", b"more", partition=message.partition)
    assert sorted(payload for payload in found if payload != b"more") == sorted(expected)
    assert found.count(b"more") < 100
    assert partitions == sorted(partitions)
    assert list(client.browse(TOPIC)) == []
    with pytest.raises(NothingToRead, match="no broker offers"):
        list(client.browse("nobody-has-this"))
    assert client.session.children("/meta/consumers") == []
    broker.kill()
    with pytest.raises((BrokerAway, NotConnected), match=r"not up|refused"):
        list(client.browse("orders"))


def test_a_browser_and_an_early_reader_begin_with_what_is_left(tmp_path: Path, zookeeper: Chroot) -> None:
    config = """
[topics.meta-test]
partitions = 1

[broker]
segment_bytes = 262144
message_bytes_max = 65536

[retention]
bytes = 300000
when = 0.2
"""
    with (
        running_broker(tmp_path / "broker", zookeeper.connect, config=config),
        Client(zookeeper.connect, session_timeout_ms=4_000) as client,
    ):
        producer = client.producer()
        sent = 0
        deadline = time.monotonic() + 60
        while (first := next(client.browse(TOPIC), None)) is None or first.offset == 0:
            for _ in range(200):
                producer.send_async(TOPIC, b"%d" % sent + b"x" * 1000)
                sent += 1
            producer.flush()
            assert time.monotonic() < deadline
        found = [message.payload for message in client.browse(TOPIC)]
        assert found[-1].startswith(b"%d" % (sent - 1))
        assert 0 < len(found) < sent
        with client.consumer("early", config=ConsumerConfig(start=0)) as consumer:
            consumer.subscribe(TOPIC)
            consumer.start()
            assert consumer.fetch(1)[0].offset > 0
