"""Which batch goes out when: by size, by time, in order, and again in its old place. Time is told."""

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_client.batching.batch import Batch
from meta_client.batching.lanes import IN_FLIGHT_MAX, BatchingConfig, Lanes
from meta_client.connection import Connection
from meta_client.errors import NoPartition
from meta_client.topology import TopicView
from zk.broker_url import BrokerUrl
from zk.nodes import Partition

CONFIG = BatchingConfig(batch_bytes=100, linger_s=1.0, delivery_timeout_s=10.0, buffer_bytes_max=1000)
PARTITIONS = (Partition(0, 0), Partition(0, 1))
VIEW = TopicView("orders", PARTITIONS, {0: BrokerUrl("b", 1)}, PARTITIONS)
ONLY = Partition(0, 1)


def add(lanes: Lanes, body: bytes, now: float, wanted: Partition | None = ONLY) -> Batch:
    batch = lanes.open.get((VIEW.topic, wanted))
    if batch is None or batch.maybe_add(0, body, 20 + len(body)) is None:
        batch = lanes.open_batch(VIEW, wanted, now)
        assert batch.maybe_add(0, body, 20 + len(body)) is not None
    if batch.is_full:
        lanes.seal((VIEW.topic, wanted))
    return batch


def connection() -> Connection:
    return cast(Connection, object())  # lanes only ask whether it is the same


def test_a_batch_goes_when_it_is_full_or_has_waited() -> None:
    lanes = Lanes(CONFIG)
    first = add(lanes, b"x" * 20, 0.0)
    assert add(lanes, b"x" * 20, 0.5) is first
    lanes.seal_due(0.9)
    assert lanes.take_ready(0.9) == []
    assert lanes.next_due() == 1.0
    second = add(lanes, b"x" * 30, 0.9)  # does not fit: the first is sealed
    assert second is not first
    assert lanes.take_ready(0.9) == [first]
    lanes.seal_due(1.9)
    assert lanes.take_ready(1.9) == [second]
    assert (first.number, second.number) == (0, 1)


def test_a_message_larger_than_a_batch_goes_alone() -> None:
    lanes = Lanes(CONFIG)
    batch = add(lanes, b"x" * 500, 0.0)
    lanes.seal_due(0.0)
    assert lanes.take_ready(0.0) == [batch]


def test_a_batch_does_not_overtake_one_that_was_taken_and_is_not_submitted_yet() -> None:
    lanes = Lanes(CONFIG)
    first, second = add(lanes, b"x" * 80, 0.0), add(lanes, b"x" * 80, 0.0)
    link = connection()
    assert lanes.take_ready(0.0) == [first, second]
    assert not lanes.submitted(second, link)
    assert lanes.submitted(first, link)
    assert lanes.take_ready(0.0) == [second]
    assert not lanes.submitted(second, link, alone=True)
    lanes.resume(first)
    assert lanes.take_ready(0.0) == [first, second]
    assert lanes.submitted(first, link, alone=True)
    lanes.settled(first)
    assert lanes.submitted(second, link, alone=True)


def test_batches_of_a_topic_take_its_partitions_in_turn() -> None:
    lanes = Lanes(CONFIG)
    batches = [add(lanes, b"x" * 90, 0.0, None) for _ in range(4)]
    assert [batch.partition.number for batch in batches] == [1, 0, 1, 0]
    with pytest.raises(NoPartition):
        lanes.open_batch(VIEW, Partition(0, 7), 0.0)


def test_a_lane_has_a_few_under_way_and_no_more() -> None:
    lanes = Lanes(CONFIG)
    batches = [add(lanes, b"x" * 90, 0.0) for _ in range(IN_FLIGHT_MAX + 2)]
    lanes.seal_all()
    assert lanes.take_ready(0.0) == batches[:IN_FLIGHT_MAX]
    assert lanes.take_ready(0.0) == []
    lanes.settled(batches[0])
    assert lanes.take_ready(0.0) == [batches[IN_FLIGHT_MAX]]
    assert not lanes.is_empty


def test_none_overtakes_those_under_way_over_another_connection() -> None:
    lanes, old, new = Lanes(CONFIG), connection(), connection()
    first, second = [add(lanes, b"x" * 90, 0.0) for _ in range(2)]
    assert lanes.take_ready(0.0) == [first, second]
    assert lanes.submitted(first, old)
    assert not lanes.submitted(second, new)
    assert not lanes.has_sendable
    first.failures += 1
    lanes.again(first, 0.0)
    rested = lanes.next_due()
    assert rested is not None
    assert lanes.take_ready(rested) == [first, second]
    assert lanes.submitted(first, new)
    assert lanes.submitted(second, new)
    lanes.settled(first)
    lanes.settled(second)
    assert lanes.is_empty


