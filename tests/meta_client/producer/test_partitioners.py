"""Partition of a key: as a pure function, and as producers use it."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_client.client import Client
from meta_client.errors import NoBroker, NoPartition
from meta_client.metadata.topology import TopicView
from meta_client.producer.outgoing import RoundRobin
from meta_client.producer.partitioners import ByAttribute, PartitionContext, choose, key_hash
from meta_client.protocol.requests import Request, Version
from tests.meta_client.conftest import StartBroker
from tests.meta_client.peer import ok
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import Partition

KNOWN = tuple(Partition(broker, number) for broker in (0, 1) for number in range(4))
UP = KNOWN[:4]


def place(attribute: str | None, known: tuple[Partition, ...] = KNOWN) -> PartitionContext:
    return PartitionContext("orders", attribute, b"", known, UP)


def test_the_hash_never_changes() -> None:
    """Another release or language must send a key where this one does."""
    assert [key_hash(key) for key in ("", "shop-1", "日本")] == [0, 0xD3763790, 0xC7B7CDCC]


@given(st.lists(st.text(), min_size=1))
def test_a_key_has_one_partition_whichever_brokers_are_up(keys: list[str]) -> None:
    choose = ByAttribute()
    for key in keys:
        chosen = choose(place(key))
        assert chosen in KNOWN
        assert chosen == ByAttribute()(place(key)._replace(available=()))


def test_keys_spread_and_no_key_means_no_choice() -> None:
    counts = Counter(ByAttribute()(place(f"key {number}")) for number in range(8000))
    assert set(counts) == set(KNOWN)
    assert max(counts.values()) < 1300
    assert ByAttribute()(place(None)) is None


def test_expected_partitions_count_whatever_is_seen() -> None:
    choose = ByAttribute({"orders": {0: 4, 1: 4}})
    for number in range(100):
        assert choose(place(f"{number}", known=UP)) == ByAttribute()(place(f"{number}"))


@pytest.mark.parametrize("counts", [{}, {0: 0}, {-1: 4}])
def test_expected_partitions_must_make_sense(counts: dict[int, int]) -> None:
    with pytest.raises(ValueError, match="expected partitions of orders"):
        ByAttribute({"orders": counts})


def test_who_can_wait_is_given_a_place_nearly_always() -> None:
    urls = {0: BrokerUrl("a", 1)}
    view = TopicView("orders", KNOWN, urls, UP)
    choice = RoundRobin()
    assert {choice.choose_allowing_down(view) for _ in range(8)} == set(UP)
    assert choice.choose_allowing_down(view, KNOWN[7]) == KNOWN[7]
    assert choice.choose_allowing_down(view, avoided={0}) in UP  # there is no other
    both = TopicView("orders", KNOWN, urls | {1: BrokerUrl("b", 1)}, KNOWN)
    assert {choice.choose_allowing_down(both, avoided={0}).broker_id for _ in range(8)} == {1}
    gone = TopicView("orders", known=KNOWN)
    assert choice.choose_allowing_down(gone) in KNOWN


@pytest.mark.parametrize(
    ("changes", "wanted", "broker_id", "why"),
    [
        ({}, Partition(5, 0), None, "the topic has no such partition, but 8 others"),
        ({}, KNOWN[7], None, "broker 1 is not up: start it, or wait"),
        ({"partitions": KNOWN[1:], "available": UP[1:]}, KNOWN[0], None, "its broker does not offer it any more"),
        ({"urls": {0: BrokerUrl("a", 1), 1: BrokerUrl("b", 1)}}, KNOWN[7], 0, "the transaction is on broker 0"),
        ({"partitions": (), "available": ()}, None, None, "no broker offers this topic: start one that does"),
        ({"available": ()}, None, None, "no broker of this topic is up"),
        ({}, None, 1, "the broker with the transaction is not up"),
        ({}, None, 5, "the broker with the transaction does not have this topic"),
    ],
)
def test_where_nothing_can_be_sent_the_reason_is_told(
    changes: dict[str, Any], wanted: Partition | None, broker_id: int | None, why: str
) -> None:
    known: dict[str, Any] = {"partitions": KNOWN, "urls": {0: BrokerUrl("a", 1)}, "available": UP, "known": KNOWN}
    view = TopicView("orders", **(known | changes))
    with pytest.raises((NoPartition, NoBroker), match=why):
        RoundRobin().choose(view, wanted, broker_id)


def test_a_transaction_s_partitioner_chooses_among_its_broker_s() -> None:
    both = TopicView("orders", KNOWN, {0: BrokerUrl("a", 1), 1: BrokerUrl("b", 1)}, KNOWN)
    assert choose(lambda context: context.available[-1], both, b"", "k", 0) == UP[-1]
    assert choose(lambda context: context.available[-1], both, b"", "k", None) == KNOWN[-1]


def stored(request: Request) -> bytes:
    return ok(request, b"" if isinstance(request, Version) else b"7 %d 0" % getattr(request, "partition", 0))


def test_a_producers_own_function(client: Client, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 4}, stored)
    seen: list[PartitionContext] = []

    def last(message: PartitionContext) -> Partition | None:
        seen.append(message)
        return message.partitions[-1] if message.payload else None

    producer = client.producer(partitioner=last)
    assert producer.send("orders", b"x", attribute="a").partition == Partition(0, 3)
    assert producer.send_async("orders", b"x").result(60).partition == Partition(0, 3)
    assert producer.send("orders", b"x", partition="0-1").partition == Partition(0, 1)
    assert {producer.send("orders", b"").partition.number for _ in range(4)} == set(range(4))
    assert seen[0] == PartitionContext("orders", "a", b"x", UP, UP)
    assert len(seen) == 6


def test_a_function_that_chooses_nonsense(client: Client, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, stored)
    producer = client.producer(partitioner=lambda message: 3)  # type: ignore[arg-type,return-value]  # as untyped code
    with pytest.raises(TypeError, match="the partitioner chose 3 for orders: return a partition it got"):
        producer.send("orders", b"")


def test_a_key_keeps_its_partition_while_its_broker_is_not_registered(
    client: Client, start_broker: StartBroker
) -> None:
    start_broker(0, {"orders": 2}, stored)
    second = start_broker(1, {"orders": 2}, stored)
    producer = client.producer(partitioner=ByAttribute())
    keys = [f"key {number}" for number in range(40)]
    before = {key: producer.send("orders", b"", attribute=key).partition for key in keys}
    assert {partition.broker_id for partition in before.values()} == {0, 1}
    second.registration.unregister()
    while client.topology.view("orders", 5).urls.keys() != {0}:
        pass
    chosen = {}
    for key in keys:
        message = PartitionContext("orders", key, b"", client.topology.view("orders", 5).known, ())
        chosen[key] = ByAttribute()(message)
    assert chosen == before
    assert all(producer.send("orders", b"").partition.broker_id == 0 for _ in range(5))
