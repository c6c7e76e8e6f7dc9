"""The coordinator with a real PostgreSQL and a real broker, nobody killed: both or neither, in the right order."""

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from journal.records.xid import Xid
from meta_client.coordinator import Coordinator, CoordinatorClosed, PrepareFailed, TwoPhaseStep, Unreachable
from meta_client.coordinator.errors import CannotEnlist
from meta_client.errors import TransactionMisuse
from tests.meta_client.coordinator.conftest import World
from tests.meta_client.coordinator.test_steps import DECIDED_STEPS

COMMIT_STEPS = [
    TwoPhaseStep.BEGUN,
    TwoPhaseStep.PREPARED_BROKER,
    TwoPhaseStep.PREPARED_DATABASE,
    TwoPhaseStep.DECIDED,
    TwoPhaseStep.COMMITTED_DATABASE,
    TwoPhaseStep.COMMITTED_BROKER,
    TwoPhaseStep.FORGOTTEN,
]


def test_both_in_this_order(world: World) -> None:
    steps: list[TwoPhaseStep] = []
    names: set[bytes] = set()

    def observe(step: TwoPhaseStep, xid: Xid) -> None:
        steps.append(step)
        names.add(xid.gtrid)

    with world.coordinator(observe) as coordinator:
        world.work(coordinator, world.producer(), 1)
        assert steps == COMMIT_STEPS
        (name,) = names
        assert name.startswith(coordinator.name.encode())
    assert world.numbers() == ([1], [1])
    assert world.in_doubt() == []


def test_a_consumer_never_sees_a_message_before_its_row(world: World) -> None:
    seen: dict[TwoPhaseStep, tuple[list[int], list[int]]] = {}
    with world.coordinator(lambda step, _: seen.update({step: world.numbers()})) as coordinator:
        world.work(coordinator, world.producer(), 1)
    assert seen[TwoPhaseStep.DECIDED] == ([], [])
    assert seen[TwoPhaseStep.COMMITTED_DATABASE] == ([1], [])
    assert seen[TwoPhaseStep.COMMITTED_BROKER] == ([1], [1])


def test_neither_when_the_block_raises(world: World) -> None:
    steps: list[TwoPhaseStep] = []
    with world.coordinator(lambda step, _: steps.append(step)) as coordinator:
        producer = world.producer()
        transaction = coordinator.transaction(world.connection, producer, topics=("orders",))
        with pytest.raises(ZeroDivisionError), transaction:  # noqa: PT012 - the block is what is tested
            world.connection.execute("INSERT INTO numbers VALUES (1)")
            producer.send("orders", b"1")
            raise ZeroDivisionError
        assert steps == [TwoPhaseStep.BEGUN, TwoPhaseStep.ROLLED_BACK]
        assert transaction.step is TwoPhaseStep.ROLLED_BACK
        world.work(coordinator, producer, 2)  # connection and producer are as good as new
    assert world.numbers() == ([2], [2])
    assert world.in_doubt() == []


def test_neither_when_the_database_only_seems_to_prepare(world: World) -> None:
    with world.coordinator() as coordinator:
        producer = world.producer()
        with (  # noqa: PT012 - the block is what is tested
            pytest.raises(PrepareFailed, match="the database did not prepare: a statement failed"),
            coordinator.transaction(world.connection, producer, topics=("orders",)),
        ):
            producer.send("orders", b"1")
            with pytest.raises(psycopg.errors.UndefinedTable):
                world.connection.execute("INSERT INTO nowhere VALUES (1)")
        world.work(coordinator, producer, 2)
    assert world.numbers() == ([2], [2])
    assert world.in_doubt() == []


def test_without_messages_the_database_commits_alone(world: World) -> None:
    steps: list[TwoPhaseStep] = []
    with world.coordinator(lambda step, _: steps.append(step)) as coordinator:
        producer = world.producer()
        with coordinator.transaction(world.connection, producer, topics=("orders",)):
            world.connection.execute("INSERT INTO numbers VALUES (1)")
        assert steps == [
            TwoPhaseStep.BEGUN,
            TwoPhaseStep.READ_ONLY_BROKER,
            TwoPhaseStep.COMMITTED_DATABASE,
            TwoPhaseStep.FORGOTTEN,
        ]
    assert world.numbers() == ([1], [])


def test_a_topic_that_no_broker_has_begins_nothing(world: World) -> None:
    with world.coordinator() as coordinator:
        with (
            pytest.raises(Unreachable, match="nowhere"),
            coordinator.transaction(world.connection, world.producer(), topics=("nowhere",)),
        ):
            pytest.fail("the block must not be entered")
        with pytest.raises(TypeError, match="give a tuple of names"):
            coordinator.transaction(world.connection, world.producer(), topics="orders")
        world.work(coordinator, world.producer(), 1)
    assert world.numbers() == ([1], [1])


