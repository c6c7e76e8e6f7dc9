"""Broker or database killed at every step, with SIGKILL: before the decision neither side has it, after it both."""

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from journal.records.xid import Xid
from meta_broker.testing.postgres import EmbeddedPostgres
from meta_client.coordinator import Coordinator, CoordinatorClosed, CoordinatorError, PrepareFailed, TwoPhaseStep
from meta_client.coordinator.recovery import Action
from meta_client.errors import SendFailed
from meta_client.producer.producer import Producer
from tests.fixtures.postgres import Database
from tests.meta_client.coordinator.conftest import TABLE, World
from tests.meta_client.coordinator.test_coordinator import COMMIT_STEPS

AWAY_S = 0.3


@pytest.mark.parametrize("at", COMMIT_STEPS)
def test_a_broker_that_is_away_for_a_while(world: World, at: TwoPhaseStep) -> None:
    returning = threading.Timer(AWAY_S, world.broker.start)

    def kill(step: TwoPhaseStep, xid: Xid) -> None:
        if step is at:
            world.broker.kill()
            returning.start()

    with world.coordinator(kill) as coordinator:
        if at is TwoPhaseStep.BEGUN:
            with pytest.raises(SendFailed):  # the block's own send
                world.work(coordinator, world.producer(), 1)
        else:
            world.work(coordinator, world.producer(), 1)  # the broker has promised: its absence undoes nothing
    returning.join()
    expected = [] if at is TwoPhaseStep.BEGUN else [1]
    assert world.numbers() == (expected, expected)
    assert world.in_doubt() == []


@pytest.mark.parametrize("at", [TwoPhaseStep.PREPARED_DATABASE, TwoPhaseStep.COMMITTED_DATABASE])
def test_a_broker_that_is_back_before_anybody_asks(world: World, at: TwoPhaseStep) -> None:
    def kill(step: TwoPhaseStep, xid: Xid) -> None:
        if step is at:
            world.broker.kill()
            world.broker.start()

    with world.coordinator(kill) as coordinator:
        world.work(coordinator, world.producer(), 1)
    assert world.numbers() == ([1], [1])
    assert world.in_doubt() == []


def test_a_branch_that_is_not_prepared_dies_with_its_broker(world: World) -> None:
    producer = world.producer()
    with world.coordinator() as coordinator:
        transaction = coordinator.transaction(world.connection, producer, topics=("orders",))
        transaction.__enter__()
        world.connection.execute("INSERT INTO numbers VALUES (1)")
        producer.send("orders", b"1")
        world.broker.kill()
        world.broker.start()
        with pytest.raises(PrepareFailed):
            transaction.__exit__(None, None, None)
        _until_it_works(world, coordinator, producer, 2)
    assert world.numbers() == ([2], [2])
    assert world.in_doubt() == []


class _Gone(Exception):
    """Error of the user's code after the broker went."""


def _kills_and_raises(world: World, times: int) -> Callable[[TwoPhaseStep, Xid], None]:
    numbers = itertools.count(1)

    def kill(step: TwoPhaseStep, xid: Xid) -> None:
        if step is TwoPhaseStep.PREPARED_BROKER and next(numbers) <= times:
            world.broker.kill()
            raise _Gone

    return kill


def test_an_undelivered_rollback_is_delivered_by_recovery(world: World) -> None:
    with world.coordinator(_kills_and_raises(world, 1)) as coordinator, pytest.raises(_Gone):
        world.work(coordinator, world.producer(), 1)
    world.broker.start()
    assert len(world.in_doubt()) == 1
    with world.coordinator() as coordinator:
        (report,) = coordinator.recover([world.connection], [world.producer()])
        assert (report.action, report.problem) == (Action.ROLL_BACK, None)
    assert world.numbers() == ([], [])
    assert world.in_doubt() == []


def test_an_undelivered_rollback_is_delivered_without_being_asked_for(world: World) -> None:
    with world.coordinator(_kills_and_raises(world, 1)) as coordinator:
        with pytest.raises(_Gone):
            world.work(coordinator, world.producer(), 1)
        with pytest.raises(CoordinatorError):
            world.work(coordinator, world.producer(), 2)  # still away
        world.broker.start()
        until_nothing_is_in_doubt(world)
        _until_it_works(world, coordinator, world.producer(), 3)
    assert world.numbers() == ([3], [3])


class _BrokenOff(BaseException):
    """Interruption, such as a thread's ^C, or the cancellation of a task while its loop ends."""


@pytest.mark.parametrize("at", [TwoPhaseStep.DECIDED, TwoPhaseStep.COMMITTED_DATABASE, TwoPhaseStep.COMMITTED_BROKER])
def test_a_decision_that_its_thread_did_not_carry_out_is_carried_out(world: World, at: TwoPhaseStep) -> None:
    def break_off(step: TwoPhaseStep, xid: Xid) -> None:
        if step is at:
            raise _BrokenOff

    with world.coordinator(break_off) as coordinator:
        with pytest.raises(_BrokenOff):
            world.work(coordinator, world.producer(), 1)
        until_nothing_is_in_doubt(world)
        assert world.numbers() == ([1], [1])


