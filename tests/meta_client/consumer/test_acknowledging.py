"""Messages that a filter rejects, in the window of those to acknowledge."""

from meta_client.consumer.acknowledging import AckWindow
from meta_client.consumer.error_policy import ErrorPolicy
from meta_client.consumer.filtering import MessageFilter
from meta_client.consumer.listening import MessageDelivery
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from zk.tree.nodes import Partition


def message(number: int) -> ReceivedMessage:
    return ReceivedMessage("orders", Partition(0, 0), number * 10, number, 0, None, b"", number * 10 + 10)


def test_what_a_filter_rejects_counts_once_all_before_it_is_acknowledged() -> None:
    moved: list[int] = []
    window = AckWindow(lambda one: moved.append(one.offset))
    window.pass_over(message(0))
    assert moved == [], "nothing is delivered"
    window.open([message(0), message(2)], 0, 40)
    window.pass_over(message(1))
    assert (moved, window.unacknowledged_from) == ([], 0)
    assert window.acknowledge(message(0))
    window.pass_over(message(1))
    assert (moved, window.unacknowledged_from) == ([10, 20], 20)
    assert window.acknowledge(message(0)), "it is already"
    assert moved == [10, 20]


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
