"""Transactions, recoveries, cancellations, crashes and an operator, in every order of their steps.

The coordinator's own code runs in greenlets that stop before and after everything they ask of a participant or of the
log; hypothesis chooses who goes on. Participants and log are what the code takes them for, and remember everything.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from greenlet import getcurrent, greenlet
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from journal.records.xid import Xid
from meta_client.coordinator.background_recovery import BackgroundRecovery
from meta_client.coordinator.decision_log import DecisionLog
from meta_client.coordinator.errors import BranchUnknown, CoordinatorError, PrepareFailed, Unreachable
from meta_client.coordinator.in_flight import InFlight
from meta_client.coordinator.names import LogName
from meta_client.coordinator.participants import BranchEnd, Participant
from meta_client.coordinator.phase_two import Closing
from meta_client.coordinator.recovery import Action, RecoveredTransaction, recover
from meta_client.coordinator.status import Counter
from meta_client.coordinator.transaction import CoordinatedTransaction, Shared
from tests.model.playing import Counted, play
from tests.model.process import Dead, Process

ACTORS_MAX = 4


class _Cancelled(BaseException):
    """Cancellation of a task."""


class _Process(Process):
    """One life of a service."""

    def __init__(self) -> None:
        super().__init__()
        self.in_flight = InFlight()
        self.leaving: list[greenlet] = []  # whose transaction left something to the resolver

    # -- as a Resolver, and as what is waited for -------------------------------------------------------------------

    def add_ways(self, ways: object) -> None:
        self.leaving.append(getcurrent())

    def wait(self, timeout: float | None = None) -> bool:
        self.pause()
        return False


class _Log:
    """Durable as soon as it returns."""

    name = LogName("shop", "0123abcd")

    def __init__(self) -> None:
        self.decisions: dict[Xid, str] = {}

    def of(self, process: _Process) -> "_OpenLog":
        return _OpenLog(self, process)


class _OpenLog:
    def __init__(self, log: _Log, process: _Process) -> None:
        self.name = log.name
        self._log = log
        self._process = process

    def unfinished(self) -> dict[Xid, str]:
        self._process.pause()
        found = dict(self._log.decisions)
        self._process.pause()
        return found

    def decide(self, xid: Xid, participants: str) -> None:
        self._process.pause()
        self._log.decisions[xid] = participants
        self._process.pause()

    def forget(self, xid: Xid) -> None:
        self._process.check()
        del self._log.decisions[xid]
        self._process.pause()


class _Resource:
    """A database, or a broker."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.active: set[Xid] = set()
        self.prepared: set[Xid] = set()
        self.ended: dict[Xid, BranchEnd] = {}
        self.is_down = False
        self.loses_answers = 0

    def end(self, xid: Xid, how: BranchEnd) -> None:
        if xid not in self.prepared:
            raise BranchUnknown(xid, self.name)
        self.prepared.remove(xid)
        self.ended[xid] = how


class _Participant:
    def __init__(self, resource: _Resource, process: _Process) -> None:
        self.name = resource.name
        self._resource = resource
        self._process = process

    @contextmanager
    def _asked(self) -> Iterator[_Resource]:
        self._process.pause()
        if self._resource.is_down:
            raise Unreachable(self.name, "it is down")
        yield self._resource
        if self._resource.loses_answers:
            self._resource.loses_answers -= 1
            raise Unreachable(self.name, "the answer was lost")
        self._process.pause()

    def check(self) -> None: ...

    def begin(self, xid: Xid) -> None:
        with self._asked() as resource:
            resource.active.add(xid)

    def prepare(self, xid: Xid) -> bool:
        try:
            with self._asked() as resource:
                if xid not in resource.active:
                    raise PrepareFailed(xid, self.name, "it is gone")
                resource.active.remove(xid)
                resource.prepared.add(xid)
        except Unreachable as error:
            raise PrepareFailed(xid, self.name, str(error)) from error
        return True

    def commit(self, xid: Xid) -> None:
        with self._asked() as resource:
            resource.end(xid, BranchEnd.COMMITTED)

    def commit_one_phase(self, xid: Xid) -> None:
        raise NotImplementedError

    def rollback(self, xid: Xid) -> None:
        with self._asked() as resource:
            resource.active.discard(xid)
            if xid in resource.prepared:
                resource.end(xid, BranchEnd.ROLLED_BACK)

    def outcome(self, xid: Xid, receipt: str) -> BranchEnd:
        with self._asked() as resource:
            if xid in resource.prepared:
                return BranchEnd.NOT_ENDED
            return resource.ended.get(xid, BranchEnd.UNKNOWN)

    def prepared(self) -> list[Xid]:
        with self._asked() as resource:
            return sorted(resource.prepared)

    def resource_id(self) -> str:
        return self.name.split()[1]

    def receipt(self) -> str:
        return self.resource_id()

    def reaches(self, resource_id: str) -> bool:
        return self.resource_id() == resource_id

    def spare(self) -> Any:
        raise NotImplementedError


