"""A caller ends the block's database transaction, and goes on in another one: no message goes with rows of that one."""
# ruff: noqa: PT012 - the blocks are what is tested

import contextlib
import functools
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pg8000.dbapi
import psycopg2
import pytest
import sqlalchemy
from sqlalchemy import text

from meta_client.coordinator import PrepareFailed
from meta_client.transactions import CommitStep
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.postgres import connect_plain
from tests.meta_client.transactions.conftest import Deciding, World, do, make, running_world
from tests.meta_client.transactions.crashing import engine_of

End = Callable[[Any], object]


def ends_are_told(world: World, connection: Any, begin: Callable[[], object] | None, ends: dict[str, End]) -> list[int]:
    """Go through a block for each of *ends*, begun or not. Return the numbers that a COMMIT of the caller's stored."""
    stored: list[int] = []
    for number, (name, end) in enumerate(ends.items(), start=1):
        if begin is not None:
            begin()
        with (
            pytest.raises(PrepareFailed, match="ended inside the block"),
            world.client.transaction(connection) as transaction,
        ):
            do(connection, f"INSERT INTO numbers VALUES ({number})")
            transaction.send("orders", b"%d" % number)
            end(connection)
            do(connection, f"INSERT INTO numbers VALUES ({100 + number})")
        if name not in ("rollback", "trigger"):
            stored.append(number)
        world.work(1_000 + number, connection=connection)
    world.wait_quiet()
    return stored


@pytest.mark.parametrize("is_begun", [True, False])
def test_postgres(world: World, is_begun: bool) -> None:
    def by(*words: str) -> End:
        return lambda connection: [connection.execute(word) for word in words]

    ends = {"commit": by("COMMIT"), "chain": by("COMMIT AND CHAIN"), "begin": by("COMMIT", "BEGIN")}
    ends |= {"rollback": by("ROLLBACK")}
    if is_begun:  # else psycopg itself refuses
        ends |= {"method": lambda connection: connection.commit()}
    with closing(world.deciding.connect()) as connection:
        stored = ends_are_told(world, connection, (lambda: connection.execute("SELECT 1")) if is_begun else None, ends)
        if is_begun:
            for undo in (connection.rollback, lambda: connection.execute("ROLLBACK TO SAVEPOINT before")):
                connection.execute("SAVEPOINT before")
                with (
                    pytest.raises(PrepareFailed, match="ended inside the block"),
                    world.client.transaction(connection) as transaction,
                ):
                    transaction.send("orders", b"50")
                    undo()
                    connection.execute("INSERT INTO numbers VALUES (51)")
    world.wait_quiet()
    assert world.messages() == [1_000 + number for number in range(1, len(ends) + 1)]
    assert world.deciding.numbers() == [*stored, *world.messages()]


@pytest.mark.parametrize("is_begun", [True, False])
def test_sqlite(lite_world: World, is_begun: bool) -> None:
    def with_connection(connection: sqlite3.Connection) -> None:
        with connection:
            do(connection, "DELETE FROM numbers WHERE n = 0")

    def change_mode(connection: sqlite3.Connection) -> None:
        connection.isolation_level = None
        connection.isolation_level = "DEFERRED"

    def fail_in_trigger(connection: sqlite3.Connection) -> None:
        with suppress(sqlite3.Error):
            do(connection, "DELETE FROM numbers WHERE n = -1")

    ends: dict[str, End] = {
        "commit": sqlite3.Connection.commit,
        "rollback": sqlite3.Connection.rollback,
        "with": with_connection,
        "script": lambda connection: connection.executescript("CREATE TABLE scripted (n int)"),
        "mode": change_mode,
        "trigger": fail_in_trigger,
    }
    lite_world.deciding.execute("INSERT INTO numbers VALUES (-1)")
    lite_world.deciding.execute(
        "CREATE TRIGGER undo BEFORE DELETE ON numbers WHEN old.n = -1 BEGIN SELECT RAISE(ROLLBACK, 'no'); END"
    )
    with closing(lite_world.deciding.connect()) as connection:
        begin = (lambda: do(connection, "DELETE FROM numbers WHERE n = 0")) if is_begun else None
        stored = ends_are_told(lite_world, connection, begin, ends)
    assert lite_world.messages() == [1_000 + number for number in range(1, len(ends) + 1)]
    assert lite_world.deciding.numbers() == [-1, *stored, *lite_world.messages()]


