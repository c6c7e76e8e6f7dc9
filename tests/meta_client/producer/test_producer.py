"""Plain sending: which partition, and what each answer or silence becomes."""

import time

import pytest

from meta_client.client import Client
from meta_client.errors import NoBroker, NoPartition, NotReplicated, PartitionClosed, SendRefused, SendUnknown
from meta_client.producer.results import SendResult
from meta_client.protocol.checksum import crc31
from meta_client.protocol.errors import LocalProtocolError
from meta_client.protocol.requests import Put, Request, Version
from tests.meta_client.conftest import StartBroker
from tests.meta_client.peer import HANG_UP, Handler, ok, opaque_of
from zk.embedded.chroot import Chroot
from zk.errors import ZooKeeperError
from zk.tree.nodes import Partition
from zk.tree.paths import InvalidName


def stored(request: Request) -> bytes:
    """A genuine broker: it takes puts."""
    if isinstance(request, Version):
        return ok(request, b"1.4.6")
    assert isinstance(request, Put)
    return ok(request, b"-5468930997472964608 %d 1044" % request.partition)


def puts(received: list[Request]) -> list[Put]:
    return [request for request in received if isinstance(request, Put)]


def only_to_puts(handler: Handler) -> Handler:
    return lambda request: handler(request) if isinstance(request, Put) else stored(request)


def test_round_robin_begins_at_the_second_partition_and_spans_brokers(
    client: Client, start_broker: StartBroker
) -> None:
    start_broker(0, {"orders": 2}, stored)
    start_broker(10, {"orders": 1}, stored)
    producer = client.producer()
    results = [producer.send("orders", b"") for _ in range(5)]
    assert results[0] == SendResult(-5468930997472964608, Partition(0, 1), 1044)
    assert [str(result.partition) for result in results] == ["0-1", "10-0", "0-0", "0-1", "10-0"]


def test_what_goes_out(client: Client, start_broker: StartBroker) -> None:
    broker = start_broker(0, {"orders": 4}, stored)
    client.producer().send("orders", b"hello", attribute="attr", partition="0-3")
    _, put = broker.peer.received
    assert isinstance(put, Put)
    body = b"\x00\x00\x00\x04attrhello"
    assert (put.partition, put.flag, put.checksum, put.key, put.body) == (3, 1, crc31(body), None, body)


def test_the_brokers_choice_of_partition_counts(client: Client, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 4}, lambda request: ok(request, b"7 2 0"))
    assert client.producer().send("orders", b"", partition=Partition(0, 1)).partition == Partition(0, 2)


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (b"result 403 0 %d\r\n", PartitionClosed, r"send to orders/0-0 on meta://.*an operator closed this partition"),
        (
            b"result 500 47 %d\r\nMessage stored on master and not yet replicated",
            NotReplicated,
            r"send to orders/0-0 on meta://.*: Message stored on master and not yet replicated",
        ),
        (b"result 500 4 %d\r\nwhy?", SendRefused, r"send to orders/0-0 on meta://.*the broker refused: why\?"),
        (b"result 200 3 %d\r\n1 2", SendUnknown, "is not a put's answer"),
        (b"value 0 %d\r\n", SendUnknown, "answered with messages"),
    ],
)
def test_what_is_no_success_raises(
    client: Client, start_broker: StartBroker, answer: bytes, error: type[Exception], text: str
) -> None:
    start_broker(0, {"orders": 1}, only_to_puts(lambda request: answer % opaque_of(request)))
    with pytest.raises(error, match=text):
        client.producer().send("orders", b"")


def test_silence_of_a_genuine_broker_is_unknown_and_never_sent_twice(client: Client, start_broker: StartBroker) -> None:
    silence = iter([None, HANG_UP])
    broker = start_broker(0, {"orders": 1}, only_to_puts(lambda request: next(silence)))
    client.producer().partitions("orders")  # ZooKeeper's answer is not in the time that follows
    with pytest.raises(SendUnknown, match=r"no answer within [01]\.?\d* s: the request may have acted"):
        client.producer().send("orders", b"", timeout_s=1.0)
    with pytest.raises(SendUnknown, match="lost before the answer"):
        client.producer().send("orders", b"", timeout_s=60)
    assert len(puts(broker.peer.received)) == 2


