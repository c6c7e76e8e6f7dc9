"""When active branches expire (spec 2.6). Pure: the owner asks what is due; nobody waits here."""

import heapq
import itertools

from journal.states import BranchState
from journal.transaction_store import Transaction


class Timeouts:
    """Branches with a timeout, soonest first. Loop thread only.

    A finished branch stays until its time comes, so that finishing costs nothing; it is not expired then.
    """

    def __init__(self) -> None:
        self._due: list[tuple[int, int, Transaction]] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._due)

    def add(self, transaction: Transaction) -> None:
        """Watch *transaction*, whose timeout is above 0."""
        due_ms = transaction.began_ms + transaction.timeout_ms
        heapq.heappush(self._due, (due_ms, next(self._order), transaction))

    def expired(self, now_ms: int) -> list[Transaction]:
        """Take out what is due and still active; PREPARED never expires."""
        expired = []
        while self._due and self._due[0][0] <= now_ms:
            transaction = heapq.heappop(self._due)[2]
            if transaction.state in (BranchState.START, BranchState.IN_USE):
                expired.append(transaction)
        return expired
