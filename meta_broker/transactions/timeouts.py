"""When active branches expire (spec 2.6). Pure: the owner asks what is due; nobody waits here."""

import heapq
from collections import OrderedDict

from journal.transaction_store import Transaction


class Timeouts:
    """Active branches with a timeout, soonest first. Loop thread only. Times are seconds of a clock that is never set.

    Branches of one timeout are due in the order of their beginning, and a broker sees few timeouts: a queue for each,
    and a heap of the queues. So coming, going and asking cost the same however many branches there are, and what has
    gone leaves nothing behind. (One heap of all branches must be swept of those that finished in time, which with a
    hundred thousand of them holds up everybody for a tenth of a second.)
    """

    def __init__(self) -> None:
        # Ordered, not plain: the front of a plain dictionary is found by passing everything that was taken from it.
        self._queues: dict[int, OrderedDict[Transaction, float]] = {}  # by timeout: when each branch is due
        self._fronts: list[tuple[float, int]] = []  # one a queue: due no sooner than that, and its timeout

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, transaction: Transaction, now_s: float) -> None:
        """Watch *transaction*, which begins now and whose timeout is above 0."""
        timeout_ms = transaction.timeout_ms
        due_s = now_s + timeout_ms / 1000
        if (queue := self._queues.get(timeout_ms)) is None:
            queue = self._queues[timeout_ms] = OrderedDict()
            heapq.heappush(self._fronts, (due_s, timeout_ms))
        queue[transaction] = due_s

    def discard(self, transaction: Transaction) -> None:
        """*transaction* is prepared or over: it does not expire any more. Nothing happens if it is not watched."""
        if (queue := self._queues.get(transaction.timeout_ms)) is not None:
            queue.pop(transaction, None)

    def expired(self, now_s: float, count_max: int) -> list[Transaction]:
        """Take out what is due, soonest first, *count_max* branches at most."""
        expired: list[Transaction] = []
        fronts = self._fronts
        while fronts and fronts[0][0] <= now_s and len(expired) < count_max:
            known_s, timeout_ms = fronts[0]
            queue = self._queues[timeout_ms]
            if not queue:
                heapq.heappop(fronts)
                del self._queues[timeout_ms]
            elif (due_s := next(iter(queue.values()))) > known_s:  # who was first has gone
                heapq.heapreplace(fronts, (due_s, timeout_ms))
            else:
                expired.append(queue.popitem(last=False)[0])
        return expired
