"""Ends what transactions of one table leave: prepared branches, and rows whose brokers have not confirmed.

A branch that is found prepared is rolled back by a row, unless a row says that it commits: nobody has to know whether
its transaction still lives. Age only decides when to look. One thread or task at a time; whatever it does may be done
again, and by any number of others at the same time.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from meta_client.coordinator.errors import CannotEnlist, HeuristicOutcome, Unreachable
from meta_client.coordinator.participants import Ended
from meta_client.transactions.brokers import Brokers, Told
from meta_client.transactions.names import TableName
from meta_client.transactions.table import DecisionTable, Opener, Outcome, Row

log = logging.getLogger(__name__)

AGE_S: Final = 3.0
ROWS_AT_ONCE: Final = 1_000
SWEEP_S: Final = 60.0  # how often rows of old rollbacks are deleted
DONE_MAX: Final = 100_000  # transactions that are finished and whose row could not be deleted
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Counts:
    """What was done since the start. Immutable."""

    resolved_committed: int = 0  # branches
    resolved_rolled_back: int = 0
    hazards: int = 0  # decided branches that ended otherwise, or of which nobody knows
    rows_deleted: int = 0
    errors: int = 0  # looks that could not ask everybody


@dataclass(frozen=True, slots=True)
class Decided:
    """A transaction that is committed in the database, and what its brokers were told; those that could not be told are
    left to a later look."""

    gtrid: str
    told: tuple[Told, ...]
    is_whole: bool  # every broker was told


class Resolver:
    """One table's."""

    def __init__(
        self, brokers: Brokers, name: TableName, open_table: Opener, age_s: float = AGE_S, clock: Clock = time.monotonic
    ) -> None:
        self.counts = Counts()
        self._brokers = brokers
        self._name = name
        self._open_table = open_table
        self._age_s = age_s
        self._clock = clock
        self._table: DecisionTable | None = None
        self._seen: dict[tuple[str, int], float] = {}  # prepared branches: since when
        self._done: set[str] = set()  # their brokers have confirmed
        self._through: set[str] = set()  # so have these, whose rows are too young to be deleted
        self._problems: dict[str, str] = {}  # told, and not over yet
        self._next_sweep = 0.0

    def finish(self, decided: Iterable[Decided]) -> None:
        """Hear of what brokers were told, and delete the rows of those that are through. Raises nothing: what does not
        work is left to a look."""
        for one in decided:
            try:
                for told in one.told:
                    self._brokers.hear(one.gtrid, told)
            except (Unreachable, HeuristicOutcome) as error:
                log.info("decided transaction is left to a look gtrid=%s reason=%s", one.gtrid, error)
            else:
                if one.is_whole:
                    self._done.add(one.gtrid)
        self._on_table("rows", self._delete_done)

    def look(self) -> None:
        """Resolve every branch that has been prepared for a while, and finish every row that is as old. Raises nothing:
        what can't be reached is looked at the next time."""
        self._on_table("table", self._look)

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
            self.counts = replace(self.counts, errors=self.counts.errors + 1)
            self._tell(what, str(error))
        else:
            self._over(what)

    def _opened(self) -> DecisionTable:
        table = self._open_table()
        if table.identity.name != self._name:
            table.close()
            raise Unreachable("the database", f"it has another decision table now: {table.identity.name.table_id}")
        return table

    def _look(self, table: DecisionTable) -> None:
        self._delete_done(table)
        listing = self._brokers.listed()
        for broker_id, reason in listing.failures.items():
            self._tell(f"broker {broker_id}", reason)
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
            is_sound &= self._resolve(table, gtrid, brokers)
        rows = table.rows(self._age_s, ROWS_AT_ONCE)
        self._through.intersection_update(row.gtrid for row in rows)
        for row in rows:
            if row.gtrid not in self._through:
                self._finish_row(table, row)
            if row.gtrid in self._through and row.is_old:
                # Until then its transaction, whose COMMIT got no answer, may still have to ask how it ended.
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
            self._count_deleted(table.delete_kept())
        if not is_sound:  # of what it could not do it does not tell whether the connection is well
            self.close()

    def _resolve(self, table: DecisionTable, gtrid: str, brokers: list[int]) -> bool:
        """End a transaction's branches that are prepared at *brokers*. False: the table gave no answer."""
        try:
            outcome = table.resolve(gtrid)
        except Unreachable as error:  # its transaction may be at its COMMIT right now
            log.debug("not resolved yet gtrid=%s reason=%s", gtrid, error)
            return False
        for broker_id in brokers:
            try:
                if outcome is Outcome.COMMIT:
                    self._brokers.commit(gtrid, broker_id)
                    self.counts = replace(self.counts, resolved_committed=self.counts.resolved_committed + 1)
                elif self._brokers.rollback(gtrid, broker_id) is Ended.COMMITTED:
                    self._done.add(gtrid)  # it was finished meanwhile, and its row deleted: ours says nothing
                    continue
                else:
                    self.counts = replace(self.counts, resolved_rolled_back=self.counts.resolved_rolled_back + 1)
            except Unreachable as error:
                self._tell(f"{gtrid} {broker_id}", str(error))
            except HeuristicOutcome as error:
                if outcome is Outcome.ROLLBACK:
                    self._mark(table, gtrid, str(error))
                # else its row tells of every broker: _finish_row
            else:
                self._seen.pop((gtrid, broker_id), None)
                self._problems.pop(f"{gtrid} {broker_id}", None)
                log.info("branch resolved gtrid=%s broker=%d outcome=%s", gtrid, broker_id, outcome.value)
        return True

    def _finish_row(self, table: DecisionTable, row: Row) -> None:
        """Have every broker commit that a row names."""
        hazards, is_through = [], True
        for broker_id in row.brokers:
            try:
                if self._brokers.commit(row.gtrid, broker_id):
                    self.counts = replace(self.counts, resolved_committed=self.counts.resolved_committed + 1)
                    log.info("branch resolved gtrid=%s broker=%d outcome=commit", row.gtrid, broker_id)
            except Unreachable as error:
                is_through = False
                self._tell(f"{row.gtrid} {broker_id}", str(error))
            except HeuristicOutcome as error:
                hazards.append(str(error))
            else:
                self._problems.pop(f"{row.gtrid} {broker_id}", None)
        if hazards:
            if (text := "; ".join(hazards)) != row.hazard:
                self._mark(table, row.gtrid, text)
        elif is_through:
            self._through.add(row.gtrid)

    def _mark(self, table: DecisionTable, gtrid: str, hazard: str) -> None:
        if self._problems.get(gtrid) != hazard:
            table.mark(gtrid, hazard)
            self._problems[gtrid] = hazard
            self.counts = replace(self.counts, hazards=self.counts.hazards + 1)
            log.error("row and message may differ gtrid=%s: %s", gtrid, hazard)

    def _delete_done(self, table: DecisionTable) -> None:
        if not self._done:
            return
        done = list(self._done)
        if len(done) > DONE_MAX:
            self._done.clear()  # looks find their rows, one by one
        table.delete(done)
        self._done.clear()
        self._count_deleted(len(done))

    def _count_deleted(self, rows: int) -> None:
        self.counts = replace(self.counts, rows_deleted=self.counts.rows_deleted + rows)

    def _tell(self, what: str, problem: str) -> None:
        """Log a problem once, until it changes or is over."""
        if self._problems.get(what) != problem:
            self._problems[what] = problem
            log.warning("not resolved yet what=%s reason=%s", what, problem)

    def _over(self, what: str) -> None:
        if self._problems.pop(what, None) is not None:
            log.info("reachable again what=%s", what)
