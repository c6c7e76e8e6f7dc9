"""Transactions whose decision is a row, resolvers, crashes and an operator, in every order of their steps.

The transaction's and the resolver's own code runs in greenlets that stop before and after everything they ask of the
database or of a broker; hypothesis chooses who goes on. Database and brokers are what the code takes them for: a row
that is inserted and not committed has others wait, and nothing of a dead process's open transaction stays.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from greenlet import greenlet
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from journal.records.xid import Xid
from meta_client.coordinator.errors import (
    CoordinatorError,
    DecisionUnknown,
    HeuristicOutcome,
    PrepareFailed,
    Unreachable,
)
from meta_client.coordinator.participants import BranchEnd
from meta_client.producer.xa_verbs import Listing
from meta_client.transactions.brokers import BranchPlace, Brokers, SentCommit
from meta_client.transactions.commit_sequence import CommitSequence
from meta_client.transactions.names import TableName
from meta_client.transactions.resolver import DecidedTransaction, Resolver
from meta_client.transactions.table import DATABASE, KEEP_S, CommitFailure, Row, RowDecision, TableIdentity
from tests.model.playing import Counted, play
from tests.model.process import Dead, Process

NAME = TableName("0" * 32)
TRANSACTIONS_MAX, RESOLVERS_MAX, BROKERS = 4, 2, (0, 1)


class _Cancelled(BaseException):
    """Interruption, as by Ctrl-C."""


class _Refused(Exception):
    """The database answers COMMIT with an error."""


class _Lost(Exception):
    """COMMIT got no answer."""


class _Process(Process):
    """One life of a service, or of a resolver beside it."""

    def rest(self, wait_s: float) -> bool:
        self.pause()
        return False


class _Database:
    """Rows, committed or in flight. A row in flight belongs to one open transaction."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[RowDecision, tuple[int, ...]]] = {}
        self.kept: dict[str, int] = {}  # rows of rollbacks: since when
        self.hazards: dict[str, str] = {}
        self.in_flight: dict[str, _Session] = {}
        self.committed: set[str] = set()  # whose caller's rows are visible
        self.is_down = False
        self.loses_answers = 0
        self.refuses_commits = 0
        self.now = 0


class _Session:
    """A caller's connection."""

    def __init__(self, database: _Database, process: _Process, gtrid: str) -> None:
        self._database = database
        self._process = process
        self._gtrid = gtrid
        self._began = database.now
        self._is_open = True
        self._brokers: tuple[int, ...] | None = None

    def problem(self) -> str | None:
        return None if self._is_open else "the connection is lost"

    def decide(self, gtrid: str, brokers: Collection[int]) -> None:
        self._process.pause()
        database = self._database
        if database.is_down or not self._is_open:
            raise PrepareFailed(Xid(1, gtrid.encode(), b""), DATABASE, "it is down")
        if gtrid in database.rows:
            raise PrepareFailed(Xid(1, gtrid.encode(), b""), DATABASE, "unique")
        if database.now - self._began > KEEP_S // 2:
            raise PrepareFailed(Xid(1, gtrid.encode(), b""), DATABASE, "too old")
        self._brokers = tuple(brokers)
        database.in_flight[gtrid] = self
        self._process.pause()

    def commit(self) -> None:
        self._process.pause()
        database = self._database
        if not self._is_open or database.is_down:
            self.end()
            raise _Lost("it is down")
        if database.refuses_commits:
            database.refuses_commits -= 1
            self.end()
            raise _Refused
        loses = bool(database.loses_answers)
        if loses:
            database.loses_answers -= 1
            self._process.pause()  # the COMMIT is under way, and others run: the row is in flight still
            if not self._is_open:
                raise _Lost("lost")
        if self._brokers is not None:
            database.rows[self._gtrid] = RowDecision.COMMIT, self._brokers
        database.committed.add(self._gtrid)
        self.end()
        if loses:
            raise _Lost("lost")
        self._process.pause()

    def rollback(self) -> None:
        self.end()

    def classify_commit(self, error: Exception) -> CommitFailure:
        if isinstance(error, _Refused):
            return CommitFailure.REFUSED
        return CommitFailure.UNANSWERED if isinstance(error, _Lost) else CommitFailure.FOREIGN

    def opener(self) -> Callable[[], "_Table"]:
        return lambda: _Table(self._database, self._process)

    def end(self) -> None:
        """The open transaction is over."""
        self._is_open = False
        if self._database.in_flight.get(self._gtrid) is self:
            del self._database.in_flight[self._gtrid]


