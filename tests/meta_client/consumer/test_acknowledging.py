"""Messages that a filter rejects, in the window of those to acknowledge."""

from meta_client.consumer.acknowledging import AckWindow
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
    assert (window.is_open, window.unacknowledged_from) == (False, 10), "a delivery that was on its way counts"
    window.resume()
    assert window.unacknowledged_from is None
