"""Messages that a filter rejects, in the window of those to acknowledge."""

import pytest

from meta_client.consumer.acknowledging import AckWindow
from meta_client.consumer.assignments import Assignments
from meta_client.consumer.delivery import Delivery
from meta_client.consumer.error_policy import ErrorPolicy
from meta_client.consumer.filtering import MessageFilter
from meta_client.consumer.listening import BatchDelivery, MessageDelivery
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.offsets import OffsetTracker
from meta_client.consumer.pulling import PullBuffer, PullDelivery
from meta_client.consumer.workers import ThreadWorkers
from zk.tree.nodes import Partition


def message(number: int) -> ReceivedMessage:
    return ReceivedMessage("orders", Partition(0, 0), number * 10, number, 0, None, b"", number * 10 + 10)


def test_what_a_filter_rejects_counts_once_all_before_it_is_acknowledged() -> None:
    moved: list[int] = []
    window = AckWindow(lambda one: moved.append(one.offset))
    window.pass_over(0, message(0))
    assert moved == [], "nothing is delivered"
    window.open([message(0), message(3)], 0, 60)
    for number in (1, 2, 4):
        window.pass_over(number * 10, message(number))
    assert (moved, window.unacknowledged_from) == ([], 0)
    assert window.acknowledge(message(0))
    assert (moved, window.unacknowledged_from) == ([30], 30)
    assert window.acknowledge(message(0)), "it is already"
    assert window.acknowledge(message(3))
    window.pass_over(50, message(5))
    assert (moved, window.unacknowledged_from) == ([30, 50, 60], None)


@pytest.mark.parametrize("kind", ["batch", "message", "fetched", "looped"])
def test_what_a_filter_rejects_behind_the_last_message_waits_for_no_other_one(kind: str) -> None:
    """The lag of a group that has everything would never be 0."""
    stored: list[int] = []
    taken: list[ReceivedMessage] = []
    window = AckWindow(lambda one: stored.append(one.offset))
    wanted = MessageFilter(lambda one: one.offset == 0, None)
    tracker, workers = OffsetTracker(), ThreadWorkers()
    assignments = Assignments("group", lambda: True, workers.condition())
    assignments.resume(0)
    buffer = PullBuffer(assignments, tracker, 1000, lambda: None)
    delivery: Delivery
    match kind:
        case "batch":
            delivery = BatchDelivery(lambda batch: taken.extend(batch.messages), ErrorPolicy(), wanted, window)
        case "message":
            delivery = MessageDelivery(taken.append, ErrorPolicy(), wanted, window)
        case _:
            delivery = PullDelivery(buffer, tracker, wanted, window)
    delivery.deliver(Batch("orders", Partition(0, 0), 0, 20, [message(0), message(1)]))
    if kind in ("fetched", "looped"):
        taken += buffer.poll(1, 0) if kind == "fetched" else [next(buffer.iterate())]
    delivery.deliver(Batch("orders", Partition(0, 0), 20, 40, [message(2), message(3)]))
    assert stored == []
    assert window.acknowledge(taken[0])
    assert (stored, window.unacknowledged_from) == ([40], None)


def test_what_was_rolled_back_is_unacknowledged_until_it_is_resumed() -> None:
    window = AckWindow(lambda one: None)
    window.open([message(0), message(1)], 0, 20)
    assert window.acknowledge(message(0))
    assert window.rollback() == 10
    window.open([message(1)], 10, 20)
    assert not window.hand_over(message(1)), "a delivery that was on its way counts"
    assert window.unacknowledged_from == 10
    window.resume()
    assert window.unacknowledged_from is None


def test_what_was_rolled_back_counts_once_it_is_delivered_again_not_once_its_batch_is_fetched() -> None:
    """A late acknowledgement, of before the rollback, would take along what its listener has yet to be given."""
    acknowledged: list[int] = []
    answers: list[bool] = []
    window = AckWindow(lambda one: acknowledged.append(one.offset))
    messages = [message(number) for number in range(3)]

    def on_message(one: ReceivedMessage) -> None:
        answers.append(window.acknowledge(messages[2]))

    delivery = MessageDelivery(on_message, ErrorPolicy(), MessageFilter(None, None), window)
    batch = Batch("orders", Partition(0, 0), 0, 30, messages)
    window.open(messages, 0, 30)
    assert window.rollback() == 0
    window.resume()
    delivery.deliver(batch)
    assert answers == [False, False, True]
    assert acknowledged == [30]


def test_a_rollback_before_a_message_keeps_it_and_the_rest_of_its_batch_back() -> None:
    handed: list[int] = []
    window = AckWindow(lambda one: None)

    def accept(one: ReceivedMessage) -> bool:
        if one.offset == 10:
            window.rollback()
        return one.offset != 10

    delivery = MessageDelivery(lambda it: handed.append(it.offset), ErrorPolicy(), MessageFilter(accept, None), window)
    delivery.deliver(Batch("orders", Partition(0, 0), 0, 30, [message(number) for number in range(3)]))
    assert handed == [0]
