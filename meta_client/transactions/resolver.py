"""Resolves leftovers of one table's transactions: prepared branches, and rows with brokers that have not confirmed.

A prepared branch is rolled back by inserting a row, unless a row says that it commits: the insert is safe even if the
transaction is still alive. Age only decides when to look. Hundreds are decided, and ended, together. One thread or task
at a time; every action may be repeated, also by other resolvers in parallel.
"""

import logging
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from meta_client.coordinator.errors import CannotEnlist, HeuristicOutcome, Unreachable
from meta_client.coordinator.participants import BranchEnd
from meta_client.transactions.brokers import BranchPlace, Brokers, SentCommit
from meta_client.transactions.due_decisions import DueDecisions
from meta_client.transactions.errors import OtherTable
from meta_client.transactions.generation import Generations
from meta_client.transactions.names import PREFIX, TableName, name_in
from meta_client.transactions.resolver_state import Counts, ResolverState
from meta_client.transactions.table import DecisionTable, Opener, Row, RowDecision
from meta_client.transactions.table_clock import TableClock

log = logging.getLogger(__name__)

AGE_S: Final = 3.0
AT_ONCE: Final = 500  # transactions that are decided, and whose branches are ended, together: bounds what is in flight
ROWS_AT_ONCE: Final = 1_000
SWEEP_S: Final = 60.0  # how often rows of old rollbacks are deleted
DONE_MAX: Final = 100_000  # transactions that are finished and whose row could not be deleted
ResolverClock = Callable[[], float]