def test_none_overtakes_one_that_waits_to_be_sent_again() -> None:
    lanes, only = Lanes(CONFIG), connection()
    first, second = [add(lanes, b"x" * 90, 0.0) for _ in range(2)]
    assert lanes.take_ready(0.0) == [first, second]
    assert lanes.submitted(first, only)
    first.failures += 1
    lanes.again(first, 0.0)  # heard before the second one's turn
    assert not lanes.submitted(second, only)
    rested = lanes.next_due()
    assert rested is not None
    assert lanes.take_ready(rested) == [first, second]


def test_who_can_reach_some_brokers_takes_what_is_theirs() -> None:
    lanes = Lanes(CONFIG)
    batch = add(lanes, b"x" * 90, 0.0)
    assert lanes.take_ready(0.0, {1}) == []
    assert lanes.has_sendable
    assert lanes.take_ready(0.0, {0, 1}) == [batch]


@given(order=st.permutations(range(IN_FLIGHT_MAX)))
def test_whatever_fails_first_retries_keep_the_order(order: list[int]) -> None:
    lanes = Lanes(CONFIG)
    batches = [add(lanes, b"x" * 90, 0.0) for _ in range(IN_FLIGHT_MAX + 1)]
    lanes.seal_all()
    taken = lanes.take_ready(0.0)
    for index in order:
        taken[index].failures += 1
        lanes.again(taken[index], 5.0)
    assert lanes.take_ready(5.0) == []  # after a failure a lane rests
    due = lanes.next_due()
    assert due is not None
    assert 5.0 < due <= 6.0
    assert lanes.take_ready(due) == batches[:IN_FLIGHT_MAX]


BOTH = (Partition(0, 0), Partition(0, 1), Partition(1, 0))
TWO_BROKERS = TopicView("orders", BOTH, {0: BrokerUrl("b", 1), 1: BrokerUrl("c", 1)}, BOTH)


def fill(lanes: Lanes, wanted: Partition | None, count: int) -> list[Batch]:
    batches = []
    for _ in range(count):
        batches.append(lanes.open_batch(VIEW, wanted, 0.0))
        assert batches[-1].maybe_add(0, b"x" * 90, 110) is not None
        lanes.seal(("orders", wanted))
    return batches


def test_what_nobody_wants_where_it_is_moves_and_the_rest_stays() -> None:
    lanes = Lanes(CONFIG)
    wanted = fill(lanes, Partition(0, 0), 1)
    free = [batch for batch in fill(lanes, None, 16) if batch.partition == Partition(0, 0)]
    assert len(free) == 8
    taken = [batch for batch in lanes.take_ready(0.0) if batch.partition == Partition(0, 0)]
    assert taken == wanted + free[: IN_FLIGHT_MAX - 1]
    assert not lanes.maybe_move(wanted[0], TWO_BROKERS, 0.0)  # it was asked for there
    assert not lanes.maybe_move(taken[1], VIEW, 0.0)  # nowhere is better
    assert not lanes.maybe_move(taken[1], None, 0.0)  # nobody knows
    for batch in taken[1:]:
        assert lanes.maybe_move(batch, TWO_BROKERS, 0.0)
    assert {batch.partition for batch in free} == {Partition(1, 0)}
    assert len({batch.number for batch in free}) == 8
    moved = []
    while ready := [batch for batch in lanes.take_ready(0.0) if batch.partition == Partition(1, 0)]:
        moved += ready
        for batch in ready:
            lanes.settled(batch)
    assert set(moved) == set(free)
    assert [batch.number for batch in moved] == sorted(batch.number for batch in moved)


def test_what_may_have_arrived_does_not_move() -> None:
    lanes, only = Lanes(CONFIG), connection()
    first, second = fill(lanes, None, 3)[::2]
    assert first.partition == second.partition
    lanes.take_ready(0.0)
    lanes.submitted(first, only)
    first.attempts += 1
    assert not lanes.maybe_move(first, TWO_BROKERS, 0.0)
    first.failures += 1
    lanes.again(first, 0.0)
    assert lanes.maybe_move(second, TWO_BROKERS, 0.0)
    assert (first.partition.broker_id, second.partition.broker_id) == (0, 1)
    due = lanes.next_due()
    assert due is not None
    assert lanes.take_ready(due)[0] in (first, second)


def test_who_sends_another_way_learns_whether_it_would_overtake() -> None:
    lanes = Lanes(CONFIG)
    assert not lanes.is_behind("orders", ONLY)
    batch = add(lanes, b"x", 0.0)
    assert lanes.is_behind("orders", ONLY)
    lanes.seal_all()
    assert lanes.is_behind("orders", ONLY)
    lanes.take_ready(0.0)
    assert lanes.is_behind("orders", ONLY)
    lanes.settled(batch)
    assert not lanes.is_behind("orders", ONLY)


def test_a_configuration_must_make_sense() -> None:
    for wrong in ({"batch_bytes": 0}, {"linger_s": -1.0}, {"delivery_timeout_s": 0.0}, {"buffer_bytes_max": 10}):
        with pytest.raises(ValueError):
            BatchingConfig(**wrong)