@pytest.mark.scenario("A13")
def test_nowhere_to_send(client: Client, start_broker: StartBroker) -> None:
    broker = start_broker(0, {"orders": 2})
    producer = client.producer()
    with pytest.raises(NoPartition, match="send to nothing: no broker offers this topic"):
        producer.send("nothing", b"")
    with pytest.raises(NoPartition, match=r"send to orders/0-2: the topic has no such partition, but 2 others"):
        producer.send("orders", b"", partition="0-2")
    with pytest.raises(ValueError, match="is no partition: give <broker id>-<number>"):
        producer.send("orders", b"", partition="first")
    broker.peer.close()
    with pytest.raises(NoBroker, match=r"send to orders/0-\d on meta://.*: not sent within 0.3 s.*is the broker up"):
        producer.send("orders", b"", timeout_s=0.3)
    with pytest.raises(NoBroker, match=r"send to orders/0-1 on .*waiting for broker 0: .*is the broker up"):
        producer.send("orders", b"", partition="0-1", timeout_s=0.3)


@pytest.mark.scenario("A09")
def test_what_can_never_be_sent(client: Client, start_broker: StartBroker) -> None:
    broker = start_broker(0, {"orders": 1, "two words": 1})
    producer = client.producer()
    with pytest.raises(LocalProtocolError, match="longer than 2097152, which consumers refuse"):
        producer.send("orders", bytes(2_097_153))
    with pytest.raises(LocalProtocolError, match="white space"):
        producer.send("two words", b"")
    with pytest.raises(ZooKeeperError, match="cannot be a ZooKeeper node"):
        producer.send("a/b", b"")
    with pytest.raises(TypeError):
        producer.send("orders", "text")  # type: ignore[arg-type]  # as an untyped caller would
    assert puts(broker.peer.received) == []


def test_the_view_follows_brokers_that_come_and_go(client: Client, start_broker: StartBroker) -> None:
    first = start_broker(0, {"orders": 1}, stored)
    producer = client.producer()
    producer.send("orders", b"")
    start_broker(1, {"orders": 1}, stored)
    wait_for_partitions(client, ["0-0", "1-0"])
    first.registration.unregister()
    wait_for_partitions(client, ["1-0"])
    assert {producer.send("orders", b"").partition for _ in range(3)} == {Partition(1, 0)}


def test_a_topic_that_only_a_wildcard_covers_goes_to_its_brokers(client: Client, start_broker: StartBroker) -> None:
    start_broker(0, {"*": 2}, stored)
    assert client.producer().send("brand-new", b"").partition == Partition(0, 1)


@pytest.mark.scenario("A16")
def test_unannounced_topics_go_where_the_default_topic_goes(zookeeper: Chroot, start_broker: StartBroker) -> None:
    start_broker(0, {"any": 2, "orders": 1}, stored)
    start_broker(1, {"*": 2}, stored)
    with Client(zookeeper.connect, default_topic="any") as client:
        producer = client.producer()
        results = [producer.send("brand-new", b"") for _ in range(4)]
        assert {str(result.partition) for result in results} == {"0-0", "0-1"}
        assert producer.send("orders", b"").partition == Partition(0, 0)
    with pytest.raises(InvalidName):
        Client(zookeeper.connect, default_topic="a/b")


def test_a_broker_that_moved_is_found_again(client: Client, start_broker: StartBroker) -> None:
    first = start_broker(0, {"orders": 1}, stored)
    producer = client.producer()
    producer.send("orders", b"")
    first.registration.unregister()
    first.peer.close()
    second = start_broker(0, {"orders": 1}, stored)
    deadline = time.monotonic() + 60
    while not second.peer.received:
        assert time.monotonic() < deadline
        try:
            producer.send("orders", b"")
        except (NoBroker, NoPartition):
            time.sleep(0.01)


def wait_for_partitions(client: Client, expected: list[str]) -> None:
    deadline = time.monotonic() + 60
    while [str(partition) for partition in client.topology.view("orders", 5).available] != expected:
        assert time.monotonic() < deadline
        time.sleep(0.01)
