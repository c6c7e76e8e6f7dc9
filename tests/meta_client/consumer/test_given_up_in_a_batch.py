"""A partition given up while its messages are delivered one by one: the rest of the batch is the next owner's."""

import threading
import time
from collections import defaultdict

import pytest

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.messages.received_message import ReceivedMessage
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.consuming import send
from tests.fixtures.replicas import wait_until
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

CONFIG = ConsumerConfig(backoff_s_max=0.1, commit_period_s=0.1, runners=4)
PARTITIONS = 4  # of the topic
Handed = defaultdict[Partition, list[int]]


def test_without_the_lease_the_rest_of_a_batch_waits(
    zookeeper: Chroot, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lose the lease as a suspended process does: another member may own the partition by now."""
    handed: Handed = defaultdict(list)
    ended = threading.Event()

    def on_message(message: ReceivedMessage) -> None:
        handed[message.partition].append(message.offset)
        if not ended.is_set():
            monkeypatch.setattr(type(client.session.lease), "is_valid", lambda lease: False)
            ended.set()
            time.sleep(0.01)  # longer than it would go on without asking

    with Client(zookeeper.connect) as client:
        send(client, "meta-test", 3)
        with client.consumer("group", config=CONFIG) as consumer:
            consumer.subscribe("meta-test", on_message=on_message)
            consumer.start()
            assert ended.wait(60)
            time.sleep(0.5)
            (offsets,) = handed.values()
            assert len(offsets) == 1
            monkeypatch.undo()
            wait_until(lambda: len(offsets) >= 3, "the rest comes")
    assert offsets == sorted(set(offsets))


def test_another_member_waits_for_one_message_not_for_the_batch(zookeeper: Chroot, broker: BrokerProcess) -> None:
    first: Handed = defaultdict(list)
    second: Handed = defaultdict(list)
    may_return = threading.Event()

    def slowly(message: ReceivedMessage) -> None:
        first[message.partition].append(message.offset)
        may_return.wait(60)

    with Client(zookeeper.connect) as client, Client(zookeeper.connect) as other:
        producer = client.producer()
        for number in range(3 * PARTITIONS):
            producer.send_async("orders", b"%d" % number, partition=f"0-{number % PARTITIONS}")
        producer.flush()
        with client.consumer("group", config=CONFIG) as consumer, other.consumer("group", config=CONFIG) as heir:
            consumer.subscribe("orders", on_message=slowly)
            consumer.start()
            wait_until(lambda: len(first) == PARTITIONS, "it is in a listener of every partition")
            heir.subscribe("orders", on_message=lambda message: second[message.partition].append(message.offset))
            heir.start()
            wait_until(lambda: len(consumer.owned()) == PARTITIONS // 2, "half of them is revoked")
            may_return.set()
            moved = set(first) - {partition for _, partition in consumer.owned()}
            wait_until(lambda: all(len(second[it]) == 2 for it in moved), "the heir has what is left")
            wait_until(lambda: sum(map(len, first.values())) == 8, "the other half is delivered")
    for partition, offsets in first.items():
        handed = offsets + second[partition]
        assert handed == sorted(set(handed))
        assert len(offsets) == (1 if partition in moved else 3)
