"""Consumers and groups: alike at a real broker and in memory, where users' unit tests run."""

import threading
import time
from pathlib import Path
from typing import Literal

import pytest

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.consumer import Consumer
from meta_client.consumer.error_policy import OnReject
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.position import LATEST
from meta_client.errors import (
    ConsumerMisuse,
)
from meta_client.producer.producer import Producer
from tests.meta_broker.testing.conftest import CONSUMER, Cluster, wait_until
from zk.tree.nodes import Partition


def test_a_group_shares_and_goes_on_where_it_was(client: Client, producer: Producer, topic: str) -> None:
    for number in range(20):
        producer.send(topic, b"%d" % number)
    first: list[bytes] = []
    with client.consumer(topic, config=CONSUMER) as consumer:
        consumer.subscribe(topic, lambda batch: first.extend(m.payload for m in batch.messages))
        consumer.start()
        wait_until(lambda: len(first) == 20)
        wait_until(consumer.is_caught_up)
    producer.send(topic, b"later")
    seen: list[bytes] = []
    consumers = [client.consumer(topic, config=CONSUMER) for _ in range(2)]
    for consumer in consumers:
        consumer.subscribe(topic, lambda batch: seen.extend(m.payload for m in batch.messages))
        consumer.start()
    wait_until(lambda: all(len(consumer.owned()) == 1 for consumer in consumers))
    wait_until(lambda: bool(seen))
    for consumer in consumers:
        consumer.close()
    assert seen == [b"later"]


def test_a_listener_that_fails_gets_the_same_again(client: Client, producer: Producer, topic: str) -> None:
    producer.send(topic, b"x", partition="0-0")
    seen: list[bytes] = []

    def second_time_lucky(message: ReceivedMessage) -> None:
        seen.append(message.payload)
        if len(seen) == 1:
            raise ValueError("not yet")

    with client.consumer(topic, config=CONSUMER) as consumer:
        consumer.subscribe(topic, on_message=second_time_lucky)
        consumer.start()
        wait_until(lambda: len(seen) == 2)


def test_messages_can_be_fetched_and_iterated(client: Client, producer: Producer, topic: str) -> None:
    for number in range(5):
        producer.send(topic, b"%d" % number, partition="0-0")
    with client.consumer(topic, config=CONSUMER) as consumer:
        consumer.subscribe(topic)
        consumer.start()
        got: list[bytes] = []
        while len(got) < 3:
            got += [message.payload for message in consumer.fetch(3 - len(got), timeout_s=60)]
        for message in consumer:
            got.append(message.payload)
            if len(got) == 5:
                break
    assert got == [b"0", b"1", b"2", b"3", b"4"]


def test_what_waits_is_told_at_once(client: Client, producer: Producer, topic: str) -> None:
    producer.send(topic, b"0")
    arrived = threading.Event()
    with client.consumer(topic, config=ConsumerConfig(fetch_wait_s=25)) as consumer:
        consumer.subscribe(topic, on_message=lambda message: arrived.set() if message.payload == b"now" else None)
        consumer.start()
        wait_until(consumer.is_caught_up)
        time.sleep(0.05)
        begin = time.monotonic()
        producer.send(topic, b"now")
        assert arrived.wait(60)
        assert time.monotonic() - begin < 15  # it would wait for 25 at most


def test_a_listener_gets_what_it_accepts(client: Client, producer: Producer, topic: str) -> None:
    for number in range(6):
        producer.send(topic, b"%d" % number, attribute="odd" if number % 2 else "even", partition="0-0")
    seen: list[bytes] = []
    with client.consumer(topic, config=CONSUMER) as consumer:
        consumer.subscribe(
            topic, on_message=lambda message: seen.append(message.payload), accept=lambda it: it.attribute == "odd"
        )
        consumer.start()
        wait_until(consumer.is_caught_up)
    assert seen == [b"1", b"3", b"5"]
    with client.consumer(topic, config=CONSUMER) as consumer:
        consumer.subscribe(topic)
        consumer.start()
        assert consumer.fetch(10, timeout_s=0.3) == []  # the others count as consumed


def test_what_is_not_acknowledged_comes_again(client: Client, producer: Producer, topic: str) -> None:
    for number in range(4):
        producer.send(topic, b"%d" % number, partition="0-0")

    def fetch(consumer: Consumer, count: int) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        while len(found) < count:
            found += consumer.fetch(count - len(found), timeout_s=60)
        return found

    with client.consumer(topic, config=CONSUMER) as consumer:
        consumer.subscribe(topic, acknowledge="manual")
        consumer.start()
        first = fetch(consumer, 3)
        assert [message.payload for message in first] == [b"0", b"1", b"2"]
        assert consumer.acknowledge(first[0])
        assert consumer.rollback(topic, first[0].partition)
        again = fetch(consumer, 3)
        assert [message.payload for message in again] == [b"1", b"2", b"3"]
        assert consumer.acknowledge(again[1])
    assert not consumer.acknowledge(again[2])
    with client.consumer(topic, config=CONSUMER) as consumer:
        consumer.subscribe(topic)
        consumer.start()
        assert [message.payload for message in fetch(consumer, 1)] == [b"3"]
        with pytest.raises(ConsumerMisuse):
            consumer.acknowledge(again[2])


