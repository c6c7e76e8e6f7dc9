"""A row and a message with PostgreSQL through drivers of which nothing is asked but PEP 249: psycopg2 and pg8000."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pg8000.dbapi
import psycopg
import psycopg2
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from meta_client.coordinator import PrepareFailed
from meta_client.coordinator.errors import CannotEnlist
from meta_client.transactions import CommitStep, NoDecisionTable
from tests.fixtures.postgres import connect_plain
from tests.meta_client.transactions.conftest import World, ask, do
from tests.meta_client.transactions.test_crashes import QUICK, Cut

DRIVERS = {"psycopg2": psycopg2, "pg8000": pg8000.dbapi, "pg8000.legacy": pg8000}


class Plain:
    """A driver, and the world around it."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world, self.module = name, world, DRIVERS[name]

    def connect(self, **how: Any) -> Any:
        """A caller's connection."""
        return connect_plain(self.module, self.world.deciding.url, **how)

    def transaction(self, connection: Any, client: Any = None, **how: Any) -> Any:
        how = {} if self.name == "psycopg2" else {"connect": self.connect} | how
        return (client or self.world.client).transaction(connection, **how)

    def work(self, connection: Any, number: int) -> None:
        with self.transaction(connection) as transaction:
            do(connection, f"INSERT INTO numbers VALUES ({number})")
            transaction.send("orders", str(number).encode())


@pytest.fixture(params=DRIVERS)
def plain(request: pytest.FixtureRequest, world: World) -> Plain:
    return Plain(request.param, world)


@pytest.mark.parametrize("how", ["idle", "begun", "autocommit", "autocommit begun"])
def test_whatever_state_the_connection_is_in(plain: Plain, how: str) -> None:
    with closing(plain.connect()) as connection:
        connection.autocommit = how.startswith("autocommit")
        for number in (1, 2):
            if how.endswith("begun"):
                if connection.autocommit:
                    do(connection, "BEGIN")
                do(connection, f"INSERT INTO numbers VALUES ({number + 10})")
            plain.work(connection, number)
            with pytest.raises(ZeroDivisionError), plain.transaction(connection) as transaction:  # noqa: PT012
                do(connection, "INSERT INTO numbers VALUES (99)")
                transaction.send("orders", b"99")
                raise ZeroDivisionError
            assert ask(connection, "SELECT count(*) FROM numbers WHERE n = 99") == [(0,)]
            connection.rollback()
    plain.world.wait_quiet()
    assert plain.world.deciding.numbers() == ([1, 2, 11, 12] if how.endswith("begun") else [1, 2])
    assert plain.world.messages() == [1, 2]


@pytest.mark.parametrize("is_autocommit", [False, True])
def test_a_transaction_that_is_ended_inside_the_block(plain: Plain, is_autocommit: bool) -> None:
    with closing(plain.connect()) as connection:
        connection.autocommit = is_autocommit
        for words in (["COMMIT"], ["ROLLBACK"], ["ROLLBACK", "BEGIN"]):
            with (  # noqa: PT012 - the block is what is tested
                pytest.raises(PrepareFailed, match="ended inside the block"),
                plain.transaction(connection) as transaction,
            ):
                transaction.send("orders", b"1")
                for word in words:
                    do(connection, word)
            connection.rollback()
        plain.work(connection, 2)
    plain.world.wait_quiet()
    plain.world.check([2])


def test_a_statement_that_fails(plain: Plain) -> None:
    with closing(plain.connect()) as connection:
        with (  # noqa: PT012 - the block is what is tested
            pytest.raises(PrepareFailed, match="a statement failed and the block went on"),
            plain.transaction(connection) as transaction,
        ):
            transaction.send("orders", b"1")
            with pytest.raises(plain.module.Error):
                do(connection, "INSERT INTO nowhere VALUES (1)")
        with pytest.raises(plain.module.Error):
            do(connection, "INSERT INTO nowhere VALUES (1)")
        with pytest.raises(CannotEnlist, match="roll it back first"), plain.transaction(connection):
            pytest.fail("the block must not be entered")
        connection.rollback()
        plain.work(connection, 2)
    plain.world.wait_quiet()
    plain.world.check([2])


