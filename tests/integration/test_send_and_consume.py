"""Messages through a real broker: in, out, once, in order; and what a broken broker or listener does to them."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Sequence

import pytest

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.offsets import OffsetEntry
from meta_client.errors import ConsumerMisuse, NoBroker, SendFailed, SendUnknown
from tests.fixtures.broker import BrokerProcess
from tests.integration.conftest import Inbox, OpenClient, wait_until
from zk.groups.offsets import ZooKeeperOffsets
from zk.tree.nodes import Partition


def send_many(client: Client, topic: str, count: int, prefix: str = "") -> Counter[bytes]:
    producer = client.producer()
    payloads = [f"{prefix}{number}".encode() for number in range(count)]
    for payload in payloads:
        producer.send(topic, payload)
    return Counter(payloads)


@pytest.mark.scenario("A01")
def test_everything_arrives_once_in_order_with_attributes(broker: BrokerProcess, client: Client) -> None:
    producer = client.producer()
    results = [producer.send("orders", b"%d" % n, attribute=None if n % 3 else f"key-{n}é") for n in range(200)]
    producer.send("orders", b"", attribute="")
    inbox = Inbox()
    with client.consumer("group") as consumer:
        consumer.subscribe("orders", inbox)
        consumer.start()
        wait_until(lambda: len(inbox.messages) == 201)
        wait_until(consumer.is_caught_up)
    assert max(inbox.payloads.values()) == 1
    by_id = {message.message_id: message for message in inbox.messages}
    for number, result in enumerate(results):
        message = by_id[result.message_id]
        assert (message.partition, message.offset) == (result.partition, result.offset)
        assert message.payload == b"%d" % number
        assert message.attribute == (None if number % 3 else f"key-{number}é")
    for partition in {message.partition for message in inbox.messages}:
        offsets = [message.offset for message in inbox.messages if message.partition == partition]
        assert offsets == sorted(offsets)
    del broker


def test_a_group_goes_on_where_it_stopped_and_groups_do_not_disturb_each_other(
    broker: BrokerProcess, client: Client
) -> None:
    expected = send_many(client, "orders", 20)
    for group in ("one", "two"):
        inbox = Inbox()
        with client.consumer(group) as consumer:
            consumer.subscribe("orders", inbox)
            consumer.start()
            wait_until(consumer.is_caught_up)
        assert inbox.payloads == expected
    more = send_many(client, "orders", 20, "more-")
    again = Inbox()
    with client.consumer("one") as consumer:
        consumer.subscribe("orders", again)
        consumer.start()
        wait_until(consumer.is_caught_up)
    assert again.payloads == more
    stored = ZooKeeperOffsets(client.session, "one").load_many([("orders", Partition(0, n)) for n in range(4)])
    assert sorted(node.message_id for node in stored.values()) == sorted(
        max(m.message_id for m in again.messages if m.partition.number == n) for n in range(4)
    )
    del broker


@pytest.mark.scenario("B05")
def test_a_new_group_may_begin_with_what_comes_next(broker: BrokerProcess, client: Client) -> None:
    send_many(client, "orders", 20, "old-")
    inbox = Inbox()
    with client.consumer("group", config=ConsumerConfig(start="latest")) as consumer:
        consumer.subscribe("orders", inbox)
        consumer.start()
        wait_until(consumer.is_caught_up)
        expected = send_many(client, "orders", 20, "new-")
        wait_until(lambda: len(inbox.messages) >= 20)
    assert inbox.payloads == expected
    del broker


def test_a_failing_listener_sees_the_same_batch_again_and_nothing_is_skipped(
    broker: BrokerProcess, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    expected = send_many(client, "meta-test", 10)
    inbox, attempts = Inbox(), []

    def fail_twice(batch: Batch) -> None:
        attempts.append(batch.offset)
        if len(attempts) < 3:
            raise RuntimeError("the database is down")

    inbox.before = fail_twice
    with client.consumer("group", config=ConsumerConfig(backoff_s_max=0.2)) as consumer:
        consumer.subscribe("meta-test", inbox)
        consumer.start()
        wait_until(lambda: len(inbox.messages) == 10)
    assert inbox.payloads == expected
    assert attempts[:3] == [0, 0, 0]
    assert sum("listener failed, same messages again" in record.message for record in caplog.records) == 2
    del broker


def test_a_batch_that_failed_is_not_committed(broker: BrokerProcess, client: Client) -> None:
    send_many(client, "meta-test", 3)
    inbox, called = Inbox(), threading.Event()

    def fail(batch: Batch) -> None:
        called.set()
        raise RuntimeError("never")

    inbox.before = fail
    with client.consumer("group") as consumer:
        consumer.subscribe("meta-test", inbox)
        consumer.start()
        assert called.wait(60)
    assert ZooKeeperOffsets(client.session, "group").load("meta-test", Partition(0, 0)) is None
    del broker


@pytest.mark.scenario("A15")
def test_messages_larger_than_a_fetch_come_alone(broker: BrokerProcess, client: Client) -> None:
    producer = client.producer()
    sizes = [10, 5_000, 10, 200_000, 10]
    for size in sizes:
        producer.send("meta-test", b"x" * size)
    inbox = Inbox()
    with client.consumer("group") as consumer:
        consumer.subscribe("meta-test", inbox, max_bytes=100)
        consumer.start()
        wait_until(lambda: len(inbox.messages) == len(sizes))
    assert [len(message.payload) for message in inbox.messages] == sizes
    del broker


def test_a_killed_broker_comes_back_and_consumption_goes_on(broker: BrokerProcess, client: Client) -> None:
    before = send_many(client, "orders", 20, "before-")
    inbox = Inbox()
    with client.consumer("group") as consumer:
        consumer.subscribe("orders", inbox)
        consumer.start()
        wait_until(lambda: len(inbox.messages) == 20)
        broker.kill()
        with pytest.raises(NoBroker):
            send_until_refused(client)
        broker.start()
        after: Counter[bytes] = Counter()
        producer = client.producer()
        while len(after) < 20:
            payload = f"after-{len(after)}".encode()
            try:
                producer.send("orders", payload)
            except SendFailed:
                time.sleep(0.05)
            else:
                after[payload] += 1
        wait_until(lambda: inbox.payloads >= before + after)
    assert inbox.overlaps == 0


def send_until_refused(client: Client) -> None:
    while True:
        with contextlib.suppress(SendUnknown):  # one may be on its way before the client sees the end
            client.producer().send("orders", b"into the gap")


def test_offsets_may_be_kept_elsewhere(broker: BrokerProcess, client: Client) -> None:
    class Database:
        """Keeps offsets with what the listener makes of the messages; commits are not needed."""

        def __init__(self) -> None:
            self.rows: list[bytes] = []
            self.next_offset = 0

        def on_batch(self, batch: Batch) -> None:
            assert batch.offset == self.next_offset
            self.rows += [message.payload for message in batch.messages]
            self.next_offset = batch.next_offset

        def load(self, topic: str, partition: Partition) -> int | None:
            del topic, partition
            return self.next_offset or None

        def commit(self, entries: Sequence[OffsetEntry]) -> None:
            del entries

    database = Database()
    expected: list[bytes] = []
    for run in range(3):
        expected.extend(sorted(send_many(client, "meta-test", 5, f"{run}-")))
        with client.consumer("group", offsets=database) as consumer:
            consumer.subscribe("meta-test", database.on_batch)
            consumer.start()
            wait_until(lambda: len(database.rows) == len(expected))
    assert database.rows == expected
    assert ZooKeeperOffsets(client.session, "group").load("meta-test", Partition(0, 0)) is None
    del broker


def test_a_consumer_is_used_in_order(broker: BrokerProcess, client: Client, open_client: OpenClient) -> None:
    consumer = client.consumer("group")
    with pytest.raises(ConsumerMisuse, match="subscribes to nothing"):
        consumer.start()
    inbox = Inbox()
    raised: list[BaseException] = []

    def close_it(batch: Batch) -> None:
        try:
            consumer.close()
        except ConsumerMisuse as error:
            raised.append(error)

    inbox.before = close_it
    consumer.subscribe("orders", inbox)
    with pytest.raises(ConsumerMisuse, match="has been subscribed to already"):
        consumer.subscribe("orders", inbox)
    consumer.start()
    with pytest.raises(ConsumerMisuse, match="subscribe before start"):
        consumer.subscribe("invoices", inbox)
    with pytest.raises(ConsumerMisuse, match="was started before: start it once"):
        consumer.start()
    open_client().producer().send("orders", b"")
    wait_until(lambda: len(inbox.messages) == 1)
    assert "would wait for itself" in str(raised[0])
    consumer.close()
    consumer.close()
    for again in (consumer.start, consumer.__enter__):
        with pytest.raises(ConsumerMisuse, match="is closed: make another one"):
            again()
    del broker
