"""What clients see of a broker, a real one and one in memory: producers, consumers, transactions, a crash, and requests
of other clients. Users' unit tests stand on the latter."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from journal.records.xid import Xid
from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.consumer import Consumer
from meta_client.consumer.error_policy import OnReject
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.position import LATEST
from meta_client.errors import (
    ConsumerMisuse,
    NoBroker,
    NoPartition,
    PartitionClosed,
    SendFailed,
    SendRefused,
    TransactionFailed,
    TransactionMisuse,
    TransactionUnknown,
)
from meta_client.net.opaques import next_opaque
from meta_client.producer.partition_queues import BatchingConfig
from meta_client.producer.partitioners import ByAttribute
from meta_client.producer.producer import Producer
from meta_client.producer.results import SendResult
from meta_client.protocol.answers import BranchStatus
from meta_client.protocol.errors import LocalProtocolError, XaError
from meta_client.protocol.requests import (
    OFFSET_END,
    Get,
    OffsetQuery,
    Offsets,
    Request,
    TopicCommand,
    TopicVerb,
    Version,
)
from meta_client.protocol.responses import Response, Result, Value
from meta_client.protocol.status import Status
from meta_client.protocol.xa import XaCode
from tests.meta_broker.testing.conftest import OWN_TOPICS, Cluster
from zk.tree.nodes import Partition
from zk.tree.paths import InvalidName

CONFIG = ConsumerConfig(backoff_s_max=0.1, commit_period_s=0.1)
_numbers = itertools.count()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with cluster.client(batching=BatchingConfig(linger_s=0.001)) as it:
        yield it


@pytest.fixture
def topic() -> str:
    return f"t-{next(_numbers) % OWN_TOPICS}"


@pytest.fixture
def producer(client: Client, topic: str) -> Producer:
    return client.producer(qualifier=topic)


def wait_until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def read_all(client: Client, topic: str, group: str = "reader") -> list[ReceivedMessage]:
    """Return what a new group gets until it has caught up."""
    found: list[ReceivedMessage] = []
    with client.consumer(f"{group}-{time.time_ns()}", config=CONFIG) as consumer:
        consumer.subscribe(topic, lambda batch: found.extend(batch.messages))
        consumer.start()
        wait_until(consumer.is_caught_up)
    return sorted(found, key=lambda message: (message.partition, message.offset))


def payloads(client: Client, topic: str) -> list[bytes]:
    return sorted(message.payload for message in read_all(client, topic))


def xid(topic: str, number: int = 1) -> Xid:
    return Xid.of(topic, f"{number}-{time.time_ns()}")


# -- sending ------------------------------------------------------------------------------------------------------


def test_messages_arrive_as_they_were_sent(client: Client, producer: Producer, topic: str) -> None:
    results = [producer.send(topic, b"%d" % number, attribute=f"a{number}") for number in range(6)]
    results.append(producer.send(topic, b""))
    found = read_all(client, topic)
    assert sorted((str(m.partition), m.offset, m.message_id) for m in found) == sorted(
        (str(r.partition), r.offset, r.message_id) for r in results
    )
    assert {(m.attribute, m.payload) for m in found} == {(f"a{n}", b"%d" % n) for n in range(6)} | {(None, b"")}
    assert {str(r.partition) for r in results} == {"0-0", "0-1"}
    assert results[2].offset == results[0].offset != results[1].offset or results[0].offset == 0


@pytest.mark.scenario("A18")
def test_batches_go_together_and_tell_each_place(client: Client, producer: Producer, topic: str) -> None:
    handles = [producer.send_async(topic, b"%d" % number, partition="0-1") for number in range(500)]
    producer.flush(60)
    results = [handle.result(0) for handle in handles]
    found = read_all(client, topic)
    assert [(m.offset, m.message_id, m.payload) for m in found] == [
        (r.offset, r.message_id, b"%d" % number) for number, r in enumerate(results)
    ]


def test_attributes_keep_partitions(client: Client, topic: str) -> None:
    producer = client.producer(partitioner=ByAttribute())
    producer.send(topic, b"first")  # a pattern's topic gets its partitions with its first message
    places = {key: producer.send(topic, b"", attribute=key).partition for key in ("a", "b", "c", "d")}
    assert places == {key: producer.send_async(topic, b"", attribute=key).result(60).partition for key in places}


def test_what_cannot_be_sent(client: Client, producer: Producer, topic: str) -> None:
    with pytest.raises(NoPartition, match="no broker offers this topic"):
        producer.send("unknown", b"")
    with pytest.raises(NoPartition, match="the topic has no such partition"):
        producer.send("single", b"", partition="0-1")
    with pytest.raises(LocalProtocolError, match="longer than"):
        producer.send(topic, bytes(3_000_000))
    with pytest.raises(InvalidName):
        producer.send("t/b", b"")


def test_closed_partitions(cluster: Cluster, client: Client, producer: Producer, topic: str) -> None:
    cluster.close_partition(topic, "0-1")
    assert {producer.send(topic, b"").partition.number for _ in range(4)} == {0}
    with pytest.raises(PartitionClosed, match="closed"):
        producer.send(topic, b"", partition="0-1")
    cluster.close_partition(topic, "0-1", is_closed=False)
    producer.send(topic, b"", partition="0-1")


@pytest.mark.scenario("A16")
def test_the_default_topic_lends_its_brokers_which_must_take_the_name(cluster: Cluster) -> None:
    client = cluster.client(default_topic="single")
    producer = client.producer()
    with pytest.raises(SendRefused, match="do not accept topic nobody"):
        producer.send("nobody", b"")
    assert producer.send("dynamic-1", b"x").partition == Partition(0, 0)
    assert payloads(client, "dynamic-1") == [b"x"]
    client.close()


# -- consuming ----------------------------------------------------------------------------------------------------


def test_a_group_shares_and_goes_on_where_it_was(client: Client, producer: Producer, topic: str) -> None:
    for number in range(20):
        producer.send(topic, b"%d" % number)
    first: list[bytes] = []
    with client.consumer(topic, config=CONFIG) as consumer:
        consumer.subscribe(topic, lambda batch: first.extend(m.payload for m in batch.messages))
        consumer.start()
        wait_until(lambda: len(first) == 20)
        wait_until(consumer.is_caught_up)
    producer.send(topic, b"later")
    seen: list[bytes] = []
    consumers = [client.consumer(topic, config=CONFIG) for _ in range(2)]
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

    with client.consumer(topic, config=CONFIG) as consumer:
        consumer.subscribe(topic, on_message=second_time_lucky)
        consumer.start()
        wait_until(lambda: len(seen) == 2)


def test_messages_can_be_fetched_and_iterated(client: Client, producer: Producer, topic: str) -> None:
    for number in range(5):
        producer.send(topic, b"%d" % number, partition="0-0")
    with client.consumer(topic, config=CONFIG) as consumer:
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
    with client.consumer(topic, config=CONFIG) as consumer:
        consumer.subscribe(
            topic, on_message=lambda message: seen.append(message.payload), accept=lambda it: it.attribute == "odd"
        )
        consumer.start()
        wait_until(consumer.is_caught_up)
    assert seen == [b"1", b"3", b"5"]
    with client.consumer(topic, config=CONFIG) as consumer:
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

    with client.consumer(topic, config=CONFIG) as consumer:
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
    with client.consumer(topic, config=CONFIG) as consumer:
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
    with client.consumer(topic, config=CONFIG) as first, cluster.client() as rival:
        second = rival.consumer(topic, config=CONFIG)
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


# -- local transactions -------------------------------------------------------------------------------------------


def test_local_transactions_show_all_or_nothing(client: Client, producer: Producer, topic: str) -> None:
    with producer.transaction():
        results = [producer.send(topic, b"%d" % number) for number in range(4)]
        assert payloads(client, topic) == []
    assert {result.offset for result in results} == {None}
    transaction = producer.transaction()
    producer.send(topic, b"never")
    transaction.rollback()
    assert payloads(client, topic) == [b"0", b"1", b"2", b"3"]


def test_misuse_of_local_transactions(producer: Producer, topic: str) -> None:
    transaction = producer.transaction()
    with pytest.raises(TransactionMisuse, match="is not over"):
        producer.transaction()
    with pytest.raises(TransactionMisuse, match="not for local transactions"):
        producer.send_async(topic, b"")
    with pytest.raises(XaError) as caught:
        producer.tpc_begin(xid(topic))
    assert caught.value.code == XaCode.XAER_PROTO
    transaction.rollback()
    with pytest.raises(TransactionMisuse, match="is over"):
        transaction.commit()


# -- XA -----------------------------------------------------------------------------------------------------------


def test_two_phases(client: Client, producer: Producer, topic: str) -> None:
    it = xid(topic)
    producer.tpc_begin(it, [topic])
    producer.send(topic, b"one")
    handle = producer.send_async(topic, b"two")
    assert producer.tpc_prepare() is True
    assert handle.result(60).offset is None
    assert producer.tpc_recover() == [it]
    assert producer.tpc_status(it, 0) is BranchStatus.PREPARED
    assert payloads(client, topic) == []
    producer.tpc_commit()
    assert payloads(client, topic) == [b"one", b"two"]
    assert producer.tpc_recover() == []
    assert producer.tpc_status(it, 0) is BranchStatus.COMMITTED


def test_one_phase_rollback_and_read_only(client: Client, producer: Producer, topic: str) -> None:
    producer.tpc_begin(xid(topic, 1), [topic])
    producer.send(topic, b"kept")
    producer.tpc_commit()
    second = xid(topic, 2)
    producer.tpc_begin(second, [topic])
    producer.send(topic, b"dropped")
    assert producer.tpc_status(second, 0) is BranchStatus.ACTIVE
    assert producer.tpc_prepare()
    producer.tpc_rollback()
    assert producer.tpc_status(second, 0) is BranchStatus.ROLLED_BACK
    producer.tpc_begin(xid(topic, 3), [topic])
    assert producer.tpc_prepare() is False
    assert payloads(client, topic) == [b"kept"]


@pytest.mark.parametrize("verb", ["commit", "rollback", "forget"])
def test_unknown_branches(producer: Producer, topic: str, verb: str) -> None:
    with pytest.raises(XaError) as caught:
        getattr(producer, f"tpc_{verb}")(xid(topic, 9))
    assert caught.value.code == XaCode.XAER_NOTA


def test_calls_out_of_order(producer: Producer, topic: str) -> None:
    with pytest.raises(XaError, match="no branch was begun") as caught:
        producer.tpc_prepare()
    assert caught.value.code == XaCode.XAER_PROTO
    it = xid(topic)
    producer.tpc_begin(it, [topic])
    producer.send(topic, b"")
    with pytest.raises(XaError) as caught:
        producer.tpc_begin(it, [topic])
    assert caught.value.code == XaCode.XAER_DUPID
    producer.tpc_prepare()
    with pytest.raises(XaError) as caught:
        producer.send(topic, b"too late")
    assert caught.value.code == XaCode.XAER_PROTO
    producer.tpc_rollback()


def test_another_client_finishes_what_one_prepared(cluster: Cluster, client: Client, topic: str) -> None:
    it = xid(topic)
    with cluster.client() as gone:
        producer = gone.producer(qualifier=topic)
        producer.tpc_begin(it, [topic])
        producer.send(topic, b"in doubt")
        assert producer.tpc_prepare()
    heir = client.producer(qualifier=topic)
    assert heir.tpc_recover() == [it]
    assert client.producer(qualifier="others").tpc_recover() == []
    heir.tpc_commit(it)
    assert payloads(client, topic) == [b"in doubt"]


def test_a_branch_that_runs_out_of_time(cluster: Cluster, producer: Producer, topic: str) -> None:
    it = xid(topic)
    producer.tpc_begin(it, [topic], timeout_s=3)
    producer.send(topic, b"")
    cluster.advance(6)
    wait_until(lambda: producer.tpc_status(it, 0) is not BranchStatus.ACTIVE)
    with pytest.raises(XaError) as caught:
        producer.tpc_prepare()
    assert caught.value.code == XaCode.XAER_NOTA


# -- crashes ------------------------------------------------------------------------------------------------------


def test_a_crash_keeps_what_was_promised_and_nothing_else(cluster: Cluster, client: Client, topic: str) -> None:
    prepared, active, local = (client.producer(qualifier=f"{topic}-{n}") for n in range(3))
    prepared.send(topic, b"plain", partition="0-0")
    in_doubt = xid(topic, 1)
    prepared.tpc_begin(in_doubt, [topic])
    prepared.send(topic, b"prepared")
    prepared.tpc_prepare()
    active.tpc_begin(xid(topic, 2), [topic])
    active.send(topic, b"active")
    transaction = local.transaction()
    local.send(topic, b"local")
    cluster.kill()
    with pytest.raises(SendFailed):
        client.producer().send(topic, b"", timeout_s=0.2)
    cluster.start()
    with pytest.raises(XaError):
        active.tpc_prepare()
    with pytest.raises((TransactionFailed, TransactionUnknown)):
        transaction.commit()
    assert prepared.tpc_recover() == [in_doubt]
    prepared.tpc_commit(in_doubt)
    assert payloads(client, topic) == [b"plain", b"prepared"]
    assert client.producer().send(topic, b"again", partition="0-0").partition == Partition(0, 0)


def test_a_send_waits_for_its_broker(cluster: Cluster, client: Client, topic: str) -> None:
    producer = client.producer()
    producer.send(topic, b"before")
    cluster.kill()
    with pytest.raises(NoBroker, match=r"not sent within 0\.2 s"):
        producer.send(topic, b"", timeout_s=0.2)
    handle = producer.send_async(topic, b"gathered", partition="0-0")
    results: list[SendResult] = []
    waiting = threading.Thread(target=lambda: results.append(producer.send(topic, b"after", timeout_s=60)))
    waiting.start()
    cluster.start()
    waiting.join()
    assert handle.result(60).offset is not None
    assert len(results) == 1
    assert payloads(client, topic) == [b"after", b"before", b"gathered"]


# -- requests as other clients send them ----------------------------------------------------------------------------


def test_requests_of_other_clients(client: Client, producer: Producer, topic: str) -> None:
    place = producer.send(topic, b"hello", partition="0-0")
    producer.send(topic, b"again", partition="0-0")
    connection = client.connections.get(client.topology.view(topic, 60).urls[0], 60)

    def ask(make: Callable[[int], Request]) -> Response:
        return connection.submit(make(next_opaque())).wait(60)

    def told(make: Callable[[int], Request]) -> tuple[int, bytes]:
        answer = ask(make)
        assert isinstance(answer, Result), answer
        return answer.status, answer.message

    assert place.offset is not None
    first = place.offset
    whole = ask(lambda opaque: Get(topic, "g", 0, first, 1000, opaque))
    assert isinstance(whole, Value)
    size = len(whole.body) // 2
    assert told(lambda opaque: Get(topic, "g", 0, 5 * size, 1000, opaque))[0] == Status.NOT_FOUND
    assert told(lambda opaque: Get(topic, "g", 0, -1, 1000, opaque))[0] == Status.MOVED
    assert told(lambda opaque: Get(topic, "g", 0, OFFSET_END, 1000, opaque)) == (Status.MOVED, b"%d" % (2 * size))
    assert told(lambda opaque: Get(topic, "g", 0, 0, 0, opaque))[0] == Status.BAD_REQUEST
    assert told(lambda opaque: Get(topic, "g", 9, 0, 1000, opaque))[0] == Status.NOT_FOUND
    assert told(lambda opaque: OffsetQuery(topic, "g", 0, size, opaque))[0] == Status.SUCCESS
    assert told(lambda opaque: OffsetQuery(topic, "g", 9, 0, opaque))[0] == Status.NOT_FOUND
    status, found = told(lambda opaque: Offsets(topic, 0, 0, opaque))
    assert (status, found.split()[:2]) == (Status.SUCCESS, [b"0", b"%d" % (2 * size)])
    assert told(lambda opaque: Offsets(topic, 9, 0, opaque))[0] == Status.NOT_FOUND
    assert told(Version)[0] == Status.SUCCESS
    status, shown = told(lambda opaque: TopicCommand(TopicVerb.SHOW, topic, (), opaque))
    assert (status, shown.split()[0]) == (Status.SUCCESS, b"partitions=2")
