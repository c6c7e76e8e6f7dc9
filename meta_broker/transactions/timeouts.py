"""When active branches expire (spec 2.6). Pure: the owner asks what is due; nobody waits here."""

import heapq
import itertools

from journal.states import BranchState
from journal.transaction_store import Transaction

_KEPT_MIN = 1024  # below, looking for finished branches is not worth it


class Timeouts:
    """Branches with a timeout, soonest first. Loop thread only. Times are seconds of a clock that is never set.

    A branch that is finished or prepared in time stays until it is due or until such branches are the majority:
    finishing costs nothing, and memory follows what is alive.
    """

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Transaction]] = []
        self._order = itertools.count()
        self._sweep_at = _KEPT_MIN

    def __len__(self) -> int:
        return len(self._due)

    def add(self, transaction: Transaction, now_s: float) -> None:
        """Watch *transaction*, which begins now and whose timeout is above 0."""
        heapq.heappush(self._due, (now_s + transaction.timeout_ms / 1000, next(self._order), transaction))
        if len(self._due) >= self._sweep_at:
            self._due = [entry for entry in self._due if _can_expire(entry[2])]
            heapq.heapify(self._due)
            self._sweep_at = max(2 * len(self._due), _KEPT_MIN)

    def expired(self, now_s: float) -> list[Transaction]:
        """Take out what is due and still active; PREPARED never expires."""
        expired = []
        while self._due and self._due[0][0] <= now_s:
            transaction = heapq.heappop(self._due)[2]
            if _can_expire(transaction):
                expired.append(transaction)
        return expired


def _can_expire(transaction: Transaction) -> bool:
    return transaction.state in (BranchState.START, BranchState.IN_USE)
