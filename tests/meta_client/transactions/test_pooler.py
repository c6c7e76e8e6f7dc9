"""Blocks, resolvers and the doctor behind a real PgBouncer, whose clients take turns at sessions of the database."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import Any

import asyncpg
import pg8000.dbapi
import psycopg
import psycopg2
import pytest
from sqlalchemy.orm import Session

from meta_client.aio.bridge.bridge import run
from meta_client.aio.transactions.databases import session_of as session_of_tasks
from meta_client.coordinator.errors import PrepareFailed, Unreachable
from meta_client.transactions import CommitStep, table
from meta_client.transactions.databases import session_of
from meta_client.transactions.table import RowDecision
from tests.fixtures.forked import run_metaq
from tests.fixtures.pgbouncer import PgBouncer
from tests.fixtures.postgres import USER_OF_PLAIN_DRIVERS, connect_plain
from tests.meta_client.aio.transactions.ways import asyncpg_words
from tests.meta_client.transactions.conftest import World
from tests.meta_client.transactions.crashing import engine_of

UNPREPARED: dict[str, Any] = {"prepare_threshold": None}  # as such a pooler wants it
# PgBouncer gives each client these back.
LEFT_BEHIND = """SELECT name || ' = ' || setting FROM pg_settings WHERE source = 'session' AND name NOT IN
        ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings')
    UNION ALL SELECT statement FROM pg_prepared_statements"""


@pytest.fixture
def pooler(world: World) -> Iterator[PgBouncer]:
    """One session for each user."""
    with PgBouncer(world.deciding.url, pool_mode="transaction", default_pool_size=1) as pooler:
        yield pooler


def left_behind(pooler: PgBouncer) -> list[str]:
    """Settings and statements that clients left in the sessions that the next ones get."""
    found: list[str] = []
    users: list[dict[str, Any]] = [{}, {"user": USER_OF_PLAIN_DRIVERS}]
    for how in users:
        with closing(psycopg.connect(pooler.dsn, **UNPREPARED, **how)) as connection:
            found += [text for (text,) in connection.execute(LEFT_BEHIND.encode())]
    return found


@contextmanager
def with_psycopg(pooler: PgBouncer) -> Iterator[table.Session]:
    with closing(psycopg.connect(pooler.dsn, **UNPREPARED)) as connection:
        yield session_of(connection)


@contextmanager
def with_psycopg2(pooler: PgBouncer) -> Iterator[table.Session]:
    with closing(connect_plain(psycopg2, pooler.dsn)) as connection:
        yield session_of(connection)


@contextmanager
def with_pg8000(pooler: PgBouncer) -> Iterator[table.Session]:
    with closing(connect_plain(pg8000.dbapi, pooler.dsn)) as connection:
        yield session_of(connection, lambda: connect_plain(pg8000.dbapi, pooler.dsn))


@contextmanager
def with_sqlalchemy(pooler: PgBouncer) -> Iterator[table.Session]:
    engine = engine_of(pooler.dsn, connect_args=UNPREPARED)
    with Session(engine) as session:
        yield session_of(session)
    engine.dispose()


def resolve(session: table.Session) -> None:
    """Do all that a resolver does, often enough for a driver to prepare its statements."""
    session.driver_connection()
    session.begin()
    opener = session.opener()
    session.rollback()
    names = [f"undecided {number}" for number in range(8)]
    with closing(opener()) as rows:
        for name in names:
            assert rows.resolve(name) is RowDecision.ROLLBACK
            assert rows.resolve_all([name]) == {name: RowDecision.ROLLBACK}
            generation = rows.generation()
            assert rows.advance(generation, generation + 1)
            rows.mark(name, "none")
            assert rows.rows(0, 9) == []
        rows.delete(names)
        assert rows.decided_all(names) == {}


@pytest.mark.parametrize("opened", [with_psycopg, with_psycopg2, with_pg8000, with_sqlalchemy])
def test_a_resolver_leaves_nothing_behind(pooler: PgBouncer, opened: Callable[[PgBouncer], Any]) -> None:
    """Else others would wait no longer for locks, work at another isolation level, or execute a statement of ours."""
    with opened(pooler) as session:
        resolve(session)
    assert left_behind(pooler) == []


def test_a_resolver_of_asyncpg_leaves_nothing_behind(pooler: PgBouncer) -> None:
    async def main() -> None:
        connection = await asyncpg.connect(**asyncpg_words(pooler.dsn), statement_cache_size=0)
        await run(lambda: resolve(session_of_tasks(connection)))
        await connection.close()

    asyncio.run(main())
    assert left_behind(pooler) == []


def test_the_doctor_leaves_nothing_behind(world: World, pooler: PgBouncer) -> None:
    """Else others could no longer write."""
    found = run_metaq("txn", "doctor", "--database", pooler.dsn, "--zk", world.zookeeper, "--age", "0.1")
    assert found.returncode == 0, found.stderr
    assert left_behind(pooler) == []


@pytest.mark.parametrize("step", [CommitStep.PREPARED, CommitStep.RECORDED, CommitStep.DECIDED])
def test_it_is_killed_at_a_step(world: World, pooler: PgBouncer, step: CommitStep) -> None:
    """Before COMMIT the block says that both are rolled back; afterwards both are there, and resolvers come back."""

    def observe(reached: CommitStep, gtrid: str) -> None:
        if reached is step:
            pooler.restart()

    connection = psycopg.connect(pooler.dsn, **UNPREPARED)
    is_decided = step is CommitStep.DECIDED
    with world.open_client(observer=observe, age_s=0.2, interval_s=0.1) as client, closing(connection):
        with (
            nullcontext() if is_decided else pytest.raises(PrepareFailed),
            client.transaction(connection) as transaction,
        ):
            connection.execute("INSERT INTO numbers VALUES (1)")
            transaction.send("orders", b"1")
        world.wait_quiet()
    world.check([1] if is_decided else [])


def test_a_pooler_of_statements_begins_nothing(world: World) -> None:
    with (
        PgBouncer(world.deciding.url, pool_mode="statement") as pooler,
        closing(psycopg.connect(pooler.dsn, autocommit=True, **UNPREPARED)) as connection,
        pytest.raises(Unreachable, match="transaction blocks not allowed in statement pooling mode"),
        world.client.transaction(connection),
    ):
        pytest.fail("the block must not be entered")
