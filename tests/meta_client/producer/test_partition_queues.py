"""Release of batches: by size, by time, in order, and again in the same place. Time is passed in."""

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_client.errors import NoPartition
from meta_client.metadata.topology import TopicView
from meta_client.net.connection import Connection
from meta_client.producer.batch import ProducerBatch
from meta_client.producer.partition_queues import IN_FLIGHT_MAX, BatchingConfig, PartitionQueues
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import Partition

CONFIG = BatchingConfig(batch_bytes=100, linger_s=1.0, delivery_timeout_s=10.0, buffer_bytes_max=1000)
PARTITIONS = (Partition(0, 0), Partition(0, 1))
VIEW = TopicView("orders", PARTITIONS, {0: BrokerUrl("b", 1)}, PARTITIONS)
ONLY = Partition(0, 1)


def add(queues: PartitionQueues, body: bytes, now: float, wanted: Partition | None = ONLY) -> ProducerBatch:
    batch = queues.open.get((VIEW.topic, wanted))
    if batch is None or batch.maybe_add(0, body, 20 + len(body)) is None:
        batch = queues.open_batch(VIEW, wanted, now)
        assert batch.maybe_add(0, body, 20 + len(body)) is not None
    if batch.is_full:
        queues.seal((VIEW.topic, wanted))
    return batch


def connection() -> Connection:
    return cast(Connection, object())  # queues only ask whether it is the same


def test_a_batch_goes_when_it_is_full_or_has_waited() -> None:
    queues = PartitionQueues(CONFIG)
    first = add(queues, b"x" * 20, 0.0)
    assert add(queues, b"x" * 20, 0.5) is first
    queues.seal_due(0.9)
    assert queues.take_ready(0.9) == []
    assert queues.next_due() == 1.0
    second = add(queues, b"x" * 30, 0.9)  # does not fit: the first is sealed
    assert second is not first
    assert queues.take_ready(0.9) == [first]
    queues.seal_due(1.9)
    assert queues.take_ready(1.9) == [second]
    assert (first.number, second.number) == (0, 1)


def test_a_message_larger_than_a_batch_goes_alone() -> None:
    queues = PartitionQueues(CONFIG)
    batch = add(queues, b"x" * 500, 0.0)
    queues.seal_due(0.0)
    assert queues.take_ready(0.0) == [batch]


def test_a_batch_does_not_overtake_one_that_was_taken_and_is_not_submitted_yet() -> None:
    queues = PartitionQueues(CONFIG)
    first, second = add(queues, b"x" * 80, 0.0), add(queues, b"x" * 80, 0.0)
    link = connection()
    assert queues.take_ready(0.0) == [first, second]
    assert not queues.mark_submitted(second, link)
    assert queues.mark_submitted(first, link)
    assert queues.take_ready(0.0) == [second]
    assert not queues.mark_submitted(second, link, alone=True)
    queues.requeue_now(first)
    assert queues.take_ready(0.0) == [first, second]
    assert queues.mark_submitted(first, link, alone=True)
    queues.mark_settled(first)
    assert queues.mark_submitted(second, link, alone=True)


def test_batches_of_a_topic_take_its_partitions_in_turn() -> None:
    queues = PartitionQueues(CONFIG)
    batches = [add(queues, b"x" * 90, 0.0, None) for _ in range(4)]
    assert [batch.partition.number for batch in batches] == [1, 0, 1, 0]
    with pytest.raises(NoPartition):
        queues.open_batch(VIEW, Partition(0, 7), 0.0)


def test_a_queue_has_a_few_in_flight_and_no_more() -> None:
    queues = PartitionQueues(CONFIG)
    batches = [add(queues, b"x" * 90, 0.0) for _ in range(IN_FLIGHT_MAX + 2)]
    queues.seal_all()
    assert queues.take_ready(0.0) == batches[:IN_FLIGHT_MAX]
    assert queues.take_ready(0.0) == []
    queues.mark_settled(batches[0])
    assert queues.take_ready(0.0) == [batches[IN_FLIGHT_MAX]]
    assert not queues.is_empty


def test_none_overtakes_those_under_way_over_another_connection() -> None:
    queues, old, new = PartitionQueues(CONFIG), connection(), connection()
    first, second = [add(queues, b"x" * 90, 0.0) for _ in range(2)]
    assert queues.take_ready(0.0) == [first, second]
    assert queues.mark_submitted(first, old)
    assert not queues.mark_submitted(second, new)
    assert not queues.has_sendable
    first.failures += 1
    queues.requeue(first, 0.0)
    rested = queues.next_due()
    assert rested is not None
    assert queues.take_ready(rested) == [first, second]
    assert queues.mark_submitted(first, new)
    assert queues.mark_submitted(second, new)
    queues.mark_settled(first)
    queues.mark_settled(second)
    assert queues.is_empty


