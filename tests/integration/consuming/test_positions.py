"""Read positions of a consumer: seek, start at a time or at the end, pause; through a real broker and ZooKeeper."""

import time
from datetime import UTC, datetime

import pytest

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.consumer import Consumer
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.errors import ConsumerMisuse
from tests.fixtures.consuming import ONLY, QUICK, send, stored
from tests.integration.conftest import wait_until
from zk.tree.nodes import Partition


def test_seeking_drops_what_is_fetched_ahead_and_moves_progress(client: Client, topic: str) -> None:
    send(client, topic, 100)
    time.sleep(0.01)
    noon = datetime.now(UTC)
    time.sleep(0.01)
    send(client, topic, 100, "later-")
    with client.consumer("group", config=QUICK) as consumer:
        consumer.subscribe(topic, max_bytes=500)
        consumer.start()
        seen = consumer.fetch(150)
        while len(seen) < 150:
            seen += consumer.fetch(150 - len(seen))
        for to, payload in ((0, b"0"), (noon, b"later-0"), (seen[5].offset, b"5"), ("earliest", b"0")):
            assert consumer.seek(topic, ONLY, to)  # type: ignore[arg-type]  # each of them is a position
            assert consumer.fetch(1)[0].payload == payload
        consumer.seek(topic, ONLY, "latest")
        assert consumer.fetch(1, timeout_s=0.2) == []
        new = send(client, topic, 1, "new-")
        assert [message.payload for message in consumer.fetch(10)] == new
        assert not consumer.seek(topic, Partition(7, 7), 0)
        assert consumer.seek(topic, str(ONLY), "earliest")
        with pytest.raises(ValueError, match="is no partition: give <broker id>-<number>"):
            consumer.seek(topic, "all", 0)
        with pytest.raises(ValueError, match="start -1"):
            consumer.seek(topic, ONLY, -1)
        consumer.seek(topic, ONLY, seen[7].offset)
        wait_until(lambda: stored(client, topic) == seen[7].offset)


def test_a_listener_may_seek_and_its_batch_does_not_count_then(client: Client, consumer: Consumer, topic: str) -> None:
    calls: list[bytes] = []

    def on_message(message: ReceivedMessage) -> None:
        calls.append(message.payload)
        if len(calls) == 3:
            consumer.seek(message.topic, message.partition, 21)

    send(client, topic, 5)
    consumer.subscribe(topic, on_message=on_message)
    consumer.start()
    wait_until(lambda: len(calls) == 9)
    time.sleep(0.1)
    assert calls == [b"0", b"1", b"2", b"3", b"4", b"1", b"2", b"3", b"4"]
    wait_until(lambda: stored(client, topic) == 105)


@pytest.mark.scenario("B05")
def test_a_group_may_begin_at_a_time_or_always_at_the_end(client: Client, topic: str) -> None:
    send(client, topic, 10)
    time.sleep(0.01)
    noon = datetime.now(UTC)
    expected = send(client, topic, 10, "later-")
    with client.consumer("group", config=ConsumerConfig(start=noon, backoff_s_max=0.1)) as consumer:
        consumer.subscribe(topic)
        consumer.start()
        assert [message.payload for message in consumer.fetch(100)] == expected
    missed = send(client, topic, 5, "missed-")
    config = ConsumerConfig(start="latest", starts_anew=True, backoff_s_max=0.1)
    with client.consumer("group", config=config) as consumer:
        consumer.subscribe(topic)
        consumer.start()
        wait_until(consumer.is_caught_up)
        new = send(client, topic, 3, "new-")
        seen: list[bytes] = []
        while len(seen) < 3:
            seen += [message.payload for message in consumer.fetch(100)]
        assert seen == new
    del missed


def test_a_paused_partition_is_quiet_and_its_neighbours_are_not(client: Client, consumer: Consumer, topic: str) -> None:
    seen: list[tuple[str, bytes]] = []
    for name in (topic, f"{topic}-b"):
        client.producer().send(name, b"before")
        consumer.subscribe(name, on_message=lambda message: seen.append((message.topic, message.payload)))
    consumer.start()
    wait_until(lambda: len(seen) == 2)
    consumer.pause((topic, str(ONLY)))
    assert consumer.paused() == [(topic, ONLY)]
    for wrong in (topic, (topic, "all"), (topic,)):
        with pytest.raises(ConsumerMisuse, match=r"as pairs, \(topic, partition\)"):
            consumer.pause(wrong)  # type: ignore[arg-type]  # what untyped callers write
    producer = client.producer()
    producer.send(topic, b"after")
    producer.send(f"{topic}-b", b"after")
    wait_until(lambda: (f"{topic}-b", b"after") in seen)
    time.sleep(0.3)
    assert (topic, b"after") not in seen
    consumer.resume((topic, ONLY))
    wait_until(lambda: (topic, b"after") in seen)
