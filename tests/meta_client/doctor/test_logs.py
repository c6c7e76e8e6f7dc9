"""The doctor over decision logs and PostgreSQL's prepared transactions."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from journal.records.xid import Xid
from meta_client.coordinator import TwoPhaseStep
from tests.fixtures.forked import run_metaq, start_metaq
from tests.meta_client.coordinator.conftest import World
from tests.meta_client.coordinator.test_recovery import crash, recover
from tests.meta_client.doctor.conftest import Doctor, Told


def look(doctor: Doctor, world: World, *words: str) -> Told:
    return doctor(world.zookeeper, "--database", world.database.dsn, "--decisions", str(world.directory), *words)


def run_as_told(command: str, zookeeper: str) -> None:
    """The command as a person would paste it, with psql's part done by psycopg: no psql is in the wheel."""
    environment = os.environ | {"METAQ_ZK": zookeeper, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        f"{command.replace(chr(39) + '...' + chr(39), 'checked')} --yes",
        shell=True,
        env=environment,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize(
    "at",
    [
        TwoPhaseStep.PREPARED_BROKER,
        TwoPhaseStep.PREPARED_DATABASE,
        TwoPhaseStep.DECIDED,
        TwoPhaseStep.COMMITTED_DATABASE,
    ],
)
def test_a_coordinator_that_was_killed_at_a_step(xa_world: World, doctor: Doctor, at: TwoPhaseStep) -> None:
    world = xa_world
    crash(world, 1, at)
    told, is_decided = look(doctor, world), at in (TwoPhaseStep.DECIDED, TwoPhaseStep.COMMITTED_DATABASE)
    broker = told.at("broker 0")
    assert (broker["verdict"], broker["topics"]) == ("commit" if is_decided else "ask a person", {"orders": 1})
    assert told.status == (0 if is_decided else 1)
    if at in (TwoPhaseStep.PREPARED_DATABASE, TwoPhaseStep.DECIDED):
        (row,) = (row for row in told.rows if row["database"])
        assert "RowExclusiveLock on numbers" in row["locks"]
        assert (row["waiting"], row["role"]) == (0, "metaq")
        assert row["vacuum_age"] >= 1
        assert row["verdict"] == broker["verdict"]
    before = world.in_doubt()
    applied = look(doctor, world, "--apply")
    if is_decided:
        assert applied.status == 0
        assert world.numbers() == ([1], [1])
        assert world.in_doubt() == []
        assert recover(world)[0].problem is None  # the log gets the outcome
        assert look(doctor, world).rows == []
        return
    assert (applied.status, world.in_doubt()) == (1, before)
    assert "presumed abort" in broker["reason"]
    assert "it may have been decided to commit" in broker["risk"]
    for row in applied.rows:
        for command in row["commands"]:
            if command.startswith("psql"):
                assert command.endswith(f"-c \"ROLLBACK PREPARED '{row['xid']}'\"")
                world.connection.tpc_rollback(row["xid"])
            else:
                run_as_told(command, world.zookeeper)
    assert world.database.prepared() == []
    world.producer().tpc_forget(Xid.parse(broker["xid"]))
    assert look(doctor, world).rows == []
    assert world.numbers() == ([], [])


@pytest.mark.parametrize("at", [TwoPhaseStep.BEGUN, TwoPhaseStep.COMMITTED_BROKER, TwoPhaseStep.FORGOTTEN])
def test_a_coordinator_that_was_killed_with_nothing_in_doubt(xa_world: World, doctor: Doctor, at: TwoPhaseStep) -> None:
    world = xa_world
    crash(world, 1, at)
    assert look(doctor, world, "--apply").rows == []
    expected = [] if at is TwoPhaseStep.BEGUN else [1]
    assert world.numbers() == (expected, expected)


def test_the_doctor_itself_is_killed_and_another_one_goes_on(xa_world: World, doctor: Doctor) -> None:
    """At any moment of what it does; two of them at the same time, too."""
    world = xa_world
    for number in range(6):
        crash(world, number, TwoPhaseStep.DECIDED)
    given = ("--database", world.database.dsn, "--decisions", str(world.directory))
    words = ("txn", "doctor", "--zk", world.zookeeper, "--age", "0.1", "--apply", *given)
    left = [len(world.in_doubt())]
    with (world.directory.parent / "said").open("w+b") as said:
        while left[-1]:
            both = [start_metaq(words, stdin=said, stdout=said, stderr=said) for _ in range(2)]
            deadline = time.monotonic() + 60
            while len(world.in_doubt()) == left[-1]:
                assert time.monotonic() < deadline, "they do nothing"
            for process in both:
                process.kill()
                process.wait()
            left.append(len(world.in_doubt()))
    assert len(left) > 2, "none of them was killed while it worked"
    told = look(doctor, world, "--apply")
    assert told.status == 0
    assert world.numbers() == (list(range(6)), list(range(6)))
    assert world.in_doubt() == []


def test_somebody_waits_for_what_is_prepared(xa_world: World, doctor: Doctor) -> None:
    """The row that it has written is locked until it is ended; the doctor says how many wait."""
    world = xa_world
    crash(world, 1, TwoPhaseStep.DECIDED)
    waiter = world.database.connect()
    thread = threading.Thread(target=lambda: waiter.execute("INSERT INTO numbers VALUES (1) ON CONFLICT DO NOTHING"))
    thread.start()
    try:
        while not world.database.value("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            pass
        (row,) = (row for row in look(doctor, world).rows if row["database"])
        assert row["waiting"] == 1
    finally:
        look(doctor, world, "--apply")
        thread.join()
        waiter.rollback()
    assert world.numbers() == ([1], [1])


def test_a_coordinator_that_runs_is_left_to_itself(xa_world: World, doctor: Doctor) -> None:
    """The coordinator has prepared both sides and is still deciding: nothing counts as in doubt at any age, and it
    commits."""
    world, held, goes_on = xa_world, threading.Event(), threading.Event()

    def hold(step: TwoPhaseStep, xid: Xid) -> None:
        if step is TwoPhaseStep.PREPARED_DATABASE:
            held.set()
            assert goes_on.wait(60)

    with world.coordinator(hold) as coordinator:
        worker = threading.Thread(target=lambda: world.work(coordinator, world.producer(), 1))
        worker.start()
        assert held.wait(60)
        try:
            told = look(doctor, world, "--apply")
            assert (told.status, told.verdicts) == (0, ["at work", "at work"])
            assert all("runs" in row["reason"] for row in told.rows)
        finally:
            goes_on.set()
            worker.join()
    assert world.numbers() == ([1], [1])


def test_a_side_that_was_not_given_is_unknown(xa_world: World, doctor: Doctor) -> None:
    world = xa_world
    crash(world, 1, TwoPhaseStep.DECIDED)
    no_log = doctor(world.zookeeper, "--database", world.database.dsn, "--apply")
    assert (no_log.status, no_log.verdicts) == (1, ["unknown", "unknown"])
    assert all("the decision log of coordinator shop." in row["reason"] for row in no_log.rows)
    no_database = doctor(world.zookeeper, "--decisions", str(world.directory), "--apply")
    assert (no_database.status, no_database.verdicts) == (1, ["unknown", "unknown"])  # the database commits first
    assert "is not among those given" in str(no_database.rows)
    assert len(world.in_doubt()) == 2
    # Found below a directory that holds the logs of several instances.
    assert world.directory.parent != world.directory
    nested = world.directory.parent / "instances"
    nested.mkdir()
    world.directory.rename(nested / "0")
    told = doctor(world.zookeeper, "--database", world.database.dsn, "--decisions", str(nested), "--apply")
    assert told.status == 0
    assert world.numbers() == ([1], [1])
    (nested / "0").rename(world.directory)


def test_a_copied_log_may_lack_decisions(xa_world: World, doctor: Doctor, tmp_path: Path) -> None:
    world, copy = xa_world, tmp_path / "copy"
    with world.coordinator():
        pass
    shutil.copytree(world.directory, copy)
    crash(world, 1, TwoPhaseStep.DECIDED)
    told = doctor(world.zookeeper, "--database", world.database.dsn, "--decisions", str(copy))
    assert (told.status, told.verdicts) == (1, ["unknown", "unknown"])
    assert all("a copy may lack decisions" in row["reason"] for row in told.rows)
    assert look(doctor, world, "--apply").status == 0
    (tmp_path / "empty").mkdir()
    nothing = doctor(world.zookeeper, "--decisions", str(tmp_path / "empty"))
    assert (nothing.status, nothing.rows[0]["place"]) == (1, f"decision log {tmp_path / 'empty'}")


def test_a_row_that_was_rolled_back_by_hand_keeps_its_message_back(xa_world: World, doctor: Doctor) -> None:
    world = xa_world
    crash(world, 1, TwoPhaseStep.DECIDED)
    (gid,) = world.database.prepared()
    world.connection.tpc_rollback(gid)
    told = look(doctor, world, "--apply")
    assert (told.status, told.verdicts) == (1, ["mixed", "mixed"])
    assert any("metaq txn rollback" in command for command in told.at("broker 0")["commands"])
    assert world.numbers() == ([], [])
    for command in told.at("broker 0")["commands"]:
        if command.startswith("metaq txn rollback"):
            run_as_told(command, world.zookeeper)
    assert look(doctor, world).verdicts == ["mixed", "mixed"]


def test_a_strangers_branch_is_for_a_person(xa_world: World, doctor: Doctor) -> None:
    """A Java client's: both halves are shown, with what each would take; --apply leaves it."""
    world, producer = xa_world, xa_world.producer()
    whole = Xid(131077, b"java-tm-17", b"")
    at_broker, in_database = (Xid(whole.format_id, whole.gtrid, bqual) for bqual in (b"jms", b"jdbc"))
    producer.tpc_begin(at_broker, topics=("orders",))
    producer.send("orders", b"1")
    world.connection.tpc_begin(world.connection.xid(131077, "java-tm-17", "jdbc"))
    world.connection.execute("INSERT INTO numbers VALUES (1)")
    world.connection.tpc_prepare()
    producer.tpc_prepare()
    told = doctor(world.zookeeper, "--database", world.database.dsn, "--apply")
    assert told.status == 1
    assert {row["verdict"] for row in told.rows if row["transaction"]} == {"ask a person"}
    assert any(f"ROLLBACK PREPARED '{in_database}'" in command for row in told.rows for command in row["commands"])
    assert any("metaq txn commit" in command for row in told.rows for command in row["commands"])
    assert "publishes messages whose rows may not be there" in told.at("broker 0")["risk"]
    assert len(world.in_doubt()) == 2
    world.connection.tpc_rollback()
    producer.tpc_rollback()


def test_help_and_no_zookeeper() -> None:
    shown = run_metaq("txn", "doctor", "--help").stdout
    assert "Exit status: 0  nothing needs a person" in shown
    gone = run_metaq("txn", "doctor", "--zk", "127.0.0.1:1")
    assert gone.returncode == 2
    assert gone.stderr.count("\n") == 1