def test_none_overtakes_one_that_waits_to_be_sent_again() -> None:
    queues, only = PartitionQueues(CONFIG), connection()
    first, second = [add(queues, b"x" * 90, 0.0) for _ in range(2)]
    assert queues.take_ready(0.0) == [first, second]
    assert queues.mark_submitted(first, only)
    first.failures += 1
    queues.requeue(first, 0.0)  # heard before the second one's turn
    assert not queues.mark_submitted(second, only)
    rested = queues.next_due()
    assert rested is not None
    assert queues.take_ready(rested) == [first, second]


def test_a_member_that_reaches_some_brokers_takes_their_partitions() -> None:
    queues = PartitionQueues(CONFIG)
    batch = add(queues, b"x" * 90, 0.0)
    assert queues.take_ready(0.0, {1}) == []
    assert queues.has_sendable
    assert queues.take_ready(0.0, {0, 1}) == [batch]


@given(order=st.permutations(range(IN_FLIGHT_MAX)))
def test_whatever_fails_first_retries_keep_the_order(order: list[int]) -> None:
    queues = PartitionQueues(CONFIG)
    batches = [add(queues, b"x" * 90, 0.0) for _ in range(IN_FLIGHT_MAX + 1)]
    queues.seal_all()
    taken = queues.take_ready(0.0)
    for index in order:
        taken[index].failures += 1
        queues.requeue(taken[index], 5.0)
    assert queues.take_ready(5.0) == []  # a backoff follows a failure
    due = queues.next_due()
    assert due is not None
    assert 5.0 < due <= 6.0
    assert queues.take_ready(due) == batches[:IN_FLIGHT_MAX]


BOTH = (Partition(0, 0), Partition(0, 1), Partition(1, 0))
TWO_BROKERS = TopicView("orders", BOTH, {0: BrokerUrl("b", 1), 1: BrokerUrl("c", 1)}, BOTH)


def fill(queues: PartitionQueues, wanted: Partition | None, count: int) -> list[ProducerBatch]:
    batches = []
    for _ in range(count):
        batches.append(queues.open_batch(VIEW, wanted, 0.0))
        assert batches[-1].maybe_add(0, b"x" * 90, 110) is not None
        queues.seal(("orders", wanted))
    return batches


def test_what_nobody_wants_where_it_is_moves_and_the_rest_stays() -> None:
    queues = PartitionQueues(CONFIG)
    wanted = fill(queues, Partition(0, 0), 1)
    free = [batch for batch in fill(queues, None, 16) if batch.partition == Partition(0, 0)]
    assert len(free) == 8
    taken = [batch for batch in queues.take_ready(0.0) if batch.partition == Partition(0, 0)]
    assert taken == wanted + free[: IN_FLIGHT_MAX - 1]
    assert not queues.maybe_move(wanted[0], TWO_BROKERS, 0.0)  # it was asked for there
    assert not queues.maybe_move(taken[1], VIEW, 0.0)  # nowhere is better
    assert not queues.maybe_move(taken[1], None, 0.0)  # nobody knows
    for batch in taken[1:]:
        assert queues.maybe_move(batch, TWO_BROKERS, 0.0)
    assert {batch.partition for batch in free} == {Partition(1, 0)}
    assert len({batch.number for batch in free}) == 8
    moved = []
    while ready := [batch for batch in queues.take_ready(0.0) if batch.partition == Partition(1, 0)]:
        moved += ready
        for batch in ready:
            queues.mark_settled(batch)
    assert set(moved) == set(free)
    assert [batch.number for batch in moved] == sorted(batch.number for batch in moved)


def test_what_may_have_arrived_does_not_move() -> None:
    queues, only = PartitionQueues(CONFIG), connection()
    first, second = fill(queues, None, 3)[::2]
    assert first.partition == second.partition
    queues.take_ready(0.0)
    queues.mark_submitted(first, only)
    first.attempts += 1
    assert not queues.maybe_move(first, TWO_BROKERS, 0.0)
    first.failures += 1
    queues.requeue(first, 0.0)
    assert queues.maybe_move(second, TWO_BROKERS, 0.0)
    assert (first.partition.broker_id, second.partition.broker_id) == (0, 1)
    due = queues.next_due()
    assert due is not None
    assert queues.take_ready(due)[0] in (first, second)


def test_who_sends_another_way_learns_whether_it_would_overtake() -> None:
    queues = PartitionQueues(CONFIG)
    assert not queues.has_pending("orders", ONLY)
    batch = add(queues, b"x", 0.0)
    assert queues.has_pending("orders", ONLY)
    queues.seal_all()
    assert queues.has_pending("orders", ONLY)
    queues.take_ready(0.0)
    assert queues.has_pending("orders", ONLY)
    queues.mark_settled(batch)
    assert not queues.has_pending("orders", ONLY)


def test_a_configuration_must_make_sense() -> None:
    for wrong in ({"batch_bytes": 0}, {"linger_s": -1.0}, {"delivery_timeout_s": 0.0}, {"buffer_bytes_max": 10}):
        with pytest.raises(ValueError):
            BatchingConfig(**wrong)
