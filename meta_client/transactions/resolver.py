"""Resolves leftovers of one table's transactions: prepared branches, and rows with brokers that have not confirmed.

A prepared branch is rolled back by inserting a row, unless a row says that it commits: the insert is safe even if the
transaction is still alive. Age only decides when to look. One thread or task at a time; every action may be repeated,
also by other resolvers in parallel.
"""

import contextlib
import logging
import operator
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Final, NamedTuple

from meta_client.coordinator.errors import CannotEnlist, HeuristicOutcome, Unreachable
from meta_client.coordinator.participants import BranchEnd
from meta_client.tracing import TRACING
from meta_client.transactions.brokers import Brokers, SentCommit
from meta_client.transactions.errors import OtherTable
from meta_client.transactions.generation import Generations
from meta_client.transactions.names import TableName
from meta_client.transactions.table import DecisionTable, Opener, Row, RowDecision
from meta_client.transactions.table_clock import TableClock

log = logging.getLogger(__name__)

AGE_S: Final = 3.0
ROWS_AT_ONCE: Final = 1_000
SWEEP_S: Final = 60.0  # how often rows of old rollbacks are deleted
DONE_MAX: Final = 100_000  # transactions that are finished and whose row could not be deleted
ResolverClock = Callable[[], float]
_GENERATION: Final = "table's generation"
RESTORED: Final = "its broker was restored, and it may have ended since: metaq txn doctor shows how to end it by hand"
_ASKED: Final = ("table", "rows", "broker ")  # of problems: those of a table or broker, not of a transaction


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals since the start. Immutable."""

    resolved_committed: int = 0  # branches
    resolved_rolled_back: int = 0
    hazards: int = 0  # decided branches that ended otherwise, or with an unknown outcome
    rows_deleted: int = 0
    errors: int = 0  # passes that could not reach every broker

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*map(operator.add, astuple(self), astuple(other)))


class DecidedTransaction(NamedTuple):
    """A transaction committed in the database, with the COMMITs sent to its brokers. Brokers that could not be reached
    are left to a later pass."""

    gtrid: str
    sent: tuple[SentCommit, ...]
    all_sent: bool  # COMMIT was sent to every broker


def _hazard_text(hazards: Mapping[int, HeuristicOutcome]) -> str:
    """Return every broker's answer, as the row stores it."""
    return "; ".join(map(str, hazards.values()))


