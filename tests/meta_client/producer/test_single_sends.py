"""One message and every way its sending can go wrong: again under its number, elsewhere, or given up in time."""

import threading
import time
from collections.abc import Callable

import pytest

from meta_client.client import Client
from meta_client.errors import NoBroker, NoPartition, NotReplicated, PartitionClosed, SendRefused, SendUnknown
from meta_client.producer.partitioners import ByAttribute, key_hash
from meta_client.producer.single_sends import LAST_S
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.messages import iter_frames
from meta_client.protocol.requests import MultiPut, Put, Request, Version
from meta_client.protocol.status import Status
from tests.meta_client.conftest import ScriptedBroker, StartBroker
from tests.meta_client.peer import HANG_UP, Handler, ok
from zk.tree.nodes import Partition


def stored(request: Request) -> bytes:
    match request:
        case Version(opaque):
            return encode_result(Status.SUCCESS, b"1.4.6 metaq/0.1.0 mput", opaque)
        case MultiPut():
            return ok(request, b"4096 %d 1000" % request.partition)
    raise AssertionError(request)


def to_batches(answer: Callable[[MultiPut], bytes | None]) -> Handler:
    return lambda request: answer(request) if isinstance(request, MultiPut) else stored(request)


def batches(broker: ScriptedBroker) -> list[MultiPut]:
    return [request for request in broker.peer.received if isinstance(request, MultiPut)]


def test_a_message_is_a_batch_of_one_with_a_rising_number(client: Client, start_broker: StartBroker) -> None:
    broker = start_broker(0, {"orders": 1}, stored)
    producers = [client.producer(), client.producer()]
    results = [producer.send("orders", b"x", attribute="a") for producer in producers * 2]
    assert [(r.message_id, r.partition, r.offset) for r in results] == [(4096, Partition(0, 0), 1000)] * 4
    sent = batches(broker)
    assert [(batch.count, batch.key) for batch in sent] == [(1, None)] * 4
    assert len({batch.sequence.producer for batch in sent if batch.sequence}) == 1
    assert [batch.sequence.number for batch in sent if batch.sequence] == [1, 2, 3, 4]
    assert [(m.attribute, m.payload) for _, _, m in iter_frames(sent[0].body)] == [("a", b"x")]


def test_threads_at_the_same_time_have_a_name_each(client: Client, start_broker: StartBroker) -> None:
    arrived = threading.Barrier(4)

    broker = start_broker(0, {"orders": 1}, stored)
    producer = client.producer()

    def work() -> None:
        arrived.wait(60)
        for _ in range(20):
            producer.send("orders", b"x")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last: dict[str, int] = {}
    for batch in batches(broker):
        assert batch.sequence is not None
        assert batch.sequence.number > last.get(batch.sequence.producer, 0)
        last[batch.sequence.producer] = batch.sequence.number
    assert 1 <= len(last) <= 4
    assert sum(last.values()) == 80


def test_what_is_not_answered_is_sent_again_under_its_number(client: Client, start_broker: StartBroker) -> None:
    lost = iter([HANG_UP, HANG_UP])
    broker = start_broker(0, {"orders": 2}, to_batches(lambda request: next(lost, None) or stored(request)))
    client.producer().send("orders", b"once", timeout_s=60)
    sent = batches(broker)
    assert len(sent) == 3
    assert len({(batch.sequence, batch.partition, batch.body) for batch in sent}) == 1


def test_one_number_limits_it_all_and_is_named(client: Client, start_broker: StartBroker) -> None:
    start_broker(0, {"silent": 1, "gone": 1}, to_batches(lambda request: HANG_UP if request.topic == "gone" else None))
    producer = client.producer()
    for topic, text in (("silent", "not answered within 1.5 s: .*gave no answer"), ("gone", "1.5 s and .* attempts")):
        producer.partitions(topic)  # ZooKeeper's answer is not in the time that follows
        begin = time.monotonic()
        with pytest.raises(SendUnknown, match=text):
            producer.send(topic, b"", timeout_s=1.5)
        assert 1.4 < time.monotonic() - begin < 30