def test_sqlalchemy(world: World) -> None:
    """By SQL, or by the driver's connection: SQLAlchemy does not notice."""
    engine = engine_of(world.deciding.url)
    ends: list[Callable[[sqlalchemy.Connection], object]] = [
        lambda connection: connection.execute(text("ROLLBACK")),
        lambda connection: connection.connection.rollback(),
    ]
    for end in ends:
        with engine.connect() as connection:
            with (
                pytest.raises(PrepareFailed, match="ended inside the block"),
                world.client.transaction(connection) as transaction,
            ):
                connection.execute(text("INSERT INTO numbers VALUES (1)"))
                transaction.send("orders", b"1")
                end(connection)
                connection.execute(text("INSERT INTO numbers VALUES (2)"))
            assert not connection.in_transaction()
    engine.dispose()
    world.wait_quiet()
    world.check([])


def test_a_stream_that_was_left(world: World) -> None:
    """It holds psycopg's lock, so that ROLLBACK would wait without end: the connection is closed instead."""
    for fails in (True, False):
        with closing(world.deciding.connect()) as connection:
            with (
                pytest.raises(ZeroDivisionError if fails else PrepareFailed, match=r"zero|leave pipelines and streams"),
                world.client.transaction(connection) as transaction,
            ):
                connection.execute("INSERT INTO numbers VALUES (1)")
                transaction.send("orders", b"1")
                rows = connection.cursor().stream("SELECT generate_series(1, 1000)")
                next(rows)
                if fails:
                    raise ZeroDivisionError("zero")
            assert connection.closed
            rows.close()
    world.wait_quiet()
    world.check([])


@pytest.mark.parametrize("word", ["COMMIT", "ROLLBACK"])
def test_an_end_between_the_row_and_commit_is_settled_by_the_row(world: World, word: str) -> None:
    """By an observer: nobody may take the row for rolled back."""
    with closing(world.deciding.connect()) as connection:

        def observe(step: CommitStep, gtrid: str) -> None:
            if step is CommitStep.RECORDED:
                do(connection, word)

        refused = pytest.raises(PrepareFailed, match="turned out") if word == "ROLLBACK" else contextlib.nullcontext()
        with (
            world.open_client(observer=observe) as client,
            refused,
            client.transaction(connection) as transaction,
        ):
            do(connection, "INSERT INTO numbers VALUES (1)")
            transaction.send("orders", b"1")
    world.wait_quiet()
    world.check([1] if word == "COMMIT" else [])


DRIVERS = {
    "psycopg": "postgres",
    "psycopg2": "postgres",
    "pg8000": "postgres",
    "sqlite3": "sqlite",
    "pymysql": "mariadb",
}
GAPS = {
    "rollback": ["ROLLBACK"],
    "begun again": ["ROLLBACK", "INSERT INTO numbers VALUES (2)"],
    "savepoint": ["ROLLBACK TO SAVEPOINT inside"],
    "mark": ["ROLLBACK TO SAVEPOINT metaq_block"],
    "commit": ["COMMIT", "INSERT INTO numbers VALUES (2)"],
}