class CoordinatorMachine(Counted):
    """One log, two participants, one process at a time, and what is going on in it."""

    def __init__(self) -> None:
        super().__init__()
        self.log = _Log()
        self.database, self.broker = _Resource("the database"), _Resource("the broker")
        self.process = _Process()
        self.transactions: dict[Xid, greenlet] = {}
        self.recovering: greenlet | None = None
        self.returned: set[Xid] = set()  # its block ended without an exception
        self.refused: set[Xid] = set()  # its block told that nothing is committed
        self.touched: set[Xid] = set()  # by an operator
        self.reports: list[RecoveredTransaction] = []
        self.begun: set[Xid] = set()  # in this process
        self.numbers = itertools.count(1)

    # -- who is there -----------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.transactions) < ACTORS_MAX)
    @rule()
    def begin(self) -> None:
        self.count()
        xid = self.log.name.xid(f"{next(self.numbers):022}")
        self.begun.add(xid)
        actor = self.transactions[xid] = greenlet(self._work)
        actor.switch(xid)

    def _work(self, xid: Xid) -> None:
        process, database, broker = self.process, *self._participants()
        shared = Shared(
            cast(DecisionLog, self.log.of(process)),
            process.in_flight,
            cast(BackgroundRecovery, process),
            cast(Closing, process),
            None,
            Counter(),
        )
        try:
            with CoordinatedTransaction(shared, xid, database, broker):
                process.pause()
        except PrepareFailed:
            self.refused.add(xid)
        except Dead:
            return
        except (CoordinatorError, _Cancelled):
            pass  # what became of it, the participants know
        else:
            self.returned.add(xid)
        if xid in self.database.prepared | self.broker.prepared | self.log.decisions.keys() - self.touched:
            assert getcurrent() in process.leaving, "something is left of it, and nobody will look"

    @precondition(lambda self: self.recovering is None)
    @rule(is_look=st.booleans())
    def recover(self, is_look: bool) -> None:
        self.count()
        self.recovering = greenlet(self._recover)
        self.recovering.switch({} if is_look else None)

    def _recover(self, told: dict[Xid, str] | None) -> None:
        process, database, broker = self.process, *self._participants()
        try:
            log = cast(DecisionLog, self.log.of(process))
            self.reports += recover(log, process.in_flight, [database], [broker], told=told)
        except (Unreachable, _Cancelled, Dead):
            return

    def _participants(self) -> tuple[Participant, Participant]:
        return _Participant(self.database, self.process), _Participant(self.broker, self.process)

    # -- what happens -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.transactions or self.recovering)
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        actors = [*self.transactions.values(), *([self.recovering] if self.recovering else [])]
        actor = data.draw(st.sampled_from(range(len(actors))))
        for _ in range(data.draw(st.sampled_from((1, 1, 2, 3, 4, 12)))):
            if not actors[actor].dead:
                self.count()
                actors[actor].switch()
        self._bury()

    @precondition(lambda self: self.transactions)
    @rule(data=st.data(), chance=st.integers(1, 2))
    def cancel(self, data: st.DataObject, chance: int) -> None:
        if chance > 1:
            return
        self.count()
        xid = data.draw(st.sampled_from(sorted(self.transactions)))
        self.transactions[xid].throw(_Cancelled)
        self._bury()

    @rule(chance=st.integers(1, 4))
    def crash(self, chance: int) -> None:
        if chance > 1:  # most transactions are to get somewhere
            return
        self.count()
        self.process.is_alive = False
        for actor in (*self.transactions.values(), *([self.recovering] if self.recovering else [])):
            while not actor.dead:
                actor.switch()
        self._bury()
        for resource in (self.database, self.broker):
            resource.active.clear()  # disconnected, or timed out
        self.process = _Process()
        self.begun = set()

    @rule(is_down=st.sampled_from((False, False, True)), is_broker=st.booleans(), loses=st.integers(0, 1))
    def go_away_or_come_back(self, is_down: bool, is_broker: bool, loses: int) -> None:
        self.count()
        resource = self.broker if is_broker else self.database
        resource.is_down, resource.loses_answers = is_down, loses

    @precondition(lambda self: self.database.prepared or self.broker.prepared)
    @rule(data=st.data())
    def operate(self, data: st.DataObject) -> None:
        self.count()
        places = [(side, xid) for side in (self.database, self.broker) for xid in sorted(side.prepared)]
        side, xid = places[data.draw(st.sampled_from(range(len(places))))]
        side.end(xid, data.draw(st.sampled_from((BranchEnd.COMMITTED, BranchEnd.ROLLED_BACK))))
        self.touched.add(xid)

    def _bury(self) -> None:
        self.transactions = {xid: actor for xid, actor in self.transactions.items() if not actor.dead}
        if self.recovering is not None and self.recovering.dead:
            self.recovering = None

    # -- what must be so --------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        for resource in (self.database, self.broker):
            resource.is_down, resource.loses_answers = False, 0
        self._end_all()
        if self.process.leaving:
            self._recover_to_the_end({})
        left = (self.database.prepared | self.broker.prepared) & self.begun - self.touched
        assert not left, "a transaction of a process that lives stays prepared though nobody recovers"
        self._recover_to_the_end(None)
        first = len(self.reports)
        self._recover_to_the_end(None)
        assert not self.database.prepared | self.broker.prepared - self.touched, "not everything was recovered"
        for xid in self.database.ended.keys() | self.broker.ended.keys():
            self._check(xid)
        for number, report in enumerate(self.reports):
            if report.xid in self.touched:
                continue
            assert not report.is_hazard, f"a hazard that is none: {report}"
            assert number < first or report.problem is None, f"a problem that does not end: {report}"
            if report.action is Action.ROLL_BACK:
                ends = self.database.ended.get(report.xid), self.broker.ended.get(report.xid)
                assert BranchEnd.COMMITTED not in ends, f"not rolled back at all: {report}"
        assert self.log.decisions.keys() <= self.touched, "a decision that nobody forgets"

    def _check(self, xid: Xid) -> None:
        row, message = (side.ended.get(xid) is BranchEnd.COMMITTED for side in (self.database, self.broker))
        if xid in self.returned:
            assert row, "the block ended well, and there is no row"
            assert message, "the block ended well, and there is no message"
        if xid not in self.touched:
            assert row is message, "a row without its message, or a message without its row"
            assert not (row and xid in self.refused), "told to be rolled back, and it is there"

    def _end_all(self) -> None:
        while self.transactions or self.recovering:
            for actor in (*self.transactions.values(), *([self.recovering] if self.recovering else [])):
                if not actor.dead:
                    actor.switch()
            self._bury()

    def _recover_to_the_end(self, told: dict[Xid, str] | None) -> None:
        _run(lambda: self._recover(told))


def _run(work: Callable[[], None]) -> None:
    actor = greenlet(work)
    while not actor.dead:
        actor.switch()


def test_both_or_neither_in_every_order() -> None:
    play(CoordinatorMachine, steps_a_machine=60, steps_an_example=90)