def test_a_message_that_may_go_anywhere_goes_to_a_broker_that_is_up(client: Client, start_broker: StartBroker) -> None:
    dead = start_broker(0, {"orders": 2}, stored)
    start_broker(1, {"orders": 2}, stored)
    producer = client.producer()
    assert {producer.send("orders", b"").partition.broker_id for _ in range(4)} == {0, 1}
    dead.peer.close()  # ZooKeeper still says that it is up
    begin = time.monotonic()
    assert {producer.send("orders", b"", timeout_s=600).partition.broker_id for _ in range(20)} == {1}
    assert {producer.send_async("orders", b"").result(60).partition.broker_id for _ in range(20)} == {1}
    assert time.monotonic() - begin < 20  # not a second for each that might have gone to the other one
    with pytest.raises(NoBroker, match=r"orders/0-0 .*not sent within 0.3 s.* waiting for broker 0: no connection"):
        producer.send("orders", b"", partition="0-0", timeout_s=0.3)


def test_what_may_have_arrived_goes_nowhere_else(client: Client, start_broker: StartBroker) -> None:
    """The second broker would take it, and then there might be two."""
    first = start_broker(0, {"orders": 1}, to_batches(lambda request: HANG_UP))
    second = start_broker(1, {"orders": 1}, stored)
    producer = client.producer()
    outcomes = set()
    for _ in range(2):  # one of them is the first broker's turn
        try:
            outcomes.add(str(producer.send("orders", b"", timeout_s=1.5).partition))
        except SendUnknown as error:
            outcomes.add(f"unknown at {error.destination.partition}")
    assert outcomes == {"unknown at 0-0", "1-0"}
    assert (len(batches(first)) > 1, len(batches(second)) <= 1) == (True, True)


def test_a_broker_that_comes_back_in_time_gets_it(client: Client, start_broker: StartBroker) -> None:
    first = start_broker(0, {"orders": 1}, stored)
    producer = client.producer()
    producer.send("orders", b"")
    first.registration.unregister()
    first.peer.close()
    later = threading.Timer(0.3, start_broker, args=(0, {"orders": 1}, stored))
    later.start()
    assert producer.send("orders", b"", timeout_s=60).partition == Partition(0, 0)
    later.join()


def test_a_key_waits_for_a_broker_that_was_away_from_the_beginning(client: Client, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, stored)
    producer = client.producer(partitioner=ByAttribute({"orders": {0: 1, 1: 1}}))
    client.producer().partitions("orders")  # ZooKeeper's answer is not in the time that follows
    key = next(key for key in "abcdefgh" if key_hash(key) % 2)
    with pytest.raises(
        NoBroker, match=r"orders/1-0 on broker 1: not sent within 0\.2 s.*waiting for broker 1: it is not up"
    ):
        producer.send("orders", b"", attribute=key, timeout_s=0.2)
    with pytest.raises(NoPartition, match="the topic has no such partition"):
        producer.send("orders", b"", partition="0-1")
    handle = producer.send_async("orders", b"first", attribute=key)
    later = threading.Timer(0.3, start_broker, args=(1, {"orders": 1}, stored))
    later.start()
    assert producer.send("orders", b"second", attribute=key, timeout_s=60).partition == Partition(1, 0)
    assert handle.is_done
    assert handle.result(0).partition == Partition(1, 0)
    later.join()


def test_a_closed_partition_is_passed_by_unless_it_was_named(client: Client, start_broker: StartBroker) -> None:
    def only_one(request: MultiPut) -> bytes:
        if request.partition != 1:
            return encode_result(Status.FORBIDDEN, b"closed", request.opaque)
        return stored(request)

    start_broker(0, {"orders": 3}, to_batches(only_one))
    producer = client.producer()
    assert {producer.send("orders", b"").partition.number for _ in range(6)} == {1}
    with pytest.raises(PartitionClosed):
        producer.send("orders", b"", partition="0-2")


def test_a_refusal_is_final(client: Client, start_broker: StartBroker) -> None:
    broker = start_broker(
        0, {"orders": 1}, to_batches(lambda request: encode_result(Status.INTERNAL_ERROR, b"no room", request.opaque))
    )
    with pytest.raises(SendRefused, match="no room"):
        client.producer().send("orders", b"")
    assert len(batches(broker)) == 1


def test_send_does_not_overtake_what_was_gathered_for_the_same_partition(
    client: Client, start_broker: StartBroker
) -> None:
    broker = start_broker(0, {"orders": 2}, stored)
    producer = client.producer()
    for number in range(50):
        producer.send_async("orders", b"%d" % (2 * number), partition="0-1")
        producer.send("orders", b"%d" % (2 * number + 1), partition="0-1")
    arrived = [int(m.payload) for batch in batches(broker) for _, _, m in iter_frames(batch.body)]
    assert arrived == list(range(100))


