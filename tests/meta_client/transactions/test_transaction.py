"""A row and a message with a real database and real brokers, nobody killed: both or neither, in the caller's ways."""

import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from meta_client import Client, NoBroker, NoPartition, TransactionMisuse
from meta_client.coordinator import HeuristicOutcome, PrepareFailed
from meta_client.coordinator.errors import CannotEnlist
from meta_client.producer.outgoing import STICKY_S
from meta_client.producer.partitioners import ByAttribute
from meta_client.producer.producer import Producer
from meta_client.transactions import CommitStep, NoDecisionTable, NotConfirmed, TransactionConfig
from tests.fixtures.no_threads import interrupted_starts, no_threads, running
from tests.fixtures.postgres import Database
from tests.meta_client.transactions.conftest import PARTITIONS, World
from zk.tree.nodes import Partition

COMMIT_STEPS = [CommitStep.PREPARED, CommitStep.RECORDED, CommitStep.DECIDED, CommitStep.COMMIT_SENT]


def test_both_in_this_order(world: World) -> None:
    steps: list[CommitStep] = []
    seen: dict[CommitStep, tuple[list[int], list[int]]] = {}

    def observe(step: CommitStep, gtrid: str) -> None:
        assert gtrid.startswith(world.deciding.identity.name.qualifier)
        steps.append(step)
        seen[step] = world.deciding.numbers(), world.messages()

    with world.open_client(observer=observe) as client, closing(world.deciding.connect()) as connection:
        with client.transaction(connection, wait=True) as transaction:
            connection.execute("INSERT INTO numbers VALUES (1)")
            handle = transaction.send("orders", b"1")
        assert steps == COMMIT_STEPS
        assert seen[CommitStep.RECORDED] == ([], [])
        assert seen[CommitStep.DECIDED] == ([1], [])  # no consumer sees a message before its row
        assert world.messages() == [1]  # it was waited for
        assert handle.result().partition.broker_id == 0
        world.wait_quiet()
    world.check([1])


@pytest.mark.parametrize("how", ["idle", "begun", "autocommit", "autocommit begun", "serializable", "cursor rows"])
def test_whatever_state_the_connection_is_in(world: World, how: str) -> None:
    with closing(world.deciding.connect()) as connection:
        connection.autocommit = how.startswith("autocommit")
        if how == "serializable":
            connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        if how == "cursor rows":
            connection.row_factory = psycopg.rows.dict_row
        for number in (1, 2, 3):
            if how.endswith("begun"):
                if connection.autocommit:
                    connection.execute("BEGIN")
                connection.execute("SELECT count(*) FROM numbers")  # as a framework does that has looked up the user
                connection.execute(f"INSERT INTO numbers VALUES ({number + 10})")
            world.work(number, connection=connection)
            assert connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
    world.wait_quiet()
    rows = world.deciding.numbers()
    assert rows == ([1, 2, 3, 11, 12, 13] if how.endswith("begun") else [1, 2, 3])
    assert world.messages() == [1, 2, 3]


def test_neither_when_the_block_raises(world: World) -> None:
    with closing(world.deciding.connect()) as connection:
        with pytest.raises(ZeroDivisionError), world.client.transaction(connection) as transaction:  # noqa: PT012
            connection.execute("INSERT INTO numbers VALUES (1)")
            transaction.send("orders", b"1").result()
            raise ZeroDivisionError
        assert transaction.step is CommitStep.ROLLED_BACK
        connection.execute("INSERT INTO numbers VALUES (7)")  # begun by the caller: it is rolled back all the same
        with pytest.raises(ZeroDivisionError), world.client.transaction(connection) as transaction:  # noqa: PT012
            transaction.send("orders", b"7")
            raise ZeroDivisionError
        world.work(2, connection=connection)
    world.wait_quiet()
    world.check([2])
    assert list(world.deciding.rows()) == []