class _Table:
    """The table, over a connection of its own."""

    identity = TableIdentity(NAME, KEEP_S)

    def __init__(self, database: _Database, process: _Process) -> None:
        self._database = database
        self._process = process

    @contextmanager
    def _asked(self) -> Iterator[_Database]:
        self._process.pause()
        if self._database.is_down:
            raise Unreachable(DATABASE, "it is down")
        yield self._database
        self._process.pause()

    def generation(self) -> int:
        with self._asked():
            return 1

    def resolve(self, gtrid: str) -> RowDecision:
        with self._asked() as database:
            if gtrid in database.in_flight:
                raise Unreachable(DATABASE, "in flight")
            if gtrid not in database.rows:
                database.rows[gtrid] = RowDecision.ROLLBACK, ()
                database.kept[gtrid] = database.now
                return RowDecision.ROLLBACK
        with self._asked() as database:  # a second statement, as a real one
            if gtrid not in database.rows:
                raise Unreachable(DATABASE, "deleted meanwhile")
            return database.rows[gtrid][0]

    def resolve_all(self, gtrids: Sequence[str]) -> dict[str, RowDecision]:
        with self._asked() as database:
            if any(gtrid in database.in_flight for gtrid in gtrids):
                raise Unreachable(DATABASE, "in flight")
            for gtrid in gtrids:
                if gtrid not in database.rows:
                    database.rows[gtrid] = RowDecision.ROLLBACK, ()
                    database.kept[gtrid] = database.now
        return self.decided_all(gtrids)

    def decided_all(self, gtrids: Sequence[str]) -> dict[str, RowDecision]:
        with self._asked() as database:
            return {gtrid: database.rows[gtrid][0] for gtrid in gtrids if gtrid in database.rows}

    def rows(self, age_s: float, limit: int) -> list[Row]:
        with self._asked() as database:
            return [
                Row(gtrid, brokers, database.hazards.get(gtrid), is_old=True)  # the grace is not counted on
                for gtrid, (outcome, brokers) in database.rows.items()
                if outcome is RowDecision.COMMIT
            ]

    def delete(self, gtrids: Sequence[str]) -> None:
        with self._asked() as database:
            for gtrid in gtrids:
                database.rows.pop(gtrid, None)

    def clock_s(self) -> float:
        with self._asked() as database:
            return database.now

    def delete_kept(self) -> int:
        with self._asked() as database:
            old = [gtrid for gtrid, since in database.kept.items() if database.now - since > KEEP_S]
            for gtrid in old:
                if database.rows.get(gtrid, (None,))[0] is RowDecision.ROLLBACK and gtrid not in database.hazards:
                    del database.rows[gtrid]
                del database.kept[gtrid]
            return len(old)

    def mark(self, gtrid: str, hazard: str) -> None:
        with self._asked() as database:
            database.hazards[gtrid] = hazard

    def close(self) -> None: ...


class _Broker:
    def __init__(self, broker_id: int) -> None:
        self.id = broker_id
        self.active: set[str] = set()
        self.prepared: set[str] = set()
        self.ended: dict[str, BranchEnd] = {}
        self.findings: set[str] = set()
        self.is_down = False
        self.loses_answers = 0


