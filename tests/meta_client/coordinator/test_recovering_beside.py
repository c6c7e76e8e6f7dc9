"""`recover` beside transactions that begin, decide, break off and end while it looks."""

import threading
from collections.abc import Callable

import pytest

from journal.records.xid import Xid
from meta_client.coordinator import Coordinator, RecoveredTransaction, TwoPhaseStep
from meta_client.coordinator.broker import BrokerParticipant
from meta_client.coordinator.decision_log import DecisionLog
from tests.meta_client.coordinator.conftest import World


class _Cancelled(BaseException):
    """Cancellation of a transaction, as of a task."""


@pytest.mark.parametrize(
    "at",
    [
        TwoPhaseStep.PREPARED_DATABASE,
        TwoPhaseStep.DECIDED,
        TwoPhaseStep.COMMITTED_DATABASE,
        TwoPhaseStep.COMMITTED_BROKER,
    ],
)
def test_what_breaks_off_after_the_listing_is_not_taken_for_committed(
    world: World, monkeypatch: pytest.MonkeyPatch, at: TwoPhaseStep
) -> None:
    def break_off(step: TwoPhaseStep, xid: Xid) -> None:
        if step is at:
            raise _Cancelled

    def work() -> None:
        with pytest.raises(_Cancelled):
            world.work(coordinator, world.producer(), 1)

    with world.coordinator(break_off) as coordinator:
        after(monkeypatch, BrokerParticipant.prepared, work)
        with world.database.connect() as other:
            coordinator.recover([other], [world.producer()])
            coordinator.recover([other], [world.producer()])
    rows, messages = world.numbers()
    assert rows == messages == ([] if at is TwoPhaseStep.PREPARED_DATABASE else [1])
    assert world.in_doubt() == []


@pytest.mark.parametrize("looked_at", [DecisionLog.unfinished, BrokerParticipant.prepared])
@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize(
    "until", [TwoPhaseStep.BEGUN, TwoPhaseStep.PREPARED_BROKER, TwoPhaseStep.PREPARED_DATABASE, TwoPhaseStep.DECIDED]
)
def test_what_begins_while_it_looks_is_left_alone(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    looked_at: Callable[..., object],
    is_before: bool,
    until: TwoPhaseStep,
) -> None:
    """The transaction stays at a step until `recover` is done, and then goes on."""
    arrived, go_on = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def wait_there(step: TwoPhaseStep, xid: Xid) -> None:
        if step is until:
            arrived.set()
            assert go_on.wait(60)

    def work(coordinator: Coordinator) -> None:
        try:
            world.work(coordinator, world.producer(), 1)
        except BaseException as error:
            failures.append(error)
            arrived.set()

    def begin() -> None:
        thread.start()
        assert arrived.wait(60)

    with world.coordinator(wait_there) as coordinator:
        thread = threading.Thread(target=work, args=(coordinator,))
        (before if is_before else after)(monkeypatch, looked_at, begin)
        with world.database.connect() as other:
            reports = coordinator.recover([other], [world.producer()])
        go_on.set()
        thread.join()
    assert (reports, failures) == ([], [])
    assert world.numbers() == ([1], [1])
    assert world.in_doubt() == []


def test_what_ends_while_it_looks_is_not_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listed as prepared by one side, it is over before the log is asked."""
    reports: list[RecoveredTransaction] = []
    recovering: list[threading.Thread] = []
    listed, go_on = threading.Event(), threading.Event()

    def recover() -> None:
        with world.database.connect() as other:
            reports.extend(coordinator.recover([other], [world.producer()]))

    def recover_beside(step: TwoPhaseStep, xid: Xid) -> None:
        if step is TwoPhaseStep.PREPARED_DATABASE:
            recovering.append(threading.Thread(target=recover))
            recovering[0].start()
            assert listed.wait(60)

    def listing_is_done() -> None:
        listed.set()
        assert go_on.wait(60)

    with world.coordinator(recover_beside) as coordinator:
        after(monkeypatch, BrokerParticipant.prepared, listing_is_done)
        world.work(coordinator, world.producer(), 1)
        go_on.set()
        recovering[0].join()
    assert reports == []
    assert world.numbers() == ([1], [1])


def before(monkeypatch: pytest.MonkeyPatch, method: Callable[..., object], work: Callable[[], None]) -> None:
    """Do *work* once, just before *method* is called next."""
    _around(monkeypatch, method, first=work)


def after(monkeypatch: pytest.MonkeyPatch, method: Callable[..., object], work: Callable[[], None]) -> None:
    """Do *work* once, as soon as *method* has its answer."""
    _around(monkeypatch, method, then=work)


def _around(
    monkeypatch: pytest.MonkeyPatch,
    method: Callable[..., object],
    first: Callable[[], None] = lambda: None,
    then: Callable[[], None] = lambda: None,
) -> None:
    todo = [1]
    owner = {DecisionLog.unfinished: DecisionLog, BrokerParticipant.prepared: BrokerParticipant}[method]

    def called(self: object) -> object:
        if not todo:
            return method(self)
        todo.clear()
        first()
        answer = method(self)
        then()
        return answer

    monkeypatch.setattr(owner, method.__name__, called)
