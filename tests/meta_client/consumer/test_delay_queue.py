"""Order by due time, stable; and threads that wait for it (B07)."""

import math
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_client.consumer.delay_queue import DelayHeap, DelayQueue


@pytest.mark.scenario("B07")
@given(st.lists(st.integers(0, 5)), st.lists(st.integers(0, 6), min_size=1))
def test_the_heap_is_a_stable_sort_that_waits(dues: list[int], clock: list[int]) -> None:
    heap: DelayHeap[int] = DelayHeap()
    for item, due in enumerate(dues):
        heap.push(item, due)
    taken = []
    for now in sorted(clock):
        while (popped := heap.pop_due(now)) is not None:
            taken.append(popped)
        wait = heap.wait_s(now)
        assert wait is None or wait > 0
    expected = [item for item in sorted(range(len(dues)), key=dues.__getitem__) if dues[item] <= max(clock)]
    assert taken == expected
    assert len(heap) == len(dues) - len(expected)


def test_a_taker_waits_for_the_due_time_and_not_longer() -> None:
    queue: DelayQueue[str] = DelayQueue(threading.Condition())
    started = time.monotonic()
    queue.put("never", 600)
    queue.put("later", 1.0)
    queue.put("sooner", 0.05)
    assert [queue.get(), queue.get()] == ["sooner", "later"]
    assert 1.0 <= time.monotonic() - started < 60


def test_an_earlier_item_wakes_a_waiter_for_a_later_one() -> None:
    queue: DelayQueue[str] = DelayQueue(threading.Condition())
    queue.put("later", math.inf)
    threading.Timer(0.05, queue.put, ("now", 0)).start()
    assert queue.get() == "now"


def test_closing_sends_everybody_home() -> None:
    queue: DelayQueue[str] = DelayQueue(threading.Condition())
    queue.put("later", 60)
    taken: list[object] = []
    threads = [threading.Thread(target=lambda: taken.append(queue.get())) for _ in range(3)]
    for thread in threads:
        thread.start()
    queue.close()
    for thread in threads:
        thread.join(60)
    assert taken == [None, None, None]
    assert queue.get() is None
