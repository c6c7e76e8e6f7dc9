"""Message and consumer scenarios of the ancestor's integration tests (spec 13.1, 13.2), on two real brokers.

docs/scenarios.md maps scenarios to tests; this file has those no other test covers.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.errors import NoPartition
from meta_client.protocol.messages import DATA_BYTES_MAX
from tests.fixtures.broker import running_broker
from tests.integration.conftest import OpenClient, wait_until
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

CONFIG = """
[broker]
segment_bytes = 16777216

[topics.test]
partitions = 10

[topics.meta-test]
partitions = 1

[topics.meta-test2]
partitions = 1
accept_publish = false

[topics.unread]
partitions = 1
accept_subscribe = false
"""
QUICK = ConsumerConfig(backoff_s_max=0.1, commit_period_s=0.2, runners=2)


@pytest.fixture
def two_brokers(tmp_path: Path, zookeeper: Chroot) -> Iterator[None]:
    with (
        running_broker(tmp_path / "zero", zookeeper.connect, config=CONFIG),
        running_broker(tmp_path / "one", zookeeper.connect, broker_id=1, config=CONFIG),
    ):
        yield


pytestmark = pytest.mark.usefixtures("two_brokers")


class Seen:
    """A message listener for several consumers: what came, and how often."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.messages: list[ReceivedMessage] = []

    def __call__(self, message: ReceivedMessage) -> None:
        with self._lock:
            self.messages.append(message)

    @property
    def payloads(self) -> Counter[bytes]:
        with self._lock:
            return Counter(message.payload for message in self.messages)


def publish(client: Client, producers: int, each: int, topic: str = "test", prefix: str = "") -> Counter[bytes]:
    """Messages of several producers, each in a thread."""

    def run(number: int) -> None:
        producer = client.producer()
        for count in range(each):
            producer.send(topic, f"{prefix}{number}-{count}".encode())

    threads = [threading.Thread(target=run, args=(number,)) for number in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Counter(f"{prefix}{number}-{count}".encode() for number in range(producers) for count in range(each))


@pytest.mark.scenario("A02", "A03", "A06")
def test_ten_producers_and_ten_groups_see_everything_once_on_both_brokers(client: Client) -> None:
    """A01, A02, A03 and A06."""
    expected = publish(client, 10, 5)
    groups = {f"group-{number}": Seen() for number in range(10)}
    with contextlib.ExitStack() as stack:
        for group, seen in groups.items():
            consumer = stack.enter_context(client.consumer(group, config=QUICK))
            consumer.subscribe("test", on_message=seen)
            consumer.start()
        wait_until(lambda: all(seen.payloads == expected for seen in groups.values()))
        expected += publish(client, 1, 10, prefix="later-")
        wait_until(lambda: all(seen.payloads == expected for seen in groups.values()))
    assert {message.partition.broker_id for message in groups["group-0"].messages} == {0, 1}


@pytest.mark.scenario("A04")
def test_six_members_that_join_one_after_the_other_process_each_message_once(open_client: OpenClient) -> None:
    """A04, while messages come in."""
    seen, sender = Seen(), open_client()
    expected: Counter[bytes] = Counter()
    with contextlib.ExitStack() as stack:
        for number in range(6):
            consumer = stack.enter_context(open_client().consumer("group", config=QUICK))
            consumer.subscribe("test", on_message=seen)
            consumer.start()
            expected += publish(sender, 1, 17, prefix=f"{number}-")
            wait_until(lambda consumer=consumer: bool(consumer.owned()))  # type: ignore[misc]  # bound in its round
        wait_until(lambda: sum(seen.payloads.values()) >= sum(expected.values()))
    assert seen.payloads == expected


@pytest.mark.scenario("A05", "A08")
def test_two_topics_with_and_without_attributes(client: Client) -> None:
    """A05 and A08."""
    producer, seen = client.producer(), Seen()
    sent = [
        (topic, payload, attribute)
        for topic in ("test", "meta-test")
        for payload in (b"", b"plain", b"\x00\r\n~!@#$%^&*", "\N{SNOWMAN}".encode())
        for attribute in (None, "", "same", f"of {topic} \N{SNOWMAN}")
    ]
    for topic, payload, attribute in sent:
        producer.send(topic, payload, attribute)
    with client.consumer("group", config=QUICK) as consumer:
        consumer.subscribe("test", on_message=seen)
        consumer.subscribe("meta-test", on_message=seen)
        consumer.start()
        wait_until(lambda: len(seen.messages) == len(sent))
    assert Counter((m.topic, m.payload, m.attribute) for m in seen.messages) == Counter(sent)


@pytest.mark.scenario("A07", "A19")
def test_ten_thousand_messages_and_the_largest_there_are(client: Client) -> None:
    """A07 and A19."""
    producer = client.producer()
    for number in range(10_000):
        producer.send_async("test", b"%d" % number)
    producer.flush()
    large = [bytes([number]) * DATA_BYTES_MAX for number in range(3)]
    for payload in large:
        producer.send("meta-test", payload)
    seen = Seen()
    with client.consumer("group", config=QUICK) as consumer:
        consumer.subscribe("test", on_message=seen)
        consumer.subscribe("meta-test", on_message=seen, max_bytes=5 * 1024 * 1024)
        consumer.start()
        wait_until(lambda: len(seen.messages) == 10_003)
    assert seen.payloads == Counter([*(b"%d" % number for number in range(10_000)), *large])


@pytest.mark.scenario("A14", "A17")
def test_topics_that_nobody_may_write_or_read_and_one_that_there_is_not(client: Client) -> None:
    """A14 and A17."""
    with pytest.raises(NoPartition):
        client.producer().send("meta-test2", b"refused")
    client.producer().send("unread", b"for nobody")
    seen = Seen()
    with client.consumer("group", config=QUICK) as consumer:
        for topic in ("unread", "nobody-has-this", "meta-test2"):
            consumer.subscribe(topic, on_message=seen)
        consumer.start()
        wait_until(lambda: {topic for topic, _ in consumer.owned()} == {"meta-test2"})
    assert seen.messages == []


@pytest.mark.scenario("B04")
def test_each_of_five_messages_is_rolled_back_twice(client: Client) -> None:
    """B04, and B01's order."""
    producer = client.producer()
    for number in range(5):
        producer.send("meta-test", b"%d" % number, partition=Partition(0, 0))
    seen, calls = Counter[bytes](), list[bytes]()

    def on_message(message: ReceivedMessage) -> None:
        seen[message.payload] += 1
        calls.append(message.payload)
        if seen[message.payload] < 3:
            raise RuntimeError("rolled back")

    with client.consumer("group", config=QUICK) as consumer:
        consumer.subscribe("meta-test", on_message=on_message)
        consumer.start()
        wait_until(lambda: len(calls) >= 15)
        wait_until(consumer.is_caught_up)
    assert calls == [b"%d" % (number // 3) for number in range(15)]
