"""Lag in seconds of a partition whose long polls end without an answer."""

import time
from typing import Any, cast

import pytest

from meta_client.consumer.assignments import Assignments
from meta_client.consumer.error_policy import ErrorPolicy
from meta_client.consumer.fetched_partition import FetchedPartition
from meta_client.consumer.filtering import MessageFilter
from meta_client.consumer.listening import MessageDelivery
from meta_client.consumer.long_poll import LongPoll
from meta_client.consumer.workers import ThreadWorkers
from meta_client.net.pending_reply import PendingReply
from meta_client.protocol.responses import Data, Response
from zk.tree.nodes import Partition

KEY = "orders", Partition(0, 0)
SILENT_S = 100.0
NOTHING_NEW = Data(opaque=1, body=b"", log_end=0, read_from="")


@pytest.mark.parametrize(
    ("response", "is_old"), [(NOTHING_NEW, False), (None, True)], ids=["answer", "connection lost"]
)
def test_a_lag_grows_from_the_last_answer_on(response: Response | None, *, is_old: bool) -> None:
    """A connection that is lost again and again proves nothing, each time."""
    assignments = Assignments("group", lambda: True, ThreadWorkers().condition())
    assignments.resume(0)
    delivery = MessageDelivery(print, ErrorPolicy(), MessageFilter(None, None), None)
    request = FetchedPartition(*KEY, 0, 100, 1.0, delivery=delivery)
    assignments.add(request)
    request.log_end = 0
    poll = LongPoll(cast(Any, None), 1, 1.0)
    reply = PendingReply(cast(Any, None), 1)
    assert assignments.begin_round(request)
    assert assignments.begin_poll(request, poll)
    request.caught_up_at = time.monotonic() - SILENT_S
    if response is None:
        reply.fail(OSError("gone"))
    else:
        reply.succeed(response)
    assert assignments.end_poll(request, poll, reply)
    seconds = assignments.lags()[KEY].seconds
    assert seconds is not None
    assert (seconds >= SILENT_S) == is_old
