"""Delivery to listeners without a broker: what is called, in which order, and what counts as consumed then. Pure."""

import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_client.consumer import listening
from meta_client.consumer.acknowledging import AckWindow
from meta_client.consumer.delivery import Delivery, DeliveryResult
from meta_client.consumer.error_policy import ErrorPolicy, Reject, RejectHandler
from meta_client.consumer.filtering import DuplicateCache, MessageFilter
from meta_client.consumer.listening import BatchDelivery, MessageDelivery
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.offsets import OffsetEntry
from zk.tree.nodes import Partition

PARTITION = Partition(0, 0)
KEY = "orders", PARTITION
SIZE = 100


def message(number: int) -> ReceivedMessage:
    return ReceivedMessage("orders", PARTITION, number * SIZE, number, 0, None, b"%d" % number, (number + 1) * SIZE)


def batch(first: int, count: int) -> Batch:
    messages = [message(number) for number in range(first, first + count)]
    return Batch("orders", PARTITION, first * SIZE, (first + count) * SIZE, messages)


class Listener:
    """Takes a message once it has failed as often as it is to; both as a listener of messages and of batches."""

    def __init__(self, failures: dict[int, int], rejects: set[int]) -> None:
        self.failures = dict(failures)
        self.rejects = rejects
        self.calls: list[int] = []
        self.taken: list[int] = []

    def on_message(self, message: ReceivedMessage) -> None:
        self.calls.append(message.message_id)
        if message.message_id in self.rejects:
            raise Reject("never")
        if self.failures.get(message.message_id, 0):
            self.failures[message.message_id] -= 1
            raise RuntimeError("not now")
        self.taken.append(message.message_id)

    def on_batch(self, batch: Batch) -> None:
        for number in [message.message_id for message in batch.messages]:
            if number in self.rejects:
                raise Reject("never")
            if self.failures.get(number, 0):
                self.failures[number] -= 1
                raise RuntimeError("not now")
        self.taken += [message.message_id for message in batch.messages]


@pytest.mark.parametrize("kind", [MessageDelivery, BatchDelivery])
def test_an_exit_on_the_main_thread_ends_the_program(kind: type[MessageDelivery | BatchDelivery]) -> None:
    """There a loop's listeners run."""
    delivery = kind(lambda given: sys.exit(3), ErrorPolicy(), MessageFilter(None, None), None)
    with pytest.raises(SystemExit, match="3"):
        delivery.deliver(batch(0, 1))


def run(delivery: Delivery, total: int, sizes: list[int]) -> tuple[list[DeliveryResult], int]:
    """Fetch and deliver until all is consumed, with batches of these sizes in turn; returns how far it is."""
    outcomes: list[DeliveryResult] = []
    at = 0
    for turn in range(1000):
        if at == total:
            break
        outcome = delivery.deliver(batch(at, min(sizes[turn % len(sizes)], total - at)))
        outcomes.append(outcome)
        assert outcome.next_offset >= at * SIZE
        if outcome.consumed is not None:
            assert outcome.consumed.offset == outcome.next_offset
        else:
            assert outcome.next_offset == at * SIZE  # nothing counts, so nothing is passed
        assert outcome.failure is None or not outcome.failure.stops
        at = outcome.next_offset // SIZE
    return outcomes, at


of_twenty = given(  # messages: which fail how often, which are rejected, and how many come at once
    failures=st.dictionaries(st.integers(0, 19), st.integers(1, 6)),
    rejects=st.sets(st.integers(0, 19), max_size=3),
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    retries_max=st.integers(0, 4),
)


@of_twenty
def test_messages_come_in_order_so_often_and_no_more_and_what_is_passed_was_taken_or_rejected(
    failures: dict[int, int], rejects: set[int], sizes: list[int], retries_max: int
) -> None:
    listener, refused = Listener(failures, rejects), list[int]()
    policy = ErrorPolicy(retries_max, lambda message, error: refused.append(message.message_id))
    delivery = MessageDelivery(listener.on_message, policy, MessageFilter(None, None), None)
    _, at = run(delivery, 20, sizes)
    assert at == 20
    assert [*sorted(listener.calls)] == listener.calls
    expected_refused = sorted(rejects | {number for number, count in failures.items() if count > retries_max})
    assert refused == expected_refused
    assert listener.taken == [number for number in range(20) if number not in expected_refused]
    calls = Counter(listener.calls)
    for number in range(20):
        expected = 1 if number in rejects else min(failures.get(number, 0), retries_max) + 1
        assert calls[number] == expected


