"""Status of a coordinator: open transactions, and counts since it was opened."""

import threading
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from journal.records.xid import Xid
from meta_client.coordinator.recovery import Action, RecoveredTransaction
from meta_client.coordinator.steps import TwoPhaseStep


class TransactionEnd(StrEnum):
    """Ends of a transaction, as its own block saw them."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    LEFT = "left"  # decided; a side has not confirmed, or ended otherwise: recovery goes on
    UNKNOWN = "unknown"  # the decision may or may not be durable


_OF_STEP: Final = {
    TwoPhaseStep.FORGOTTEN: TransactionEnd.COMMITTED,
    TwoPhaseStep.ROLLED_BACK: TransactionEnd.ROLLED_BACK,
    TwoPhaseStep.BEGUN: TransactionEnd.ROLLED_BACK,  # it ended on entry
    TwoPhaseStep.DECIDED: TransactionEnd.LEFT,
    TwoPhaseStep.COMMITTED_DATABASE: TransactionEnd.LEFT,
    TwoPhaseStep.COMMITTED_BROKER: TransactionEnd.LEFT,
}


class CoordinatorCounts(NamedTuple):
    outcomes: dict[TransactionEnd, int]
    recovered: dict[Action, int]  # transactions that recovery ended
    recovery_failures: int  # reports of recoveries about a transaction that is not finished
    hazards: int  # transactions that recovery found ended otherwise on one side: mend them by hand


class CoordinatorStatus(NamedTuple):
    """Status of a coordinator. Ages in seconds; None: there is none."""

    transactions_open: int
    decisions_unfinished: int
    decisions_oldest_age_s: float | None
    rollbacks_pending: int
    rollbacks_oldest_age_s: float | None
    is_log_failed: bool
    counts: CoordinatorCounts


class Counter:
    """Counts what a coordinator does. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = CoordinatorCounts(dict.fromkeys(TransactionEnd, 0), dict.fromkeys(Action, 0), 0, 0)
        self._hazards: set[Xid] = set()

    def ended(self, last: TwoPhaseStep | None) -> None:
        """Count a transaction whose block has ended after step *last*; None: it never began."""
        if last is not None:
            with self._lock:
                self._counts.outcomes[_OF_STEP.get(last, TransactionEnd.UNKNOWN)] += 1

    def recovered(self, reports: Iterable[RecoveredTransaction]) -> None:
        """Count what a recovery has done, and what it could not do."""
        with self._lock:
            for report in reports:
                if report.problem is None:
                    self._counts.recovered[report.action] += 1
                    self._hazards.discard(report.xid)
                else:
                    failures = self._counts.recovery_failures + 1
                    self._counts = self._counts._replace(recovery_failures=failures)
                    if report.is_hazard:
                        self._hazards.add(report.xid)

    def forgotten(self, xid: Xid) -> None:
        """Note that a hazard was mended by hand."""
        with self._lock:
            self._hazards.discard(xid)

    def snapshot(self) -> CoordinatorCounts:
        with self._lock:
            outcomes, recovered = dict(self._counts.outcomes), dict(self._counts.recovered)
            return self._counts._replace(outcomes=outcomes, recovered=recovered, hazards=len(self._hazards))
