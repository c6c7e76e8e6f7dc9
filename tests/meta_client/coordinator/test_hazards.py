"""A decided branch that somebody rolled back, or that its participant lost: told, kept, and never taken for success."""

from collections.abc import Callable
from pathlib import Path

import pytest

from journal.records.xid import Xid
from meta_client.coordinator import CoordinatorError, HeuristicOutcome, TwoPhaseStep
from meta_client.coordinator.names import BROKER, DATABASE, branch
from meta_client.coordinator.recovery import RecoveredTransaction
from tests.meta_client.coordinator.conftest import World

Damage = Callable[[World, Xid], None]


def _roll_back_row(world: World, xid: Xid) -> None:
    with world.database.connect() as connection:
        connection.tpc_rollback(str(branch(xid, DATABASE)))


def _roll_back_message(world: World, xid: Xid) -> None:
    world.producer().tpc_rollback(branch(xid, BROKER))


def _lose_message(world: World, xid: Xid) -> None:
    """Lose the branch, as the promotion of an asynchronous slave that never had it does."""
    world.broker.kill_and_lose()
    world.broker.forget_journal()
    world.broker.start()


def work_with(world: World, damage: Damage, at: TwoPhaseStep) -> tuple[HeuristicOutcome, Xid]:
    """A transaction that *damage* is done to *at* a step; what its block raises."""
    xids: list[Xid] = []

    def observe(step: TwoPhaseStep, xid: Xid) -> None:
        if step is at:
            xids.append(xid)
            damage(world, xid)

    with world.coordinator(observe) as coordinator, pytest.raises(HeuristicOutcome) as caught:
        world.work(coordinator, world.producer(), 1)
    return caught.value, xids[0]


def check_kept(world: World, xid: Xid, code: str) -> RecoveredTransaction:
    """Every recovery reports it, until it is forgotten; returns the last report."""
    with world.coordinator() as coordinator:
        coordinator.recover([world.connection], [world.producer()])
        (report,) = coordinator.recover([world.connection], [world.producer()])
        assert report.problem is not None
        assert code in report.problem
        assert report.is_hazard
        coordinator.forget(xid)
        with pytest.raises(CoordinatorError, match="no decision about"):
            coordinator.forget(xid)
    return report


@pytest.mark.parametrize("at", [TwoPhaseStep.DECIDED, TwoPhaseStep.COMMITTED_DATABASE])
def test_a_message_that_was_rolled_back_by_hand(world: World, at: TwoPhaseStep) -> None:
    error, xid = work_with(world, _roll_back_message, at)
    assert error.code == "XA_HEURMIX"
    assert "the database: committed" in str(error)
    check_kept(world, xid, "XA_HEURMIX")
    assert world.numbers() == ([1], [])


@pytest.mark.parametrize("at", [TwoPhaseStep.DECIDED, TwoPhaseStep.COMMITTED_DATABASE])
def test_a_message_that_was_lost(world: World, at: TwoPhaseStep) -> None:
    error, xid = work_with(world, _lose_message, at)
    assert error.code == "XA_HEURHAZ"
    assert "the broker answers 'does not know it" in str(error)
    assert "the database: committed" in str(error)
    check_kept(world, xid, "XA_HEURHAZ")
    assert world.numbers() == ([1], [])


def test_a_row_that_was_rolled_back_by_hand(world: World) -> None:
    error, xid = work_with(world, _roll_back_row, TwoPhaseStep.DECIDED)
    assert error.code == "XA_HEURRB"
    assert "the broker: still prepared" in str(error)
    report = check_kept(world, xid, "XA_HEURRB")
    assert "the broker: still prepared" in str(report)
    assert world.numbers() == ([], [])  # nobody saw a message without its row
    world.producer().tpc_rollback(branch(xid, BROKER))  # what a person decides
    assert world.in_doubt() == []


def _commit_both(world: World, xid: Xid) -> None:
    with world.database.connect() as connection:
        connection.tpc_commit(str(branch(xid, DATABASE)))
    world.producer().tpc_commit(branch(xid, BROKER))


def test_what_somebody_committed_as_decided_is_no_hazard(world: World) -> None:
    def observe(step: TwoPhaseStep, xid: Xid) -> None:
        if step is TwoPhaseStep.DECIDED:
            _commit_both(world, xid)

    with world.coordinator(observe) as coordinator:
        world.work(coordinator, world.producer(), 1)
        assert coordinator.recover([world.connection], [world.producer()]) == []
    assert world.numbers() == ([1], [1])


def test_a_broker_that_lost_the_branch_while_the_service_was_down(world: World, tmp_path: Path) -> None:
    class _Killed(BaseException):
        pass

    def observe(step: TwoPhaseStep, xid: Xid) -> None:
        if step is TwoPhaseStep.COMMITTED_DATABASE:
            xids.append(xid)
            coordinator.stop_waiting()  # a dead service's background recovery finishes nothing
            raise _Killed

    xids: list[Xid] = []
    with world.coordinator(observe) as coordinator, pytest.raises(_Killed):
        world.work(coordinator, world.producer(), 1)
    _lose_message(world, xids[0])
    check_kept(world, xids[0], "XA_HEURHAZ")
    assert world.numbers() == ([1], [])
