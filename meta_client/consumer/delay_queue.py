"""A queue ordered by due time: first the pure order, then the threads that wait for it."""

import heapq
import itertools
import threading
import time
from typing import Generic, TypeVar

Item = TypeVar("Item")


class DelayHeap(Generic[Item]):
    """Items by due time; equal times keep the order in which they came. Pure: the caller has the clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Item]] = []
        self._numbers = itertools.count()  # also keeps items from being compared

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, item: Item, due: float) -> None:
        heapq.heappush(self._heap, (due, next(self._numbers), item))

    def pop_due(self, now: float) -> Item | None:
        """The first item whose time has come; None if there is none."""
        if self._heap and self._heap[0][0] <= now:
            return heapq.heappop(self._heap)[2]
        return None

    def wait_s(self, now: float) -> float | None:
        """How long until an item is due; None: there is no item."""
        return max(0.0, self._heap[0][0] - now) if self._heap else None


class DelayQueue(Generic[Item]):
    """A DelayHeap that threads take from. Any thread may call anything."""

    def __init__(self, changed: threading.Condition) -> None:
        """*changed* is what they wait for; nobody else uses it."""
        self._heap: DelayHeap[Item] = DelayHeap()
        self._changed = changed
        self._is_closed = False

    def put(self, item: Item, delay_s: float) -> None:
        """Make *item* available after *delay_s*. Dropped once the queue is closed."""
        with self._changed:
            self._heap.push(item, time.monotonic() + delay_s)
            self._changed.notify()

    def take(self) -> Item | None:
        """Wait for an item to be due and take it; None once the queue is closed."""
        with self._changed:
            while not self._is_closed:
                now = time.monotonic()
                if (item := self._heap.pop_due(now)) is not None:
                    return item
                self._changed.wait(self._heap.wait_s(now))
            return None

    def close(self) -> None:
        """Send everybody who waits home. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
