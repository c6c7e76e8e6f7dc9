"""A queue ordered by due time: the pure heap, and the blocking queue around it."""

import heapq
import itertools
import threading
import time
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class DelayHeap(Generic[_Item]):
    """Items by due time; equal times keep their order of insertion. Pure: the caller has the clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Item]] = []
        self._numbers = itertools.count()  # tie-breaker, so that items are never compared

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, item: _Item, due: float) -> None:
        heapq.heappush(self._heap, (due, next(self._numbers), item))

    def pop_due(self, now: float) -> _Item | None:
        """Remove and return the first item that is due; None if there is none."""
        if self._heap and self._heap[0][0] <= now:
            return heapq.heappop(self._heap)[2]
        return None

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until an item is due; None without items."""
        return min(max(0.0, self._heap[0][0] - now), threading.TIMEOUT_MAX) if self._heap else None


class DelayQueue(Generic[_Item]):
    """A DelayHeap with a blocking get. Any thread."""

    def __init__(self, changed: threading.Condition) -> None:
        """*changed* must not be shared."""
        self._heap: DelayHeap[_Item] = DelayHeap()
        self._changed = changed
        self._is_closed = False

    def put(self, item: _Item, delay_s: float) -> None:
        """Make *item* available after *delay_s*. Dropped once the queue is closed."""
        with self._changed:
            self._heap.push(item, time.monotonic() + delay_s)
            self._changed.notify()

    def get(self) -> _Item | None:
        """Wait until an item is due, remove and return it; None once the queue is closed."""
        with self._changed:
            while not self._is_closed:
                now = time.monotonic()
                if (item := self._heap.pop_due(now)) is not None:
                    return item
                self._changed.wait(self._heap.wait_s(now))
            return None

    def close(self) -> None:
        """Release all waiting threads. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