@of_twenty
def test_batches_are_taken_whole_or_singly_and_nothing_is_lost(
    failures: dict[int, int], rejects: set[int], sizes: list[int], retries_max: int
) -> None:
    listener, refused = Listener(failures, rejects), list[int]()
    policy = ErrorPolicy(retries_max, lambda message, error: refused.append(message.message_id))
    delivery = BatchDelivery(listener.on_batch, policy, MessageFilter(None, None), None)
    _, at = run(delivery, 20, sizes)
    assert at == 20
    assert sorted(listener.taken + refused) == list(range(20))  # each once: in a batch, alone, or refused
    assert rejects <= set(refused) <= rejects | failures.keys()


@pytest.mark.parametrize("form", ["message", "batch"])
def test_a_reject_handler_that_fails_is_asked_again_and_nothing_passes_it(form: str) -> None:
    handled: list[int] = []

    def handle(message: ReceivedMessage, error: Exception) -> None:
        handled.append(message.message_id)
        if len(handled) < 3:
            raise OSError("the disk is full")

    listener = Listener({}, {1})
    policy = ErrorPolicy(0, handle)
    delivery: Delivery = (
        MessageDelivery(listener.on_message, policy, MessageFilter(None, None), None)
        if form == "message"
        else BatchDelivery(listener.on_batch, policy, MessageFilter(None, None), None)
    )
    outcomes, _ = run(delivery, 3, [3])
    assert handled == [1, 1, 1]
    assert listener.taken == [0, 2]
    assert [str(outcome.failure.error) for outcome in outcomes if outcome.failure] == ["the disk is full"] * 2


def test_a_partition_stops_and_tries_as_often_again_when_it_goes_on() -> None:
    listener = Listener({0: 3}, set())
    delivery = MessageDelivery(listener.on_message, ErrorPolicy(1), MessageFilter(None, None), None)
    stops = [(f := delivery.deliver(batch(0, 1)).failure) is not None and f.stops for _ in range(4)]
    assert stops == [False, True, False, False]
    assert listener.taken == [0]


def test_a_filter_that_raises_is_a_listener_that_raises() -> None:
    def accept(message: ReceivedMessage) -> bool:
        raise ZeroDivisionError

    never: RejectHandler = lambda message, error: None  # noqa: E731 - a name says what it is
    for delivery in (
        MessageDelivery(print, ErrorPolicy(1, never), MessageFilter(accept, None), None),
        BatchDelivery(print, ErrorPolicy(None), MessageFilter(accept, None), None),
    ):
        outcome = delivery.deliver(batch(0, 2))
        assert outcome.failure is not None
        assert isinstance(outcome.failure.error, ZeroDivisionError)
        assert (outcome.next_offset, outcome.consumed) == (0, None)


def test_what_was_consumed_is_known_again_for_so_many_messages_and_until_a_seek() -> None:
    cache = DuplicateCache(3)
    message_filter = MessageFilter(None, cache)
    listener = Listener({}, set())
    delivery = MessageDelivery(listener.on_message, ErrorPolicy(), message_filter, None)
    for _ in range(2):
        delivery.deliver(batch(0, 3))
    assert listener.taken == [0, 1, 2]
    delivery.deliver(batch(3, 1))  # the oldest is forgotten
    delivery.deliver(batch(0, 1))
    assert listener.taken == [0, 1, 2, 3, 0]
    delivery.discard(KEY, is_seek=False)
    delivery.deliver(batch(3, 1))
    assert listener.taken == [0, 1, 2, 3, 0]
    delivery.discard(KEY, is_seek=True)
    delivery.deliver(batch(3, 1))
    assert listener.taken == [0, 1, 2, 3, 0, 3]


