"""Producers, transactions, a crash, and requests of other clients: alike at a real broker and in memory, where users'
unit tests run."""

import threading
import time
from collections.abc import Callable

import pytest

from journal.records.xid import Xid
from meta_client.client import Client
from meta_client.errors import (
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
from tests.meta_broker.testing.conftest import Cluster, payloads, read_all, wait_until
from zk.tree.nodes import Partition
from zk.tree.paths import InvalidName


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