def test_a_producer_with_a_branch_of_its_own_is_refused(world: World) -> None:
    producer = world.producer()
    producer.tpc_begin(Xid.of("by-hand", "x"), ("orders",))
    with world.coordinator() as coordinator:
        with pytest.raises(CannotEnlist, match="commit it or roll it back first"):
            world.work(coordinator, producer, 1)
        producer.tpc_rollback()
        with pytest.raises(CannotEnlist, match="is not over: finish it first"), producer.transaction():
            world.work(coordinator, producer, 1)
        world.work(coordinator, producer, 1)
    assert world.numbers() == ([1], [1])


@pytest.mark.parametrize("has_its_own_connection", [True, False])
def test_a_block_inside_a_block_is_refused_and_the_outer_one_stays_whole(
    world: World, has_its_own_connection: bool
) -> None:
    producer = world.producer()
    connection = world.database.connect() if has_its_own_connection else world.connection
    with world.coordinator() as coordinator:
        with coordinator.transaction(world.connection, producer, topics=("orders",)):
            world.connection.execute("INSERT INTO numbers VALUES (1)")
            producer.send("orders", b"1")
            with (
                pytest.raises(TransactionMisuse, match="end that block first"),
                coordinator.transaction(connection, producer, topics=("orders",)),
            ):
                pytest.fail("the block must not be entered")
            producer.send("orders", b"2")
            world.connection.execute("INSERT INTO numbers VALUES (2)")
        with (  # noqa: PT012 - the block is what is tested
            pytest.raises(ZeroDivisionError),
            coordinator.transaction(world.connection, producer, topics=("orders",)),
        ):
            world.connection.execute("INSERT INTO numbers VALUES (3)")
            with pytest.raises(TransactionMisuse):
                coordinator.transaction(connection, producer, topics=("orders",)).__enter__()
            producer.send("orders", b"3")
            raise ZeroDivisionError
    assert world.numbers() == ([1, 2], [1, 2])
    assert world.in_doubt() == []


def test_another_thread_that_sends_with_the_producer_of_an_open_block_is_told(world: World) -> None:
    """A rollback of the block would silently drop a message that this thread saw acknowledged."""
    producer = world.producer()
    with ThreadPoolExecutor(1) as other, world.coordinator() as coordinator:
        with (  # noqa: PT012 - the block is what is tested
            pytest.raises(ZeroDivisionError),
            coordinator.transaction(world.connection, producer, topics=("orders",)),
        ):
            producer.send("orders", b"1")
            for send in (producer.send, producer.send_async):
                with pytest.raises(TransactionMisuse, match="use a producer of your own, or call the producer's join"):
                    other.submit(send, "orders", b"2").result()
            raise ZeroDivisionError
        with producer.transaction(), pytest.raises(TransactionMisuse, match="another thread or task"):
            other.submit(producer.send, "orders", b"3").result()
        other.submit(producer.send, "orders", b"4").result()  # nothing is open: anybody may
        with coordinator.transaction(world.connection, producer, topics=("orders",)):
            world.connection.execute("INSERT INTO numbers VALUES (5), (4)")
            other.submit(producer.join).result()
            other.submit(producer.send, "orders", b"5").result()
            with pytest.raises(TransactionMisuse):
                producer.send("orders", b"6")
    assert world.numbers() == ([4, 5], [4, 5])


@pytest.mark.parametrize("failing", COMMIT_STEPS)
def test_an_observer_that_fails(world: World, failing: TwoPhaseStep, caplog: pytest.LogCaptureFixture) -> None:
    def observe(step: TwoPhaseStep, xid: Xid) -> None:
        if step is failing:
            raise ZeroDivisionError

    with world.coordinator(observe) as coordinator:
        if failing in DECIDED_STEPS:
            world.work(coordinator, world.producer(), 1)
            assert "observer failed after the outcome was settled" in caplog.text
        else:
            with pytest.raises(ZeroDivisionError):
                world.work(coordinator, world.producer(), 1)
    assert world.numbers() == (([1], [1]) if failing in DECIDED_STEPS else ([], []))
    assert world.in_doubt() == []


def test_a_closed_coordinator_begins_nothing(world: World) -> None:
    coordinator = world.coordinator()
    coordinator.close()
    coordinator.close()
    with pytest.raises(CoordinatorClosed, match="open it again"):
        world.work(coordinator, world.producer(), 1)
    with pytest.raises(CoordinatorClosed, match="open it again"):
        coordinator.recover()


def test_many_threads_some_of_which_fail(world: World) -> None:
    threads_count, each = 6, 12
    with world.coordinator() as coordinator:
        threads = [
            threading.Thread(target=_work_and_fail, args=(world, coordinator, first))
            for first in range(0, threads_count * each, each)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    expected = [number for number in range(threads_count * each) if number % 3]
    assert world.numbers() == (expected, expected)
    assert world.in_doubt() == []


def _work_and_fail(world: World, coordinator: Coordinator, first: int) -> None:
    producer = world.producer()
    with psycopg.connect(world.database.dsn) as connection:
        for number in range(first, first + 12):
            try:
                with coordinator.transaction(connection, producer, topics=("orders",)):
                    connection.execute("INSERT INTO numbers VALUES (%s)", (number,))
                    producer.send("orders", str(number).encode())
                    if number % 3 == 0:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                continue