def test_a_commit_that_the_database_refuses(plain: Plain) -> None:
    plain.world.deciding.execute("CREATE TABLE once (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    with closing(plain.connect()) as connection:
        with (  # noqa: PT012 - the block is what is tested
            pytest.raises(plain.module.DatabaseError, match="duplicate key"),
            plain.transaction(connection) as transaction,
        ):
            do(connection, "INSERT INTO once VALUES (1), (1)")
            transaction.send("orders", b"1")
        assert transaction.step is CommitStep.ROLLED_BACK
        plain.work(connection, 2)
    plain.world.wait_quiet()
    plain.world.check([2])


@pytest.mark.parametrize("loses_answer", [True, False])
def test_the_connection_is_lost_inside_commit(plain: Plain, loses_answer: bool) -> None:
    if plain.name != "psycopg2":
        loses_answer = False  # it sends the word and waits before it has it executed
    port = int(psycopg.conninfo.conninfo_to_dict(plain.world.deciding.url)["port"] or 0)
    with closing(Cut(port, loses_answer=loses_answer)) as cut:
        connection = plain.connect(port=cut.port)
        with plain.world.open_client(**QUICK) as client:
            outcome = contextlib.nullcontext() if loses_answer else pytest.raises(PrepareFailed, match="turned out")
            with outcome, plain.transaction(connection, client) as transaction:
                do(connection, "INSERT INTO numbers VALUES (1)")
                transaction.send("orders", b"1")
            plain.world.wait_quiet()
    plain.world.check([1] if loses_answer else [])


def test_a_session_that_the_server_ends_inside_commit(plain: Plain) -> None:
    """By a limit of its own, which may come just behind the commit: the row decides."""
    slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(30); RETURN NULL; END'"
    plain.world.deciding.execute(slow)
    plain.world.deciding.execute(
        "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON numbers DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION slow()"
    )
    connection = plain.connect()
    with (  # noqa: PT012 - the block is what is tested
        pytest.raises(PrepareFailed, match="turned out to be rolled back"),
        plain.transaction(connection) as transaction,
    ):
        do(connection, "INSERT INTO numbers VALUES (1)")
        transaction.send("orders", b"1").result()
        do(connection, "SET LOCAL transaction_timeout = 1500")
    plain.world.wait_quiet()
    plain.world.check([])


@pytest.mark.parametrize("unread", range(1, 6))
def test_a_connection_whose_answers_are_those_of_earlier_questions(plain: Plain, unread: int) -> None:
    """Exceptions of a signal's handler that the block swallows: nothing is committed."""
    if plain.name == "psycopg2":
        pytest.skip("libpq reads every answer before the handler runs")
    connection = plain.connect()
    with (  # noqa: PT012 - the block is what is tested
        pytest.raises(PrepareFailed, match="earlier questions"),
        plain.transaction(connection) as transaction,
    ):
        transaction.send("orders", b"1")
        for number in range(unread):
            connection.send_QUERY(f"INSERT INTO numbers VALUES ({number})")
            connection._sock.flush()
    with closing(plain.connect()) as connection:
        plain.work(connection, 2)
    plain.world.wait_quiet()
    plain.world.check([2])


def test_what_can_t_take_part(plain: Plain) -> None:
    with closing(plain.connect()) as connection:
        if plain.name != "psycopg2":
            with (
                pytest.raises(CannotEnlist, match="connect=make_one"),
                plain.world.client.transaction(connection),
            ):
                pytest.fail("the block must not be entered")
            connection.rollback()
        do(connection, "SET search_path = pg_catalog")
        connection.commit()
    with closing(plain.connect()) as connection:
        do(connection, "SET search_path = pg_catalog")
        with pytest.raises(NoDecisionTable), plain.transaction(connection):
            pytest.fail("the block must not be entered")
    with pytest.raises(CannotEnlist, match="closed: open a new one"), plain.transaction(connection):
        pytest.fail("the block must not be entered")


@pytest.fixture(params=["psycopg2", "pg8000"])
def engine(request: pytest.FixtureRequest, world: World) -> Iterator[sqlalchemy.Engine]:
    connect: Callable[[], Any] = functools.partial(Plain(request.param, world).connect)
    engine = sqlalchemy.create_engine(f"postgresql+{request.param}://", creator=connect)
    yield engine
    engine.dispose()


def test_sqlalchemy_over_it(world: World, engine: sqlalchemy.Engine) -> None:
    with Session(engine) as session:
        for number in (1, 2):
            with world.client.transaction(session) as transaction:
                session.execute(sqlalchemy.text(f"INSERT INTO numbers VALUES ({number})"))
                transaction.send("orders", str(number).encode())
        with pytest.raises(ZeroDivisionError), world.client.transaction(session) as transaction:  # noqa: PT012
            session.execute(sqlalchemy.text("INSERT INTO numbers VALUES (9)"))
            transaction.send("orders", b"9")
            raise ZeroDivisionError
    world.wait_quiet()
    world.check([1, 2])


def test_a_row_that_a_listener_commits_is_settled_by_the_row(world: World, engine: sqlalchemy.Engine) -> None:
    """Between the row and COMMIT: nobody may take it for rolled back."""
    with Session(engine) as session:
        sqlalchemy.event.listen(
            session, "before_commit", lambda it: it.connection().exec_driver_sql("COMMIT"), once=True
        )
        with world.client.transaction(session) as transaction:
            session.execute(sqlalchemy.text("INSERT INTO numbers VALUES (1)"))
            transaction.send("orders", b"1")
        assert transaction.step is CommitStep.COMMIT_SENT
    world.wait_quiet()
    world.check([1])