def connected(driver: str, deciding: Deciding) -> tuple[Callable[[], Any], dict[str, Any]]:
    """Connects as one kind of caller, and names what a transaction needs besides the connection."""
    if driver not in ("psycopg2", "pg8000"):
        return deciding.connect, {}
    connect = functools.partial(connect_plain, psycopg2 if driver == "psycopg2" else pg8000.dbapi, deciding.url)
    return connect, {} if driver == "psycopg2" else {"connect": connect}


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("step", [CommitStep.PREPARED, CommitStep.RECORDED])
@pytest.mark.parametrize("driver", DRIVERS)
def test_rows_and_messages_agree_whatever_an_observer_does_before_commit(
    request: pytest.FixtureRequest, broker_pool: BrokerPool, driver: str, step: CommitStep, gap: str
) -> None:
    """It ends the transaction, or undoes a part of it; and may begin another one, which our COMMIT would end."""
    deciding = make(DRIVERS[driver], request)
    connect, how = connected(driver, deciding)
    with running_world(deciding, broker_pool) as world, closing(connect()) as connection:

        def observe(reached: CommitStep, gtrid: str) -> None:
            if reached is step:
                for word in GAPS[gap]:
                    with suppress(Exception):  # not every driver has such a savepoint
                        do(connection, word)

        is_sent = True
        with world.open_client(observer=observe) as client:
            try:
                with client.transaction(connection, **how) as transaction:
                    do(connection, "INSERT INTO numbers VALUES (1)")
                    do(connection, "SAVEPOINT inside")
                    transaction.send("orders", b"1")
            except PrepareFailed:
                is_sent = False
            world.wait_quiet()
        connection.rollback()
        assert not is_sent or gap in ("savepoint", "commit") or (gap, step) == ("mark", CommitStep.PREPARED)
        assert is_sent or gap != "commit" or step is CommitStep.PREPARED
        assert world.messages() == ([1] if is_sent else [])
        if gap != "commit" or step is not CommitStep.PREPARED:  # there the observer itself has stored the row alone
            assert [n for n in deciding.numbers() if n == 1] == world.messages()
        world.work(3, connection=connection, **how)
        world.wait_quiet()


@pytest.mark.parametrize("gap", ["begun again", "savepoint"])
def test_rows_and_messages_agree_whatever_a_listener_does_before_commit(world: World, gap: str) -> None:
    """SQLAlchemy's: by the driver's connection, so that SQLAlchemy does not notice."""
    engine = engine_of(world.deciding.url)
    with engine.connect() as connection:

        def undo(it: sqlalchemy.Connection) -> None:
            for word in GAPS[gap]:
                do(it.connection, word)

        with pytest.raises(PrepareFailed, match="turned out"), world.client.transaction(connection) as transaction:
            connection.execute(text("INSERT INTO numbers VALUES (1)"))
            connection.execute(text("SAVEPOINT inside"))
            transaction.send("orders", b"1")
            sqlalchemy.event.listen(connection, "commit", undo)
    engine.dispose()
    world.wait_quiet()
    world.check([])


def test_a_transaction_that_may_not_write(world: World) -> None:
    with closing(world.deciding.connect()) as connection:
        do(connection, "SET TRANSACTION READ ONLY")
        with (
            pytest.raises(PrepareFailed, match=r"READ ONLY.*begin it READ WRITE"),
            world.client.transaction(connection) as transaction,
        ):
            transaction.send("orders", b"1")
        world.work(2, connection=connection)
    world.wait_quiet()
    world.check([2])


@pytest.mark.parametrize("kind", ["postgres", "sqlite", "mariadb"])
def test_a_listener_that_fails_before_commit_leaves_no_row_to_the_next_transaction(
    request: pytest.FixtureRequest, broker_pool: BrokerPool, kind: str
) -> None:
    """SQLAlchemy takes the transaction for ended then, and sends no ROLLBACK: the connection's next COMMIT would store
    rows whose messages were rolled back."""
    with running_world(make(kind, request), broker_pool) as world:
        engine = engine_of(world.deciding.url)
        with engine.connect() as connection:

            def fail(it: sqlalchemy.Connection) -> None:
                raise ZeroDivisionError("zero")

            sqlalchemy.event.listen(connection, "commit", fail)
            with pytest.raises(ZeroDivisionError), world.client.transaction(connection) as transaction:
                connection.execute(text("INSERT INTO numbers VALUES (1)"))
                transaction.send("orders", b"1")
            sqlalchemy.event.remove(connection, "commit", fail)
            with world.client.transaction(connection) as transaction:
                connection.execute(text("INSERT INTO numbers VALUES (2)"))
                transaction.send("orders", b"2")
        engine.dispose()
        world.wait_quiet()
        world.check([2])