@pytest.mark.parametrize("has_savepoint", [True, False])
def test_a_statement_that_fails(world: World, has_savepoint: bool) -> None:
    with closing(world.deciding.connect()) as connection:
        if has_savepoint:
            with world.client.transaction(connection) as transaction:
                connection.execute("INSERT INTO numbers VALUES (1)")
                with pytest.raises(psycopg.errors.UndefinedTable), connection.transaction():
                    connection.execute("INSERT INTO nowhere VALUES (1)")
                transaction.send("orders", b"1")
        else:
            with (  # noqa: PT012 - the block is what is tested
                pytest.raises(PrepareFailed, match="a statement failed and the block went on"),
                world.client.transaction(connection) as transaction,
            ):
                transaction.send("orders", b"1")
                with pytest.raises(psycopg.errors.UndefinedTable):
                    connection.execute("INSERT INTO nowhere VALUES (1)")
            world.work(1, connection=connection)
    world.wait_quiet()
    world.check([1])


def test_a_commit_that_the_database_refuses(world: World) -> None:
    """A deferred constraint: its own error comes out, and everything is rolled back."""
    world.deciding.execute("CREATE TABLE once (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    with closing(world.deciding.connect()) as connection:
        with (  # noqa: PT012 - the block is what is tested
            pytest.raises(psycopg.errors.UniqueViolation),
            world.client.transaction(connection) as transaction,
        ):
            connection.execute("INSERT INTO once VALUES (1), (1)")
            transaction.send("orders", b"1")
        assert transaction.step is CommitStep.ROLLED_BACK
        world.work(2, connection=connection)
    world.wait_quiet()
    world.check([2])


def test_without_messages_there_is_no_row(world: World) -> None:
    steps: list[CommitStep] = []
    with (
        world.open_client(observer=lambda step, _: steps.append(step)) as client,
        closing(world.deciding.connect()) as connection,
    ):
        with client.transaction(connection):
            connection.execute("INSERT INTO numbers VALUES (1)")
        assert steps == [CommitStep.DECIDED]
    assert world.deciding.numbers() == [1]


def test_without_rows_messages_are_decided_all_the_same(wide_world: World) -> None:
    with (
        closing(wide_world.deciding.connect()) as connection,
        wide_world.client.transaction(connection, wait=True) as transaction,
    ):
        transaction.send("orders", b"1")
        transaction.send("bills", b"1")
    assert (wide_world.messages("orders"), wide_world.messages("bills")) == ([1], [1])


def test_many_brokers(wide_world: World) -> None:
    topics = ("orders", "bills")
    for number in range(5):
        wide_world.work(number, topics=topics, wait=True)
    with closing(wide_world.deciding.connect()) as connection:
        wide_world.brokers[1].kill()
        with pytest.raises(NoBroker):
            wide_world.work(9, connection=connection, topics=("orders", "bills"))
        wide_world.brokers[1].start()
    wide_world.wait_quiet()
    wide_world.check(list(range(5)), topics=topics)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_wait_that_is_bounded_ends_while_a_broker_is_down(
    wide_world: World, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the broker; rows and messages are committed, and what is missing there follows."""
    monkeypatch.setattr("meta_client.transactions.brokers.REQUEST_TIMEOUT_S", 60.0)
    broker = wide_world.brokers[1]

    def observe(step: CommitStep, gtrid: str) -> None:
        if step is CommitStep.DECIDED:
            broker.pause() if hangs else broker.kill()

    with (
        wide_world.open_client(observer=observe, age_s=1.0, interval_s=0.1) as client,
        closing(wide_world.deciding.connect()) as connection,
    ):
        began = time.monotonic()
        with (  # noqa: PT012 - the block is what is tested
            pytest.raises(NotConfirmed, match="is decided and will commit, but broker 1 has not confirmed") as raised,
            client.transaction(connection, wait=0.5) as transaction,
        ):
            connection.execute("INSERT INTO numbers VALUES (1)")
            for topic in ("orders", "bills"):
                transaction.send(topic, b"1")
        assert 0.4 < time.monotonic() - began < 30
        assert raised.value.brokers == (1,)
        assert (wide_world.deciding.numbers(), wide_world.messages("orders")) == ([1], [1])
        broker.resume() if hangs else broker.start()
        wide_world.check([1], topics=("orders", "bills"))
        if hangs:  # else the row stays for a minute
            wide_world.wait_quiet()


def test_producers_that_join_keep_their_ways(world: World) -> None:
    producer = world.client.producer(partitioner=ByAttribute(), compression="zstd")
    places: set[Partition] = set()
    with closing(world.deciding.connect()) as connection:
        with world.client.transaction(connection, wait=True) as transaction:
            connection.execute("INSERT INTO numbers VALUES (1)")
            transaction.join(producer)
            places.update(producer.send("orders", b"1", attribute="same").partition for _ in range(3))
            places.add(producer.send_async("orders", b"1", attribute="same").result().partition)
            for misuse in (producer.transaction, lambda: transaction.join(producer)):
                with pytest.raises(TransactionMisuse):
                    misuse()
            with pytest.raises(NoPartition):
                transaction.send("nowhere", b"1")
        assert len(places) == 1
        assert world.messages() == [1] * 4
        assert producer.send("orders", b"2").offset is not None  # for itself again


def test_a_block_inside_a_block(world: World) -> None:
    with closing(world.deciding.connect()) as connection, closing(world.deciding.connect()) as other:
        with world.client.transaction(connection) as transaction:
            connection.execute("INSERT INTO numbers VALUES (1)")
            with pytest.raises(TransactionMisuse, match="end that block first"):
                world.work(2, connection=connection)
            with pytest.raises(TransactionMisuse), world.open_client() as client, client.transaction(connection):
                pytest.fail("the block must not be entered: nor through another client")
            world.work(3, connection=other)  # a transaction of its own
            transaction.send("orders", b"1")
        with pytest.raises(TransactionMisuse, match="put client"), connection.transaction():
            world.work(4, connection=connection)
        with pytest.raises(TransactionMisuse, match="used once"):
            transaction.__enter__()
        with pytest.raises(TransactionMisuse, match="is over"):
            transaction.send("orders", b"5")
    world.wait_quiet()
    world.check([1, 3])


@pytest.mark.parametrize("error", [None, LookupError()])
def test_an_end_that_is_called_twice_touches_nothing(world: World, error: LookupError | None) -> None:
    with closing(world.deciding.connect()) as connection:
        with world.client.transaction(connection) as transaction:
            connection.execute("INSERT INTO numbers VALUES (1)")
            transaction.send("orders", b"1")
        connection.execute("INSERT INTO numbers VALUES (2)")
        with pytest.raises(TransactionMisuse, match="has ended"):
            transaction.__exit__(None if error is None else LookupError, error, None)
        connection.commit()
        assert connection.execute("SELECT count(*) FROM numbers").fetchone() == (2,)


def test_an_end_that_an_interrupt_cut_short_leaves_the_connection_to_the_next_block(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = world.client.producer()

    def interrupted() -> None:
        raise KeyboardInterrupt

    with closing(world.deciding.connect()) as connection:
        with suppress(KeyboardInterrupt), world.client.transaction(connection) as first:
            connection.execute("INSERT INTO numbers VALUES (1)")
            first.join(producer)
            monkeypatch.setattr(producer, "leave", interrupted)
        with world.client.transaction(connection) as second:
            connection.execute("INSERT INTO numbers VALUES (2)")
            second.send("orders", b"2")
        assert first.step is CommitStep.ROLLED_BACK
    world.wait_quiet()
    world.check([2])


def test_a_transaction_that_is_ended_inside_the_block(world: World) -> None:
    with closing(world.deciding.connect()) as connection:
        for word in ("COMMIT", "ROLLBACK"):
            with (  # noqa: PT012 - the block is what is tested
                pytest.raises(PrepareFailed, match="ended inside the block"),
                world.client.transaction(connection) as transaction,
            ):
                transaction.send("orders", b"1")
                with pytest.raises(psycopg.ProgrammingError):
                    getattr(connection, word.lower())()
                connection.execute(word)
        world.work(2, connection=connection)
    world.wait_quiet()
    world.check([2])


def test_another_thread_sends_into_it(world: World) -> None:
    errors: list[Exception] = []
    producer = world.client.producer()

    def send(transaction: Any) -> None:
        for sends in (transaction.send, producer.send, producer.send_async):
            try:
                sends("orders", b"2")
            except TransactionMisuse as error:
                errors.append(error)

    with closing(world.deciding.connect()) as connection:
        with world.client.transaction(connection) as transaction:
            connection.execute("INSERT INTO numbers VALUES (1)")
            transaction.join(producer)
            thread = threading.Thread(target=send, args=(transaction,))
            thread.start()
            thread.join()
            transaction.send("orders", b"1")
        assert len(errors) == 3
    world.wait_quiet()
    world.check([1])


def test_the_thread_may_change_hands(world: World) -> None:
    with closing(world.deciding.connect()) as connection, world.client.transaction(connection) as transaction:
        connection.execute("INSERT INTO numbers VALUES (1)")

        def go_on() -> None:
            transaction.join()
            transaction.send("orders", b"1")

        thread = threading.Thread(target=go_on)
        thread.start()
        thread.join()
    world.wait_quiet()
    world.check([1])


def test_what_can_t_take_part(world: World, database: Database, tmp_path: Path) -> None:
    def refused(connection: Any, match: str, kind: type[Exception] = CannotEnlist) -> None:
        with pytest.raises(kind, match=match), world.client.transaction(connection):
            pytest.fail("the block must not be entered")

    with closing(world.deciding.connect()) as connection:
        with connection.pipeline():
            refused(connection, "leave the pipeline first")
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT 1 FROM nowhere")
        refused(connection, "roll it back first")
        connection.rollback()
        connection.execute("SET search_path = pg_catalog")
        connection.commit()
        refused(connection, "metaq txn init", NoDecisionTable)
    refused(connection, "open a new one")
    refused(object(), "builtins.object can't decide")
    refused(sqlite3.connect(":memory:"), "database in memory")
    with closing(sqlite3.connect(tmp_path / "empty.db")) as lite:
        refused(lite, "metaq txn init", NoDecisionTable)
        assert not lite.in_transaction


def test_a_role_without_rights_is_told_which(world: World) -> None:
    world.deciding.execute("DROP ROLE IF EXISTS metaq_stranger")
    world.deciding.execute("CREATE ROLE metaq_stranger")
    with closing(world.deciding.connect()) as connection:
        connection.execute("SET ROLE metaq_stranger")
        connection.commit()
        with (
            pytest.raises(CannotEnlist, match="GRANT SELECT, INSERT, UPDATE, DELETE ON metaq_decision"),
            world.client.transaction(connection),
        ):
            pytest.fail("the block must not be entered")
        assert connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
    world.deciding.execute("DROP ROLE metaq_stranger")


def test_sqlite_too(lite_world: World) -> None:
    with closing(lite_world.deciding.connect()) as connection:
        for number in range(20):
            lite_world.work(number, connection=connection)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO numbers VALUES (20)")
        with lite_world.client.transaction(connection) as transaction:
            transaction.send("orders", b"20")
        with pytest.raises(sqlite3.IntegrityError):
            lite_world.work(20, connection=connection)
        with (  # noqa: PT012 - the block is what is tested
            pytest.raises(PrepareFailed, match="ended inside the block"),
            lite_world.client.transaction(connection) as transaction,
        ):
            connection.execute("INSERT INTO numbers VALUES (99)")
            transaction.send("orders", b"99")
            connection.rollback()
    lite_world.wait_quiet()
    lite_world.check(list(range(21)))


def test_messages_that_may_go_anywhere_are_spread(world: World) -> None:
    """Over all partitions; those that follow one another closely stay together."""
    places: list[int] = []
    with closing(world.deciding.connect()) as connection:
        for number in range(PARTITIONS["orders"]):
            time.sleep(STICKY_S)
            with world.client.transaction(connection) as transaction:
                connection.execute(f"INSERT INTO numbers VALUES ({number})")
                handle = transaction.send("orders", b"%d" % number)
            places.append(handle.result().partition.number)
    assert sorted(places) == list(range(PARTITIONS["orders"]))
    world.wait_quiet()


def test_many_threads(world: World) -> None:
    world.work_in_threads()


def test_a_slow_one_that_was_resolved_meanwhile_is_told(world: World) -> None:
    """The branch is rolled back between PREPARE and its row, which is then refused."""

    def observe(step: CommitStep, gtrid: str) -> None:
        if step is CommitStep.PREPARED:
            deadline = time.monotonic() + 60
            while world.prepared():
                assert time.monotonic() < deadline
                time.sleep(0.05)

    with closing(world.deciding.connect()) as connection:
        with world.open_client(observer=observe, age_s=0.2, interval_s=0.1) as client:
            with (  # noqa: PT012 - the block is what is tested
                pytest.raises(PrepareFailed, match="a resolver has rolled it back meanwhile"),
                client.transaction(connection) as transaction,
            ):
                connection.execute("INSERT INTO numbers VALUES (1)")
                transaction.send("orders", b"1")
            (counts,) = client.transaction_counts().values()
            assert counts.resolved_rolled_back == 1
        world.work(2, connection=connection)  # which its resolver might take for a slow one, too
    world.wait_quiet()
    world.check([2])


def test_a_broker_that_forgot_what_was_decided(world: World) -> None:
    """An asynchronous slave was promoted without the branch: with *wait* the caller gets the error; the row stays."""
    names: list[str] = []

    def observe(step: CommitStep, gtrid: str) -> None:
        if step is CommitStep.DECIDED:
            names.append(gtrid)
            (broker,) = world.brokers
            broker.kill_and_lose()
            broker.forget_journal()
            broker.start()

    with world.open_client(observer=observe, age_s=1.5, interval_s=0.1) as client:
        with (  # noqa: PT012 - the block is what is tested
            closing(world.deciding.connect()) as connection,
            pytest.raises(HeuristicOutcome, match="broker 0 answers"),
            client.transaction(connection, wait=True) as transaction,
        ):
            connection.execute("INSERT INTO numbers VALUES (1)")
            transaction.send("orders", b"1")
        deadline = time.monotonic() + 60
        while next(iter(client.transaction_counts().values())).hazards == 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)  # some more looks: it is told once
        assert next(iter(client.transaction_counts().values())).hazards == 1
    assert [*world.deciding.rows()] == names
    (hazard,) = (text for (text,) in world.deciding.query("SELECT hazard FROM metaq_decision") if text is not None)
    assert "does not know it" in hazard


def test_nothing_is_sent_by_a_client_that_is_closed(world: World) -> None:
    client = Client(world.zookeeper, transactions=TransactionConfig(resolves=False))
    client.close()
    with closing(world.deciding.connect()) as connection, pytest.raises(Exception, match="closed"):
        client.transaction(connection)


def test_a_resolver_that_could_not_be_started_is_started_by_the_next_transaction(world: World) -> None:
    with closing(world.deciding.connect()) as connection:
        connection.execute("SELECT 1")  # and the session of ZooKeeper has its threads
        with no_threads(), pytest.raises(RuntimeError, match="can't start new thread"):
            world.work(1, connection=connection)
        world.work(2, connection=connection)
    world.wait_quiet()  # its rows are deleted, by nobody else here
    world.check([2])


def test_a_resolver_whose_start_was_interrupted_ends_with_its_client(world: World) -> None:
    former = running("metaq resolver")
    with Client(world.zookeeper) as client, closing(world.deciding.connect()) as connection:
        with interrupted_starts("metaq resolver"), pytest.raises(KeyboardInterrupt):
            client.transaction(connection).__enter__()
        with client.transaction(connection) as transaction:
            transaction.send("orders", b"1")
        assert len(running("metaq resolver") - former) == 1
    assert not running("metaq resolver") - former


def test_a_producer_in_a_branch_of_its_own_can_t_join(world: World) -> None:
    producer: Producer = world.client.producer()
    with closing(world.deciding.connect()) as connection, world.client.transaction(connection) as transaction:
        local = producer.transaction()
        with pytest.raises(TransactionMisuse, match="already"):
            transaction.join(producer)
        local.rollback()