class _Asking:
    """Brokers as the code uses them: as a transaction's branches, as Brokers, and as a ResolverThread."""

    def __init__(self, brokers: dict[int, _Broker], process: _Process, gtrid: str = "") -> None:
        self._brokers = brokers
        self._process = process
        self._gtrid = gtrid
        self.decided: list[DecidedTransaction] = []

    @contextmanager
    def _asked(self, broker_id: int) -> Iterator[_Broker]:
        self._process.pause()
        broker = self._brokers[broker_id]
        if broker.is_down:
            raise Unreachable(f"broker {broker_id}", "it is down")
        yield broker
        if broker.loses_answers:
            broker.loses_answers -= 1
            raise Unreachable(f"broker {broker_id}", "the answer was lost")
        self._process.pause()

    # -- a transaction's branches

    def begin(self, broker_ids: Collection[int]) -> None:
        for broker_id in broker_ids:
            self._brokers[broker_id].active.add(self._gtrid)

    def prepare(self) -> tuple[int, ...]:
        mine = [one.id for one in self._brokers.values() if self._gtrid in one.active]
        for broker_id in mine:
            try:
                with self._asked(broker_id) as broker:
                    if self._gtrid not in broker.active:
                        raise PrepareFailed(Xid(1, b"", b""), "a broker", "it is gone")
                    broker.active.remove(self._gtrid)
                    broker.prepared.add(self._gtrid)
            except Unreachable as error:
                raise PrepareFailed(Xid(1, b"", b""), "a broker", str(error)) from error
        return tuple(mine)

    def roll_back_everywhere(self) -> None:
        for broker in self._brokers.values():
            try:
                self.roll_back(self._gtrid, broker.id)
            except CoordinatorError:
                continue

    # -- what is decided

    def send_commit(self, gtrid: str, broker_ids: Collection[int], wait_s: float) -> None:
        sent = tuple(cast(SentCommit, broker_id) for broker_id in broker_ids)
        self.decided.append(DecidedTransaction(gtrid, sent, all_sent=True))

    def confirm(self, gtrid: str, sent: Any) -> None:
        self.commit(gtrid, sent)

    def commit(self, gtrid: str, broker_id: int) -> bool:
        with self._asked(broker_id) as broker:
            if gtrid in broker.prepared:
                broker.prepared.remove(gtrid)
                broker.ended[gtrid] = BranchEnd.COMMITTED
                return True
        with self._asked(broker_id) as broker:
            if (ended := broker.ended.get(gtrid)) is not BranchEnd.COMMITTED:
                raise HeuristicOutcome(Xid(1, b"", b""), "a broker", "commit", "no", ended or BranchEnd.UNKNOWN)
        return False

    def roll_back(self, gtrid: str, broker_id: int) -> BranchEnd:
        with self._asked(broker_id) as broker:
            broker.active.discard(gtrid)
            if gtrid in broker.prepared:
                broker.prepared.remove(gtrid)
                broker.ended[gtrid] = BranchEnd.ROLLED_BACK
                return BranchEnd.ROLLED_BACK
        with self._asked(broker_id) as broker:
            return broker.ended.get(gtrid, BranchEnd.UNKNOWN)

    def commit_all(self, places: Collection[BranchPlace]) -> dict[BranchPlace, Any]:
        return {place: self._end_of(self.commit, place) for place in places}

    def rollback_all(self, places: Collection[BranchPlace]) -> dict[BranchPlace, Any]:
        return {place: self._end_of(self.roll_back, place) for place in places}

    @staticmethod
    def _end_of(end: Callable[[str, int], Any], place: BranchPlace) -> Any:
        try:
            return end(*place)
        except (Unreachable, HeuristicOutcome) as error:
            return error

    def record_finding(self, gtrid: str, broker_id: int, error: HeuristicOutcome, who: str) -> None:
        with self._asked(broker_id) as broker:
            broker.findings.add(gtrid)

    def restored(self, places: Collection[BranchPlace]) -> dict[BranchPlace, Any]:
        return {place: self._end_of(self._is_restored, place) for place in places}

    def _is_restored(self, gtrid: str, broker_id: int) -> bool:
        with self._asked(broker_id):
            return False

    def listed(self) -> Listing:
        keys: dict[int, Any] = {}
        for broker in self._brokers.values():
            try:
                with self._asked(broker.id):
                    keys[broker.id] = tuple(sorted(broker.prepared))
            except Unreachable:
                continue
        return Listing(keys)

    def ours(self, listing: Listing) -> Iterator[tuple[str, int]]:
        yield from ((cast(str, gtrid), broker_id) for broker_id, gtrids in listing.keys.items() for gtrid in gtrids)


