"""Recovery after a coordinator's death at every step, and the branches it must not touch."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from journal.records.xid import Xid
from meta_client.coordinator import Coordinator, RecoveredTransaction, TwoPhaseStep
from meta_client.coordinator.errors import CopiedLog
from meta_client.coordinator.names import BROKER, DATABASE, branch
from meta_client.coordinator.recovery import Action
from tests.fixtures.forked import start_module
from tests.meta_client.coordinator.conftest import World
from tests.meta_client.coordinator.test_coordinator import COMMIT_STEPS
from tests.meta_client.coordinator.test_steps import DECIDED_STEPS

DONE_BEFORE = ("the database: committed before", "the broker: committed before")
CRASHING = "tests.meta_client.coordinator.crashing"


def crash(world: World, number: int, step: TwoPhaseStep, *, directory: Path | None = None) -> None:
    """Let a process of its own die at *step* of the transaction that writes *number*."""
    place = str(directory or world.directory)
    process = start_module(CRASHING, world.database.dsn, world.zookeeper, place, str(number), step.name)
    assert process.wait() == -signal.SIGKILL


def recover(world: World) -> list[RecoveredTransaction]:
    with world.coordinator() as coordinator:
        reports = coordinator.recover([world.connection], [world.producer()])
        assert coordinator.recover([world.connection], [world.producer()]) == []
        return reports


@pytest.mark.parametrize("at", COMMIT_STEPS)
def test_a_coordinator_that_is_killed_at_a_step(world: World, at: TwoPhaseStep) -> None:
    crash(world, 1, at)
    reports = recover(world)
    expected = [1] if at in DECIDED_STEPS else []
    assert world.numbers() == (expected, expected)
    assert world.in_doubt() == []
    assert all(report.problem is None for report in reports)
    match at:
        case TwoPhaseStep.PREPARED_BROKER | TwoPhaseStep.PREPARED_DATABASE:
            assert [report.action for report in reports] == [Action.ROLL_BACK]
        case TwoPhaseStep.DECIDED | TwoPhaseStep.COMMITTED_DATABASE | TwoPhaseStep.COMMITTED_BROKER:
            assert [report.action for report in reports] == [Action.COMMIT]
            assert str(reports[0]).endswith("finished")
        case TwoPhaseStep.FORGOTTEN:  # a FORGET is not waited for: if it was lost, there is nothing left to do
            assert {report.done for report in reports} <= {DONE_BEFORE}
        case _:
            assert reports == []


def test_a_crash_in_the_middle_of_recovery_is_recovered_from(world: World) -> None:
    crash(world, 1, TwoPhaseStep.DECIDED)
    world.connection.execute("SELECT 1")
    world.connection.rollback()
    with world.coordinator() as coordinator:
        # Half of a recovery: the database has heard of it, the broker has not.
        (gid,) = world.database.prepared()
        world.connection.tpc_commit(gid)
        assert coordinator.recover([world.connection], []) != []
    (report,) = recover(world)
    assert report.done == ("the database: committed before", "the broker: committed")
    assert world.numbers() == ([1], [1])


def test_a_decided_transaction_whose_broker_is_not_asked_stays_decided(world: World) -> None:
    crash(world, 1, TwoPhaseStep.DECIDED)
    with world.coordinator() as coordinator:
        (report,) = coordinator.recover([world.connection], [])
        assert report.problem is not None
        assert "0/shop was not asked" in report.problem
        (report,) = coordinator.recover([world.connection], [world.client.producer("another-qualifier")])
        assert report.problem is not None
        (report,) = coordinator.recover([world.connection], [world.producer()])
        assert report.problem is None
    assert world.numbers() == ([1], [1])


def test_a_decided_branch_rolled_back_by_hand_is_reported_and_not_taken_for_committed(world: World) -> None:
    crash(world, 1, TwoPhaseStep.DECIDED)
    operator = world.producer()
    ((name, *_),) = operator.tpc_list().keys.values()
    operator.tpc_rollback(name.xid)
    with world.coordinator() as coordinator:
        for _ in range(2):  # until somebody has looked at it, and the broker has forgotten
            (report,) = coordinator.recover([world.connection], [world.producer()])
            assert report.problem is not None
            assert (
                "answers 'rolled back before, not by this coordinator': database and broker may disagree"
                in report.problem
            )
    assert world.numbers() == ([1], [])


def test_a_decided_transaction_whose_database_is_not_asked_is_not_shown_to_consumers(world: World) -> None:
    crash(world, 1, TwoPhaseStep.DECIDED)
    with world.coordinator() as coordinator:
        (report,) = coordinator.recover([], [world.producer()])
        assert report.problem is not None
    assert world.numbers() == ([], [])
    recover(world)
    assert world.numbers() == ([1], [1])


def test_others_transactions_are_left_alone(world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    elsewhere = tmp_path / "elsewhere"
    crash(world, 1, TwoPhaseStep.PREPARED_DATABASE, directory=elsewhere)  # a namesake with a log of its own
    stranger = Xid.of("stranger", "mq")
    producer = world.producer()
    producer.tpc_begin(stranger, ("orders",))
    producer.send("orders", b"7")
    producer.tpc_prepare()
    before = world.in_doubt()
    assert recover(world) == []
    assert world.in_doubt() == before
    assert "prepared branch of another log left alone" in caplog.text
    with Coordinator.open(elsewhere, "shop") as namesake:
        assert len(namesake.recover([world.connection], [world.producer()])) == 1
    producer.tpc_rollback(stranger)
    assert world.in_doubt() == []


@pytest.mark.parametrize(
    "at",
    [
        TwoPhaseStep.PREPARED_BROKER,
        TwoPhaseStep.PREPARED_DATABASE,
        TwoPhaseStep.DECIDED,
        TwoPhaseStep.COMMITTED_DATABASE,
    ],
)
def test_what_is_in_flight_is_left_alone(world: World, at: TwoPhaseStep) -> None:
    reports: list[list[RecoveredTransaction]] = []
    opened: list[Coordinator] = []

    def recover_beside(step: TwoPhaseStep, xid: Xid) -> None:
        if step is at:
            with psycopg.connect(world.database.dsn) as other:
                reports.append(opened[0].recover([other], [world.producer()]))

    with world.coordinator(recover_beside) as coordinator:
        opened.append(coordinator)
        world.work(coordinator, world.producer(), 1)
    assert reports == [[]]
    assert world.numbers() == ([1], [1])


def test_a_lost_log_takes_nobody_for_undecided(world: World) -> None:
    """Deleting the log leaves branches in doubt, for an operator; it must never roll a decided one back."""
    crash(world, 1, TwoPhaseStep.COMMITTED_DATABASE)
    for file in world.directory.iterdir():
        file.unlink()
    assert recover(world) == []
    (key,) = world.producer().tpc_recover()
    world.producer().tpc_commit(key)
    assert world.numbers() == ([1], [1])


Damage = Callable[[World, Xid], None]


def _commit_both(world: World, xid: Xid) -> None:
    world.connection.tpc_commit(str(branch(xid, DATABASE)))
    world.producer().tpc_commit(branch(xid, BROKER))


def _commit_broker(world: World, xid: Xid) -> None:
    world.producer().tpc_commit(branch(xid, BROKER))


@pytest.mark.parametrize("by_hand", [_commit_both, _commit_broker])
def test_what_an_operator_finished_by_hand_counts_as_finished(world: World, by_hand: Damage) -> None:
    crash(world, 1, TwoPhaseStep.DECIDED)
    (key,) = world.producer().tpc_recover()
    by_hand(world, key)
    (report,) = recover(world)
    assert (report.action, report.problem) == (Action.COMMIT, None)
    assert world.numbers() == ([1], [1])
    assert world.in_doubt() == []


def test_a_clone_does_not_roll_back_what_the_original_works_on(world: World, tmp_path: Path) -> None:
    def clone(step: TwoPhaseStep, xid: Xid) -> None:
        if step is TwoPhaseStep.PREPARED_DATABASE:
            shutil.copytree(world.directory, tmp_path / "clone")
            with pytest.raises(CopiedLog), Coordinator.open(tmp_path / "clone", "shop") as copy:
                copy.recover([world.database.connect()], [world.producer()])

    with world.coordinator(clone) as coordinator:
        world.work(coordinator, world.producer(), 1)
    assert world.numbers() == ([1], [1])
