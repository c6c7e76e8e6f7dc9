"""Expiry of active branches (spec 2.6). Pure: the caller asks what is due."""

import heapq
from collections import OrderedDict

from journal.state.live_branch import LiveBranch


class Timeouts:
    """Active branches with a timeout, soonest first. Loop thread only. Times are seconds of a monotonic clock.

    Branches of one timeout are due in the order of their beginning, and a broker sees few timeouts: a queue for each,
    and a heap of the queues. Adding, removing and asking cost the same however many branches there are, and a removed
    branch leaves nothing behind. (A single heap would have to be swept of finished branches.)
    """

    def __init__(self) -> None:
        # Ordered, not plain: finding the front of a plain dictionary skips every item removed from it.
        self._queues: dict[int, OrderedDict[LiveBranch, float]] = {}  # by timeout: due time of each branch
        self._fronts: list[tuple[float, int]] = []  # one a queue: lower bound of its first due time, and its timeout

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, transaction: LiveBranch, now_s: float) -> None:
        """Watch *transaction*, which begins now and whose timeout is above 0."""
        timeout_ms = transaction.timeout_ms
        due_s = now_s + timeout_ms / 1000
        if (queue := self._queues.get(timeout_ms)) is None:
            queue = self._queues[timeout_ms] = OrderedDict()
            heapq.heappush(self._fronts, (due_s, timeout_ms))
        queue[transaction] = due_s

    def discard(self, transaction: LiveBranch) -> None:
        """Stop watching *transaction*, which is prepared or over; no effect if it is not watched."""
        if (queue := self._queues.get(transaction.timeout_ms)) is not None:
            queue.pop(transaction, None)

    def expired(self, now_s: float, count_max: int) -> list[LiveBranch]:
        """Remove and return due branches, soonest first, at most *count_max*."""
        expired: list[LiveBranch] = []
        fronts = self._fronts
        while fronts and fronts[0][0] <= now_s and len(expired) < count_max:
            known_s, timeout_ms = fronts[0]
            queue = self._queues[timeout_ms]
            if not queue:
                heapq.heappop(fronts)
                del self._queues[timeout_ms]
            elif (due_s := next(iter(queue.values()))) > known_s:  # the first branch was removed
                heapq.heapreplace(fronts, (due_s, timeout_ms))
            else:
                expired.append(queue.popitem(last=False)[0])
        return expired