@given(st.lists(st.one_of(st.integers(0, 12), st.just("close"), st.just("open")), max_size=40))
def test_a_window_moves_forward_only_and_only_over_what_is_out(steps: list[int | str]) -> None:
    progress: list[OffsetEntry] = []
    window = AckWindow(progress.append)
    out: tuple[int, int] | None = None  # what is out: acknowledged up to, delivered up to
    again: set[int] = set()  # delivered since it was closed
    at = end = end_closed = 0  # a message before *end_closed* was delivered before it was closed
    for step in steps:
        if step == "close":
            expected = None if out is None else out[0] * SIZE
            assert window.close() == expected
            out, again, end_closed = None, set(), end
        elif step == "open":
            window.open([message(at), message(at + 1)], at * SIZE, (at + 2) * SIZE)
            out = (at if out is None else out[0], max(at + 2, out[1] if out else 0))
            again |= {at, at + 1}
            end = max(end, at + 2)
            at = (at + 2) % 10
        else:
            assert isinstance(step, int)
            counts = out is not None and step + 1 <= out[1] and (step >= end_closed or step in again)
            before = len(progress)
            assert window.acknowledge(message(step)) == counts
            moves = counts and out is not None and step + 1 > out[0]
            assert len(progress) == before + moves
            if moves and out is not None:
                assert progress[-1].offset == (step + 1) * SIZE
                out = (step + 1, out[1])
                end_closed = 0 if out[0] >= end_closed else end_closed
        assert window.unacknowledged_from == (None if out is None or out[0] >= out[1] else out[0] * SIZE)


def test_an_acknowledgement_counts_for_its_message_alone_not_for_another_at_its_offset() -> None:
    progress: list[OffsetEntry] = []
    window = AckWindow(progress.append)
    window.open([message(0), message(1), message(2)], 0, 3 * SIZE)
    assert window.acknowledge(message(0))
    assert window.close() == SIZE
    new = message(2)._replace(message_id=100)
    window.open([message(1), new], SIZE, 3 * SIZE)
    assert not window.acknowledge(message(2))
    assert progress == [OffsetEntry(*KEY, SIZE, 0)]
    assert window.acknowledge(message(1))
    assert window.acknowledge(new)
    assert progress[1:] == [OffsetEntry(*KEY, 2 * SIZE, 1), OffsetEntry(*KEY, 3 * SIZE, 100)]


def test_failures_of_a_message_do_not_count_for_another_at_its_offset() -> None:
    rejected: list[int] = []
    listener = Listener({0: 2, 100: 2}, set())
    policy = ErrorPolicy(2, lambda message, error: rejected.append(message.message_id))
    delivery = MessageDelivery(listener.on_message, policy, MessageFilter(None, None), None)
    new = batch(0, 1)
    new.messages[0] = new.messages[0]._replace(message_id=100)
    assert [delivery.deliver(it).failure is None for it in (batch(0, 1), batch(0, 1), new, new, new)] == [False] * 4 + [
        True
    ]
    assert (listener.taken, rejected) == ([100], [])


@pytest.mark.parametrize("is_batches", [False, True])
def test_no_further_message_is_delivered_once_delivery_does_not_go_on(
    monkeypatch: pytest.MonkeyPatch, *, is_batches: bool
) -> None:
    monkeypatch.setattr(listening, "QUICK_S", 0.0)  # it asks before each message
    listener = Listener({}, {0})
    how = ErrorPolicy(0, lambda message, error: None), MessageFilter(None, None), None
    delivery = BatchDelivery(listener.on_batch, *how) if is_batches else MessageDelivery(listener.on_message, *how)
    outcome = delivery.deliver(batch(0, 5), lambda: len(listener.taken) < 2)
    assert listener.taken == [1, 2]
    assert outcome == DeliveryResult(3 * SIZE, OffsetEntry(*KEY, 3 * SIZE, 2))
    assert delivery.deliver(batch(3, 2), lambda: True).next_offset == 5 * SIZE
    assert listener.taken == [1, 2, 3, 4]


def test_a_quick_listener_is_not_asked_about_before_each_message() -> None:
    asked: list[int] = []
    listener = Listener({}, set())
    delivery = MessageDelivery(listener.on_message, ErrorPolicy(), MessageFilter(None, None), None)

    def goes_on() -> bool:
        asked.append(len(listener.taken))
        return True

    delivery.deliver(batch(0, 10_000), goes_on)
    assert listener.taken == list(range(10_000))
    assert len(asked) < 2_000
