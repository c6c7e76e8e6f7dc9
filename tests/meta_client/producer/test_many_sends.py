"""The handle of many messages: which of them failed, in the numbers of the call, and how long it waits."""

import pytest

from meta_client.errors import Destination, NoBroker, ReplyTimeout, SendRefused
from meta_client.producer.batch import ProducerBatch, SendHandle
from meta_client.producer.many_sends import SendManyHandle
from meta_client.producer.message_run import RunPart
from meta_client.producer.results import SendResult
from meta_client.protocol.answers import PutPlace
from zk.tree.nodes import Partition

PLACE = Partition(0, 1)
REFUSED = SendRefused("no room", Destination("orders", PLACE), 500)
DOWN = NoBroker("it is not up", Destination("orders", PLACE))


def batch(count: int) -> ProducerBatch:
    made = ProducerBatch("orders", PLACE, 0.0, 0.0)
    made.bodies = [b"12345"] * count
    made.flags = [0] * count
    return made


def test_places_in_the_order_of_the_call() -> None:
    first, second = batch(3), batch(2)
    # Two callers share a batch, and the partitioner took messages in turn.
    handle = SendManyHandle([RunPart(first, 1, [0, 3]), RunPart(second, 0, [1, 2])], 4)
    assert not handle.is_done
    with pytest.raises(ReplyTimeout, match=r"within 0\.01 s"):
        handle.result(0.01)
    first.complete(PutPlace(70, 1, 1000))
    second.complete(PutPlace(90, 1, 5000))
    assert handle.is_done
    places = handle.result(0)
    expected = [(71, 1025), (90, 5000), (91, 5025), (72, 1050)]
    assert list(places) == [SendResult(message_id, PLACE, offset) for message_id, offset in expected]
    assert places[-1] == places[3]
    assert places[1:3] == list(places)[1:3]
    with pytest.raises(IndexError):
        places[4]
    assert handle.failures() == []


def test_failures_name_their_messages() -> None:
    whole, singly = batch(2), batch(3)
    singly.sends_singly = True
    handle = SendManyHandle([RunPart(singly, 0, [1, 3, 5]), RunPart(whole, 0, [0, 2])], 6)
    singly.record(REFUSED)
    singly.record(PutPlace(7, 1, 100))
    singly.record(REFUSED)
    singly.complete(None)
    assert [(failed.indexes, failed.error) for failed in handle.failures()] == [([1, 5], REFUSED)]
    assert not handle.is_done
    whole.complete(DOWN)
    assert [(failed.indexes, failed.error) for failed in handle.failures()] == [([0, 2], DOWN), ([1, 5], REFUSED)]
    with pytest.raises(NoBroker):
        handle.result(0)


def test_what_is_settled_stays_so_while_others_wait_for_it() -> None:
    """A thread that waits takes the lock, for a moment, when it is released."""
    failed = batch(1)
    handle, one = SendManyHandle([RunPart(failed, 0, [0])], 1), SendHandle(failed, 0)
    failed.complete(REFUSED)
    with failed._settled:
        assert (handle.is_done, one.is_done) == (True, True)
        assert [(failed.indexes, failed.error) for failed in handle.failures()] == [([0], REFUSED)]
        for each in (handle, one):
            with pytest.raises(SendRefused):
                each.result(0)