def _named(place: BranchPlace) -> str:
    """Return the name of a branch's problem."""
    gtrid, broker_id = place
    return f"{gtrid} {broker_id}"


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
        self._brokers = brokers
        self._name = name
        self._open_table = open_table
        self._age_s = age_s
        self._clock = clock
        self._state = ResolverState()
        self._decisions = DueDecisions(brokers, generations, self._state)
        self._table: DecisionTable | None = None
        self._is_cut_off = False  # the last attempt to open the table failed
        self._seen: dict[BranchPlace, float] = {}  # first seen, by prepared branch
        self._done: set[str] = set()  # confirmed by all brokers
        self._through: set[str] = set()  # confirmed too, with rows too young to be deleted
        self._next_sweep = 0.0
        self._table_clock = TableClock()
        self._pass_ended_at: float | None = None  # end of the last pass

    @property
    def counts(self) -> Counts:
        """Totals. Any thread."""
        return self._state.counts

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
        return self._state.unreachable

    def close(self) -> None:
        if self._table is not None:
            self._table.close()
            self._table = None

    def open_by(self, opener: Callable[[], Opener]) -> None:
        """Open the table as the newest connection does, by *opener*, if that fails as before: the database has moved to
        another host, or its password was changed. Any thread."""
        if self._is_cut_off:
            self._open_table = opener()

    def _on_table(self, what: str, work: Callable[[DecisionTable], None]) -> None:
        try:
            if self._table is None:
                self._table = self._opened()
            work(self._table)
        except (Unreachable, CannotEnlist) as error:
            self.close()
            self._state.count(Counts(errors=1))
            self._state.log_problem(what, str(error))
        else:
            self._state.over(what)

    def _opened(self) -> DecisionTable:
        self._is_cut_off = True
        table = self._open_table()
        if table.identity.name != self._name:
            table.close()
            raise OtherTable(table.identity.name.table_id)
        self._is_cut_off = False
        return table

    def _run_pass(self, table: DecisionTable) -> None:
        self._delete_done(table)
        presumes = self._decisions.presumes(table)
        listing = self._brokers.listed()
        for broker_id, reason in listing.failures.items():
            self._state.log_problem(f"broker {broker_id}", reason)
        for broker_id in listing.keys:
            self._state.over(f"broker {broker_id}")
        now = self._clock()
        self._seen = {branch: self._seen.get(branch, now) for branch in self._brokers.ours(listing)}
        due: dict[str, list[int]] = defaultdict(list)
        for (gtrid, broker_id), since in self._seen.items():
            if now - since >= self._age_s:
                due[gtrid].append(broker_id)
        gtrids, committed = list(due), set[BranchPlace]()
        for first in range(0, len(gtrids), AT_ONCE):
            some = {gtrid: due[gtrid] for gtrid in gtrids[first : first + AT_ONCE]}
            committed |= self._resolve(table, some, presumes=presumes)
        rows = table.rows(self._age_s, ROWS_AT_ONCE)
        self._through.intersection_update(row.gtrid for row in rows)
        unfinished = [row for row in rows if row.gtrid not in self._through]
        for first in range(0, len(unfinished), AT_ONCE):
            self._finish_rows(table, unfinished[first : first + AT_ONCE], committed)
        # Until a row is old its transaction, if its COMMIT got no answer, may still need it.
        self._done.update(row.gtrid for row in rows if row.gtrid in self._through and row.is_old)
        self._state.keep_only({row.gtrid for row in rows} | due.keys(), PREFIX)
        self._delete_done(table)
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_S
            if self._table_clock.is_confirmed(table.clock_s(), now):
                self._state.count(Counts(rows_deleted=table.delete_kept()))
        if not self._decisions.is_sound:
            self.close()

    def _resolve(self, table: DecisionTable, due: Mapping[str, Sequence[int]], *, presumes: bool) -> set[BranchPlace]:
        """End the branches of transactions that are prepared at these brokers; return those that are committed."""
        done = set[BranchPlace]()
        places: dict[RowDecision, list[BranchPlace]] = {outcome: [] for outcome in RowDecision}
        for gtrid, outcome in self._decisions.of(table, due, presumes=presumes):
            places[outcome] += [(gtrid, broker_id) for broker_id in due[gtrid]]
        for place, committed in self._brokers.commit_all(places[RowDecision.COMMIT]).items():
            if isinstance(committed, Unreachable):
                self._state.log_problem(_named(place), str(committed))
            elif not isinstance(committed, HeuristicOutcome):  # else its row lists every broker: _finish_rows
                done.add(place)
                self._resolved(place, RowDecision.COMMIT, Counts(resolved_committed=1))
        for place, ended in self._brokers.rollback_all(places[RowDecision.ROLLBACK]).items():
            gtrid, broker_id = place
            if isinstance(ended, Unreachable):
                self._state.log_problem(_named(place), str(ended))
            elif isinstance(ended, HeuristicOutcome):
                self._mark(table, gtrid, {broker_id: ended})
            elif ended is BranchEnd.COMMITTED:
                self._done.add(gtrid)  # finished meanwhile and its row deleted: ours decides nothing
            else:
                self._resolved(place, RowDecision.ROLLBACK, Counts(resolved_rolled_back=1))
        return done

    def _resolved(self, place: BranchPlace, outcome: RowDecision, counts: Counts) -> None:
        gtrid, broker_id = place
        self._state.count(counts)
        self._seen.pop(place, None)
        self._state.drop(_named(place))
        log.info("branch resolved gtrid=%s xid=%s outcome=%s", gtrid, self._name.key(gtrid, broker_id), outcome.value)

    def _finish_rows(self, table: DecisionTable, rows: Sequence[Row], committed: Collection[BranchPlace]) -> None:
        """Commit at every broker that the rows name, unless it is known to be *committed* there."""
        readable: list[tuple[Row, tuple[int, ...]]] = []
        for row in rows:
            if row.brokers is None or name_in(row.gtrid) is None:  # of a table in whose place this one is, it is known
                self._leave(row)
            else:
                readable.append((row, row.brokers))
        places = [(row.gtrid, broker_id) for row, brokers in readable for broker_id in brokers]
        ends = self._brokers.commit_all([place for place in places if place not in committed])
        for row, brokers in readable:
            hazards, is_through = dict[int, HeuristicOutcome](), True
            for broker_id in brokers:
                place = row.gtrid, broker_id
                match ends.get(place, False):
                    case Unreachable() as error:
                        is_through = False
                        self._state.log_problem(_named(place), str(error))
                    case HeuristicOutcome() as error:
                        hazards[broker_id] = error
                    case True:
                        self._resolved(place, RowDecision.COMMIT, Counts(resolved_committed=1))
                    case False:
                        self._state.drop(_named(place))
            if hazards:
                if _hazard_text(hazards) != row.hazard:
                    self._mark(table, row.gtrid, hazards)
            elif is_through:
                self._through.add(row.gtrid)

    def _leave(self, row: Row) -> None:
        """Log a row that no version of this program wrote, once."""
        if self._state.is_new(row.gtrid, "unreadable"):
            self._state.count(Counts(hazards=1))
            log.error("row left alone, its name or its brokers can't be read gtrid=%r", row.gtrid)

    def _record_hazard(self, gtrid: str, broker_id: int, error: HeuristicOutcome) -> None:
        """Record the hazard in the broker's ledger. Ignores an unreachable broker: the row has the hazard."""
        try:
            self._brokers.record_finding(gtrid, broker_id, error, f"resolver@{socket.gethostname()}")
        except Unreachable as failure:
            self._state.log_problem(f"{gtrid} {broker_id}", str(failure))

    def _mark(self, table: DecisionTable, gtrid: str, hazards: Mapping[int, HeuristicOutcome]) -> None:
        """Record brokers that ended otherwise, in their ledgers and in the row."""
        if not self._state.has(gtrid, hazard := _hazard_text(hazards)):
            for broker_id, error in hazards.items():
                self._record_hazard(gtrid, broker_id, error)
            table.mark(gtrid, hazard)
            self._state.is_new(gtrid, hazard)
            self._state.count(Counts(hazards=1))
            log.error("row and message may differ gtrid=%s: %s", gtrid, hazard)

    def _delete_done(self, table: DecisionTable) -> None:
        if not self._done:
            return
        done = list(self._done)
        if len(done) > DONE_MAX:
            self._done.clear()  # later passes find their rows
        table.delete(done)
        self._done.clear()
        self._state.count(Counts(rows_deleted=len(done)))