def test_a_prepare_whose_connection_broke_is_not_left_prepared(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The server goes on with a PREPARE whose client is gone; here it waits for a lock inside."""
    caplog.set_level("INFO", "meta_client.coordinator")
    world.connection.execute(HELD_UP)
    world.connection.commit()
    pids: list[int] = []

    def cut_off() -> None:
        with psycopg.connect(world.database.dsn) as other:
            deadline = time.monotonic() + 60
            while other.execute(WAITING).fetchone() != (1,):
                assert time.monotonic() < deadline
                other.rollback()
        with socket.socket(fileno=os.dup(pids[0])) as its:
            its.shutdown(socket.SHUT_RDWR)

    with world.database.connect() as holder, world.coordinator() as coordinator:
        holder.execute("SELECT pg_advisory_lock(1)")
        holder.commit()
        cutting = threading.Thread(target=cut_off)
        pids.append(world.connection.fileno())
        cutting.start()
        with pytest.raises(PrepareFailed):
            world.work(coordinator, world.producer(), 1)
        cutting.join()
        assert world.database.prepared() == []  # not yet
        holder.execute("SELECT pg_advisory_unlock(1)")
        holder.commit()
        deadline = time.monotonic() + 60
        while "the database: rolled back" not in caplog.text:  # it was prepared, and then found
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert world.in_doubt() == []
    assert world.numbers() == ([], [])


WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
HELD_UP = """
CREATE FUNCTION held_up() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER held_up AFTER INSERT ON numbers DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION held_up()
"""


def until_nothing_is_in_doubt(world: World) -> None:
    """Within seconds, nobody asking."""
    deadline = time.monotonic() + 60
    while world.in_doubt():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _until_it_works(world: World, coordinator: Coordinator, producer: Producer, number: int) -> None:
    """A broker that came back is not seen at once."""
    deadline = time.monotonic() + 60
    while True:
        try:
            world.work(coordinator, producer, number)
        except (CoordinatorError, SendFailed):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return


def test_closing_ends_the_wait_and_recovery_finishes(world: World) -> None:
    opened: list[Coordinator] = []
    closing = threading.Timer(0.3, lambda: opened[0].close())

    def kill(step: TwoPhaseStep, xid: Xid) -> None:
        if step is TwoPhaseStep.DECIDED:
            world.broker.kill()
            closing.start()

    opened.append(world.coordinator(kill))
    with pytest.raises(CoordinatorClosed, match=r"is decided and will commit.*recover\(\) at the next start"):
        world.work(opened[0], world.producer(), 1)
    closing.join()  # the wait ends before the directory is free
    with world.coordinator() as coordinator:
        (report,) = coordinator.recover([world.connection], [world.producer()])
        assert report.problem is not None  # the broker is still away; the row is there all the same
        world.broker.start()
        assert world.numbers() == ([1], [])
        (report,) = coordinator.recover([world.connection], [world.producer()])
        assert (report.action, report.problem) == (Action.COMMIT, None)
        assert coordinator.recover([world.connection], [world.producer()]) == []
    assert world.numbers() == ([1], [1])
    assert world.in_doubt() == []


@pytest.fixture(scope="module")
def mortal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path_factory.mktemp("mortal") / "postgres") as server:
        yield server


@pytest.fixture
def mortal(world: World, mortal_server: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL to kill, in place of the run's; it has the table, empty."""
    dsn = mortal_server.dsn
    mortal_server.restart()  # it died with a thread of the test before
    with psycopg.connect(dsn, options="-c lock_timeout=60s") as connection:
        connection.execute("DROP TABLE IF EXISTS numbers")
        connection.execute(TABLE)
    world.database = Database(dsn, lambda: psycopg.connect(dsn))
    with psycopg.connect(dsn) as world.connection:
        yield mortal_server


@pytest.mark.parametrize(
    "at", [TwoPhaseStep.BEGUN, TwoPhaseStep.PREPARED_BROKER, TwoPhaseStep.PREPARED_DATABASE, TwoPhaseStep.DECIDED]
)
def test_a_database_that_is_away_for_a_while(world: World, mortal: EmbeddedPostgres, at: TwoPhaseStep) -> None:
    returning = threading.Event()

    def kill(step: TwoPhaseStep, xid: Xid) -> None:
        if step is at:
            mortal.kill()
            returning.set()

    def come_back() -> None:
        returning.wait(60)
        time.sleep(AWAY_S)
        mortal.start()
        stay.wait(300)  # the server dies with the thread that started it

    stay = threading.Event()
    helper = threading.Thread(target=come_back)
    helper.start()
    is_prepared = at in (TwoPhaseStep.PREPARED_DATABASE, TwoPhaseStep.DECIDED)
    with world.coordinator(kill) as coordinator:
        if is_prepared:
            world.work(coordinator, world.producer(), 1)
        else:
            with pytest.raises((psycopg.OperationalError, CoordinatorError)):
                world.work(coordinator, world.producer(), 1)
    expected = [1] if is_prepared else []
    deadline = time.monotonic() + 60
    while not mortal.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert world.numbers() == (expected, expected)
    assert world.in_doubt() == []
    stay.set()
    helper.join()