@pytest.mark.parametrize("on_reject", ["drop", "dead_letter", "stop", "function"])
def test_a_message_that_is_rejected(
    client: Client,
    producer: Producer,
    topic: str,
    tmp_path: Path,
    on_reject: Literal["drop", "dead_letter", "stop", "function"],
) -> None:
    for payload in (b"good", b"bad", b"last"):
        producer.send(topic, payload, partition="0-0")
    seen: list[bytes] = []
    rejected: list[tuple[bytes, str]] = []
    is_mended = False

    def listen(message: ReceivedMessage) -> None:
        seen.append(message.payload)
        if message.payload == b"bad" and not is_mended:
            raise ValueError("a bad one")

    def keep(message: ReceivedMessage, error: Exception) -> None:
        rejected.append((message.payload, str(error)))

    directory = tmp_path / "dead-letters" if on_reject == "dead_letter" else None
    config = ConsumerConfig(backoff_s_max=0.1, commit_period_s=0.1, dead_letter_directory=directory)
    with client.consumer(topic, config=config) as consumer:
        how: OnReject = keep if on_reject == "function" else on_reject
        consumer.subscribe(topic, on_message=listen, retries_max=2, on_reject=how)
        consumer.start()
        if on_reject == "stop":
            wait_until(lambda: consumer.paused() == [(topic, Partition(0, 0))])
            assert seen == [b"good", b"bad", b"bad", b"bad"]
            is_mended = True
            consumer.resume((topic, "0-0"))
        wait_until(lambda: b"last" in seen)
        if on_reject != "stop":
            assert seen == [b"good", b"bad", b"bad", b"bad", b"last"]
        assert rejected == ([(b"bad", "a bad one")] if on_reject == "function" else [])
        if on_reject == "dead_letter":
            (entry,) = consumer.dead_letters()
            assert entry.address[:2] == (topic, Partition(0, 0))
            is_mended = True
            consumer.redeliver()
            wait_until(lambda: consumer.dead_letters() == [])
            assert seen[-1] == b"bad"


def test_a_group_begins_and_goes_on_where_it_is_told(client: Client, producer: Producer, topic: str) -> None:
    offsets = [producer.send(topic, b"%d" % number, partition="0-0").offset for number in range(3)]
    seen: list[bytes] = []
    config = ConsumerConfig(backoff_s_max=0.1, commit_period_s=0.1, start=LATEST)
    with client.consumer(topic, config=config) as consumer:
        consumer.subscribe(topic, on_message=lambda message: seen.append(message.payload))
        consumer.start()
        wait_until(lambda: len(consumer.owned()) == 2)
        wait_until(consumer.is_caught_up)
        producer.send(topic, b"3", partition="0-0")
        wait_until(lambda: seen == [b"3"])
        assert offsets[1] is not None
        assert consumer.seek(topic, "0-0", offsets[1])
        wait_until(lambda: seen == [b"3", b"1", b"2", b"3"])
        assert consumer.seek(topic, "0-0", "earliest")
        wait_until(lambda: len(seen) == 8)
        assert not consumer.seek(topic, "0-9", 0)
    with client.consumer(topic, config=config) as consumer:  # what was sought is the group's progress
        consumer.subscribe(topic, on_message=lambda message: seen.append(message.payload))
        consumer.start()
        producer.send(topic, b"4", partition="0-0")
        wait_until(lambda: seen[8:] == [b"4"])


def test_a_session_that_expires_loses_its_partitions_and_gets_them_again(
    cluster: Cluster, client: Client, producer: Producer, topic: str
) -> None:
    seen: list[bytes] = []
    with client.consumer(topic, config=CONSUMER) as first, cluster.client() as rival:
        second = rival.consumer(topic, config=CONSUMER)
        for consumer in (first, second):
            consumer.subscribe(topic, on_message=lambda message: seen.append(message.payload))
            consumer.start()
        wait_until(lambda: len(first.owned()) == len(second.owned()) == 1)
        before = len(first.rebalances())
        cluster.expire(client)
        wait_until(lambda: len(first.rebalances()) > before)
        wait_until(lambda: len(first.owned()) == len(second.owned()) == 1)
        for number in range(10):
            producer.send(topic, b"%d" % number)
        wait_until(lambda: set(seen) >= {b"%d" % number for number in range(10)})