class _Branches:
    def __init__(self, asking: _Asking) -> None:
        self._asking = asking

    def prepare(self) -> tuple[int, ...]:
        return self._asking.prepare()

    def rollback(self) -> None:
        self._asking.roll_back_everywhere()


class DecisionRowMachine(Counted):
    """One table, two brokers, a service that crashes, and resolvers in processes of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.database = _Database()
        self.brokers = {broker_id: _Broker(broker_id) for broker_id in BROKERS}
        self.service, self.beside = _Process(), _Process()
        self.actors: list[tuple[greenlet, _Process, str]] = []
        self.sessions: dict[str, _Session] = {}
        self.returned: set[str] = set()
        self.refused: set[str] = set()
        self.touched: set[str] = set()  # by an operator, or a broker that forgot
        self.wants: dict[str, tuple[int, ...]] = {}
        self.numbers = itertools.count(1)

    def _count_of(self, kind: str) -> int:
        return sum(what == kind for _, _, what in self.actors)

    @precondition(lambda self: self._count_of("transaction") < TRANSACTIONS_MAX)
    @rule(where=st.sampled_from(((0,), (1,), (0, 1))))
    def begin(self, where: tuple[int, ...]) -> None:
        self.count()
        gtrid = f"{NAME.qualifier}-{next(self.numbers):022d}"
        self.wants[gtrid] = where
        self._start(lambda: self._work(gtrid, where, self.service), self.service, "transaction")

    def _work(self, gtrid: str, where: tuple[int, ...], process: _Process) -> None:
        asking = _Asking(self.brokers, process, gtrid)
        session = self.sessions[gtrid] = _Session(self.database, process, gtrid)
        asking.begin(where)
        branches = _Branches(asking)
        sequence = CommitSequence(gtrid, cast(Any, session), cast(Any, branches), cast(Any, asking), process.rest)
        try:
            process.pause()
            sequence.commit_recorded(sequence.record(), 0.0)
        except (PrepareFailed, _Refused):
            self.refused.add(gtrid)
        except Dead:
            return
        except (DecisionUnknown, HeuristicOutcome, _Cancelled):
            pass
        else:
            self.returned.add(gtrid)
        if asking.decided:
            self._finish(asking, process)

    def _finish(self, asking: _Asking, process: _Process) -> None:
        """Finish transactions, as the service's background thread does."""
        resolver = self._resolver(process, asking)
        try:
            resolver.finish(asking.decided)
        except (Dead, _Cancelled):
            return

    @precondition(lambda self: self._count_of("resolver") < RESOLVERS_MAX)
    @rule(is_beside=st.booleans())
    def look(self, is_beside: bool) -> None:
        self.count()
        process = self.beside if is_beside else self.service
        self._start(lambda: self._look(process), process, "resolver")

    def _look(self, process: _Process) -> None:
        try:
            self._resolver(process, _Asking(self.brokers, process)).run_pass()
            _Table(self.database, process).delete_kept()  # as one that has run for long enough
        except (Dead, _Cancelled, Unreachable):
            return

    def _resolver(self, process: _Process, asking: _Asking) -> Resolver:
        open_table = cast(Any, lambda: _Table(self.database, process))
        return Resolver(cast(Brokers, asking), NAME, open_table, age_s=0)

    def _start(self, work: Callable[[], None], process: _Process, what: str) -> None:
        actor = greenlet(work)
        self.actors.append((actor, process, what))
        actor.switch()
        self._bury()

    # -- what happens

    @precondition(lambda self: self.actors)
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        actor, _, _ = self.actors[data.draw(st.sampled_from(range(len(self.actors))))]
        for _ in range(data.draw(st.sampled_from((1, 1, 2, 3, 4, 12)))):
            if not actor.dead:
                self.count()
                actor.switch()
        self._bury()

    @precondition(lambda self: self._count_of("transaction"))
    @rule(data=st.data(), chance=st.integers(1, 3))
    def cancel(self, data: st.DataObject, chance: int) -> None:
        if chance > 1:
            return
        self.count()
        mine = [actor for actor, _, what in self.actors if what == "transaction"]
        mine[data.draw(st.sampled_from(range(len(mine))))].throw(_Cancelled)
        self._bury()

    @rule(is_beside=st.booleans(), chance=st.integers(1, 4))
    def crash(self, is_beside: bool, chance: int) -> None:
        if chance > 1:
            return
        self.count()
        process = self.beside if is_beside else self.service
        process.is_alive = False
        for actor, whose, _ in list(self.actors):
            while whose is process and not actor.dead:
                actor.switch()
        self._bury()
        if is_beside:
            self.beside = _Process()
            return
        self.service = _Process()
        for session in self.sessions.values():
            session.end()  # the server notices that its client is gone
        for broker in self.brokers.values():
            broker.active.clear()

    @rule(
        what=st.sampled_from((0, 1, "database")), is_down=st.sampled_from((False, False, True)), loses=st.integers(0, 1)
    )
    def go_away_or_come_back(self, what: int | str, is_down: bool, loses: int) -> None:
        self.count()
        side: Any = self.database if isinstance(what, str) else self.brokers[what]
        side.is_down, side.loses_answers = is_down, loses

    @rule(chance=st.integers(1, 3))
    def refuse_a_commit(self, chance: int) -> None:
        if chance == 1:
            self.count()
            self.database.refuses_commits = 1

    @rule(days=st.sampled_from((0.2, 0.7, 1.1)), chance=st.integers(1, 2))
    def time_passes(self, days: float, chance: int) -> None:
        if chance == 1:
            self.count()
            self.database.now += int(days * KEEP_S)

    @precondition(lambda self: any(broker.prepared for broker in self.brokers.values()))
    @rule(
        data=st.data(),
        how=st.sampled_from((BranchEnd.COMMITTED, BranchEnd.ROLLED_BACK, None)),
        chance=st.integers(1, 3),
    )
    def operate(self, data: st.DataObject, how: BranchEnd | None, chance: int) -> None:
        """An operator ends a branch, or its broker forgets it."""
        if chance > 1:
            return
        self.count()
        places = [(broker, gtrid) for broker in self.brokers.values() for gtrid in sorted(broker.prepared)]
        broker, gtrid = places[data.draw(st.sampled_from(range(len(places))))]
        broker.prepared.remove(gtrid)
        if how is not None:
            broker.ended[gtrid] = how
        self.touched.add(gtrid)

    def _bury(self) -> None:
        self.actors = [one for one in self.actors if not one[0].dead]

    # -- what must be so

    def teardown(self) -> None:
        for side in (self.database, *self.brokers.values()):
            side.is_down, side.loses_answers = False, 0  # type: ignore[attr-defined]
        while self.actors:
            for actor, _, _ in self.actors:
                if not actor.dead:
                    actor.switch()
            self._bury()
        for _ in range(3):
            self._run_to_its_end(lambda: self._look(self.beside))
        left = [gtrid for broker in self.brokers.values() for gtrid in broker.prepared]
        assert not left, "a branch stays prepared though somebody looks"
        commits = {gtrid for gtrid, (outcome, _) in self.database.rows.items() if outcome is RowDecision.COMMIT}
        assert commits <= self.touched, "a row that nobody deletes"
        for gtrid, where in self.wants.items():
            self._check(gtrid, where)

    def _check(self, gtrid: str, where: tuple[int, ...]) -> None:
        row = gtrid in self.database.committed
        messages = [self.brokers[broker_id].ended.get(gtrid) is BranchEnd.COMMITTED for broker_id in where]
        if gtrid in self.touched:
            if row and not all(messages):
                assert gtrid in self.database.hazards, "row and message differ, and nobody is told"
            return
        assert set(messages) <= {row}, "a row without its message, or a message without its row"
        assert row or gtrid not in self.returned, "the block ended well, and there is nothing"
        assert not (row and gtrid in self.refused), "told to be rolled back, and it is there"
        assert gtrid not in self.database.hazards, "a hazard that is none"
        assert not any(gtrid in broker.findings for broker in self.brokers.values()), "a finding that is none"

    def _run_to_its_end(self, work: Callable[[], None]) -> None:
        actor = greenlet(work)
        while not actor.dead:
            actor.switch()


def test_both_or_neither_in_every_order() -> None:
    play(DecisionRowMachine, steps_a_machine=60, steps_an_example=90)