class Resolver:
    """Resolver of one table."""

    def __init__(
        self,
        brokers: Brokers,
        name: TableName,
        open_table: Opener,
        age_s: float = AGE_S,
        clock: ResolverClock = time.monotonic,
        generations: Generations | None = None,
    ) -> None:
        """*generations* notices a restored database; None: there is no ZooKeeper to compare with."""
        self.counts = Counts()
        self._brokers = brokers
        self._name = name
        self._open_table = open_table
        self._age_s = age_s
        self._clock = clock
        self._generations = generations
        self._table: DecisionTable | None = None
        self._seen: dict[tuple[str, int], float] = {}  # first seen, by prepared branch
        self._done: set[str] = set()  # confirmed by all brokers
        self._through: set[str] = set()  # confirmed too, with rows too young to be deleted
        self._problems: dict[str, str] = {}  # logged and still present
        self._next_sweep = 0.0
        self._table_clock = TableClock()
        self._pass_ended_at: float | None = None  # end of the last pass

    def finish(self, decided: Iterable[DecidedTransaction]) -> None:
        """Wait for the brokers' replies, and delete the rows of transactions that all brokers have confirmed. Raises
        nothing: failures are left to `run_pass`."""
        for one in decided:
            try:
                for sent in one.sent:
                    self._brokers.confirm(one.gtrid, sent)
            except (Unreachable, HeuristicOutcome) as error:
                log.info("decided transaction left to the resolver gtrid=%s reason=%s", one.gtrid, error)
            else:
                if one.all_sent:
                    self._done.add(one.gtrid)
        self._on_table("rows", self._delete_done)

    def run_pass(self) -> None:
        """Resolve branches that have been prepared for `age_s`, and finish rows of that age. Raises nothing: a later
        call retries what can't be reached."""
        self._on_table("table", self._run_pass)
        self._pass_ended_at = self._clock()

    @property
    def last_pass_age_s(self) -> float | None:
        """Seconds since the last pass ended; None: none has. Any thread."""
        return None if self._pass_ended_at is None else max(self._clock() - self._pass_ended_at, 0.0)

    @property
    def waiting(self) -> int:
        """Number of prepared branches that the last pass saw. Any thread."""
        return len(self._seen)

    @property
    def waiting_oldest_age_s(self) -> float | None:
        """Seconds since a pass first saw the oldest of them; None without one. Any thread."""
        return max((self._clock() - since for since in self._seen.copy().values()), default=None)

    @property
    def unreachable(self) -> tuple[str, ...]:
        """Databases and brokers that the last pass could not ask, each with the reason. Any thread."""
        return tuple(f"{what}: {why}" for what, why in self._problems.copy().items() if what.startswith(_ASKED))

    def close(self) -> None:
        if self._table is not None:
            self._table.close()
            self._table = None

    def _on_table(self, what: str, work: Callable[[DecisionTable], None]) -> None:
        try:
            if self._table is None:
                self._table = self._opened()
            work(self._table)
        except (Unreachable, CannotEnlist) as error:
            self.close()
            self.counts += Counts(errors=1)
            self._log_problem(what, str(error))
        else:
            self._over(what)

    def _opened(self) -> DecisionTable:
        table = self._open_table()
        if table.identity.name != self._name:
            table.close()
            raise OtherTable(table.identity.name.table_id)
        return table

    def _run_pass(self, table: DecisionTable) -> None:
        self._delete_done(table)
        presumes = self._presumes(table)
        listing = self._brokers.listed()
        for broker_id, reason in listing.failures.items():
            self._log_problem(f"broker {broker_id}", reason)
        for broker_id in listing.keys:
            self._over(f"broker {broker_id}")
        now = self._clock()
        self._seen = {branch: self._seen.get(branch, now) for branch in self._brokers.ours(listing)}
        due: dict[str, list[int]] = {}
        for (gtrid, broker_id), since in self._seen.items():
            if now - since >= self._age_s:
                due.setdefault(gtrid, []).append(broker_id)
        is_sound = True
        for gtrid, brokers in due.items():
            is_sound &= self._resolve(table, gtrid, brokers, presumes=presumes)
        rows = table.rows(self._age_s, ROWS_AT_ONCE)
        self._through.intersection_update(row.gtrid for row in rows)
        for row in rows:
            if row.gtrid not in self._through:
                self._finish_row(table, row)
            if row.gtrid in self._through and row.is_old:
                # Until then its transaction, if its COMMIT got no answer, may still need the row.
                self._done.add(row.gtrid)
        left = {row.gtrid for row in rows} | due.keys()
        self._problems = {
            what: problem
            for what, problem in self._problems.items()
            if not what.startswith(self._name.qualifier) or what.partition(" ")[0] in left
        }
        self._delete_done(table)
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_S
            if self._table_clock.is_confirmed(table.clock_s(), now):
                self.counts += Counts(rows_deleted=table.delete_kept())
        if not is_sound:  # it reports failures without saying whether the connection is still usable
            self.close()

    def _presumes(self, table: DecisionTable) -> bool:
        """Return True if a missing row proves that nothing was decided."""
        if self._generations is None:
            return True
        try:
            self._generations.check(table)
        except Unreachable as error:
            self.counts += Counts(errors=1)
            self._log_problem(_GENERATION, str(error))
            return False
        self._over(_GENERATION)
        return True

    def _resolve(self, table: DecisionTable, gtrid: str, brokers: list[int], *, presumes: bool) -> bool:
        """End the branches of a transaction that are prepared at *brokers*. Return False if the table gave no
        answer. Without *presumes*, and of a restored branch, leave alone what has no row."""
        try:
            outcome = table.decided(gtrid)
            if outcome is None and self._may_decide(gtrid, brokers, presumes=presumes):
                outcome = table.resolve(gtrid)
            if outcome is None:
                return True
        except Unreachable as error:  # its transaction may be committing right now
            log.debug("not resolved yet gtrid=%s reason=%s", gtrid, error)
            return False
        for broker_id in brokers:
            try:
                if outcome is RowDecision.COMMIT:
                    self._commit(gtrid, broker_id)
                    self.counts += Counts(resolved_committed=1)
                elif self._rollback(gtrid, broker_id) is BranchEnd.COMMITTED:
                    self._done.add(gtrid)  # finished meanwhile and its row deleted: ours decides nothing
                    continue
                else:
                    self.counts += Counts(resolved_rolled_back=1)
            except Unreachable as error:
                self._log_problem(f"{gtrid} {broker_id}", str(error))
            except HeuristicOutcome as error:
                if outcome is RowDecision.ROLLBACK:
                    self._mark(table, gtrid, {broker_id: error})
                # else its row lists every broker: _finish_row
            else:
                self._seen.pop((gtrid, broker_id), None)
                self._problems.pop(f"{gtrid} {broker_id}", None)
                key = self._name.key(gtrid, broker_id)
                log.info("branch resolved gtrid=%s xid=%s outcome=%s", gtrid, key, outcome.value)
        return True

    def _may_decide(self, gtrid: str, brokers: list[int], *, presumes: bool) -> bool:
        """Return True if a rollback row may be inserted."""
        if not presumes:
            return False
        for broker_id in brokers:
            what = f"{gtrid} {broker_id}"
            try:
                is_restored = self._brokers.is_restored(gtrid, broker_id)
            except Unreachable as error:
                self._log_problem(what, str(error))
                return False
            if is_restored:
                if self._problems.get(what) != RESTORED:
                    self.counts += Counts(hazards=1)
                self._log_problem(what, RESTORED)
                return False
        return True

    def _finish_row(self, table: DecisionTable, row: Row) -> None:
        """Commit at every broker that the row names."""
        if row.brokers is None or not self._name.owns(row.gtrid):
            self._leave(row)
            return
        hazards, is_through = dict[int, HeuristicOutcome](), True
        for broker_id in row.brokers:
            try:
                if self._commit(row.gtrid, broker_id):
                    self.counts += Counts(resolved_committed=1)
                    key = self._name.key(row.gtrid, broker_id)
                    log.info("branch resolved gtrid=%s xid=%s outcome=commit", row.gtrid, key)
            except Unreachable as error:
                is_through = False
                self._log_problem(f"{row.gtrid} {broker_id}", str(error))
            except HeuristicOutcome as error:
                hazards[broker_id] = error
            else:
                self._problems.pop(f"{row.gtrid} {broker_id}", None)
        if hazards:
            if _hazard_text(hazards) != row.hazard:
                self._mark(table, row.gtrid, hazards)
        elif is_through:
            self._through.add(row.gtrid)

    def _commit(self, gtrid: str, broker_id: int) -> bool:
        with self._traced(gtrid, broker_id):
            return self._brokers.commit(gtrid, broker_id)

    def _rollback(self, gtrid: str, broker_id: int) -> BranchEnd:
        with self._traced(gtrid, broker_id):
            return self._brokers.rollback(gtrid, broker_id)

    def _traced(self, gtrid: str, broker_id: int) -> contextlib.AbstractContextManager[object]:
        """Span in the trace of the branch's first message, if this process makes spans."""
        if TRACING.hooks is None:
            return contextlib.nullcontext()
        traceparent = self._brokers.traceparent(gtrid, broker_id)
        return TRACING.hooks.recovering(self._name.key(gtrid, broker_id), traceparent)

    def _leave(self, row: Row) -> None:
        """Log a row that no version of this program wrote, once."""
        if row.gtrid not in self._problems:
            self._problems[row.gtrid] = "unreadable"
            self.counts += Counts(hazards=1)
            log.error("row left alone, its name or its brokers can't be read gtrid=%r", row.gtrid)

    def _record_hazard(self, gtrid: str, broker_id: int, error: HeuristicOutcome) -> None:
        """Record the hazard in the broker's ledger. Ignores an unreachable broker: the row has the hazard."""
        try:
            self._brokers.record_finding(gtrid, broker_id, error, f"resolver@{socket.gethostname()}")
        except Unreachable as failure:
            self._log_problem(f"{gtrid} {broker_id}", str(failure))

    def _mark(self, table: DecisionTable, gtrid: str, hazards: Mapping[int, HeuristicOutcome]) -> None:
        """Record brokers that ended otherwise, in their ledgers and in the row."""
        if self._problems.get(gtrid) != (hazard := _hazard_text(hazards)):
            for broker_id, error in hazards.items():
                self._record_hazard(gtrid, broker_id, error)
            table.mark(gtrid, hazard)
            self._problems[gtrid] = hazard
            self.counts += Counts(hazards=1)
            log.error("row and message may differ gtrid=%s: %s", gtrid, hazard)

    def _delete_done(self, table: DecisionTable) -> None:
        if not self._done:
            return
        done = list(self._done)
        if len(done) > DONE_MAX:
            self._done.clear()  # later passes find their rows
        table.delete(done)
        self._done.clear()
        self.counts += Counts(rows_deleted=len(done))

    def _log_problem(self, what: str, problem: str) -> None:
        """Log a problem once, until it changes or ends."""
        if self._problems.get(what) != problem:
            self._problems[what] = problem
            log.warning("not resolved yet what=%s reason=%s", what, problem)

    def _over(self, what: str) -> None:
        if self._problems.pop(what, None) is not None:
            log.info("reachable again what=%s", what)