def test_a_put_is_never_repeated_to_a_genuine_broker(client: Client, start_broker: StartBroker) -> None:
    def genuine(request: Request) -> bytes:
        return HANG_UP if isinstance(request, Put) else ok(request, b"1.4.6")

    broker = start_broker(0, {"orders": 1}, genuine)
    with pytest.raises(SendUnknown, match="lost before the answer"):
        client.producer().send("orders", b"")
    assert sum(isinstance(request, Put) for request in broker.peer.received) == 1


def refused(request: MultiPut, text: bytes, status: Status = Status.INTERNAL_ERROR) -> bytes:
    return encode_result(status, text, request.opaque)


LATER = b"put to [partition 'orders-0']: nothing was done: slaves in sync: none: try again later"
ON_THE_MASTER = b"Message stored on master and not yet replicated: no slave in sync has confirmed it within 4 s"


def test_a_broker_that_refuses_for_now_is_left_alone_for_a_while(client: Client, start_broker: StartBroker) -> None:
    one = start_broker(0, {"orders": 1}, to_batches(lambda request: refused(request, LATER)))
    other = start_broker(1, {"orders": 1}, stored)
    producer = client.producer()
    for _ in range(8):
        assert producer.send("orders", b"x", timeout_s=60).partition == Partition(1, 0)
    assert (len(batches(one)), len(batches(other))) == (1, 8)


@pytest.mark.parametrize(
    ("text", "status"), [(LATER, Status.INTERNAL_ERROR), (b"the disk is full: send again", Status.UNAVAILABLE)]
)
def test_a_refusal_for_now_is_repeated_within_the_time(
    client: Client, start_broker: StartBroker, text: bytes, status: Status
) -> None:
    refusals = iter([text] * 3)

    def answer(request: MultiPut) -> bytes:
        refusal = next(refusals, None)
        return stored(request) if refusal is None else refused(request, refusal, status)

    broker = start_broker(0, {"orders": 1}, to_batches(answer))
    assert client.producer().send("orders", b"x", timeout_s=60).message_id == 4096
    assert len({batch.sequence for batch in batches(broker)}) == 1
    assert len(batches(broker)) == 4


def test_a_broker_that_goes_on_refusing_is_told_in_time(client: Client, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, to_batches(lambda request: refused(request, LATER)))
    with pytest.raises(NoBroker, match=r"not sent within 0\.3 s .* slaves in sync: none"):
        client.producer().send("orders", b"x", timeout_s=0.3)


@pytest.mark.parametrize("left_s", [0.0, 0.00005, LAST_S / 2])
def test_no_attempt_begins_that_could_only_end_as_unknown(
    client: Client, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch, left_s: float
) -> None:
    """Tell a message that was refused each time as not sent, however little time the last wait leaves."""
    broker = start_broker(0, {"orders": 1}, to_batches(lambda request: refused(request, LATER)))
    monkeypatch.setattr("meta_client.net.deadline.Deadline.remaining_s", lambda deadline: 60 if not slept else left_s)
    slept: list[float] = []
    monkeypatch.setattr(client._shared.sends, "_sleep", slept.append)
    with pytest.raises(NoBroker, match=r"not sent within 60 s and 2 attempts"):
        client.producer().send("orders", b"x", timeout_s=60)
    assert len(batches(broker)) == 2


def test_what_is_on_the_master_alone_is_sent_again_under_its_number(client: Client, start_broker: StartBroker) -> None:
    answers = iter([ON_THE_MASTER, LATER, ON_THE_MASTER])

    def answer(request: MultiPut) -> bytes:
        failure = next(answers, None)
        return stored(request) if failure is None else refused(request, failure)

    brokers = [start_broker(broker_id, {"orders": 1}, to_batches(answer)) for broker_id in (0, 1)]
    client.producer().send("orders", b"x", timeout_s=60)
    sent = [batches(broker) for broker in brokers]
    assert sorted(map(len, sent)) == [0, 4]  # never elsewhere: it is stored
    assert len({batch.sequence for of_one in sent for batch in of_one}) == 1


def test_what_stays_on_the_master_alone_is_told_as_that(client: Client, start_broker: StartBroker) -> None:
    answers = iter([ON_THE_MASTER])
    start_broker(0, {"orders": 1}, to_batches(lambda request: refused(request, next(answers, LATER))))
    with pytest.raises(NotReplicated, match=r"not replicated within 0\.3 s .*: Message stored on master"):
        client.producer().send("orders", b"x", timeout_s=0.3)


def test_short_lived_producers_reach_every_partition(
    client: Client, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # of what makes other tests deterministic
    start_broker(0, {"orders": 4}, stored)
    assert {client.producer().send("orders", b"x").partition.number for _ in range(100)} == set(range(4))
