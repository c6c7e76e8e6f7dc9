"""One row, two sessions: the first to insert decides, the second waits for it. At every isolation level."""

import dataclasses
import itertools
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pg8000.dbapi
import psycopg
import psycopg2
import pytest

from meta_client.coordinator.errors import CannotEnlist, PrepareFailed, Unreachable
from meta_client.transactions.databases import session_of
from meta_client.transactions.dbapi import DbapiSession
from meta_client.transactions.deciding import RowLost
from meta_client.transactions.dialects import LOCK_TIMEOUT_MS
from meta_client.transactions.table import DecisionTable, Row, RowDecision
from tests.fixtures.postgres import Database, connect_plain
from tests.meta_client.transactions.conftest import Deciding, ask, do, make, make_postgres, make_sqlite

LEVELS = [*psycopg.IsolationLevel, None]
MARIADB_LEVELS = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
CALLERS = [
    *(f"postgres {level.name if level else 'DEFAULT'}" for level in LEVELS),
    "postgres autocommit",
    "sqlite deferred",
    "sqlite wal",
    *(f"mariadb {level}" for level in MARIADB_LEVELS),
    "mariadb autocommit",
    *(
        f"{driver} {how}"
        for driver in ("psycopg2", "pg8000")
        for how in ("SERIALIZABLE", "READ COMMITTED", "autocommit")
    ),
]


@pytest.fixture(params=CALLERS)
def caller(request: pytest.FixtureRequest) -> Iterator[tuple[Deciding, Any]]:
    """A database, and a connection as a caller may have it."""
    kind, _, how = request.param.partition(" ")
    plain = {"psycopg2": psycopg2, "pg8000": pg8000.dbapi}.get(kind)
    deciding = make("postgres" if plain else kind, request)
    if how == "wal":
        deciding.execute("PRAGMA journal_mode = WAL")
    if kind == "sqlite":
        connection: Any = sqlite3.connect(deciding.url.removeprefix("sqlite:///"), check_same_thread=False)
    elif plain:
        connection = connect_plain(plain, deciding.url)
    else:
        connection = deciding.connect()
    if kind == "mariadb" and how != "autocommit":
        do(connection, f"SET SESSION TRANSACTION ISOLATION LEVEL {how}")
    elif kind == "mariadb":
        connection.autocommit(True)
    elif how == "autocommit":
        connection.autocommit = True
    elif plain:
        do(connection, f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {how}")
        connection.commit()
    elif kind == "postgres":
        connection.isolation_level = getattr(psycopg.IsolationLevel, how, None)
    with closing(connection):
        yield deciding, connection


@pytest.fixture
def table(caller: tuple[Deciding, Any]) -> Iterator[DecisionTable]:
    with closing(caller[0].table()) as table:
        yield table


def test_the_first_insert_decides(caller: tuple[Deciding, Any], table: DecisionTable) -> None:
    """The live transaction has committed: the resolver is told so. The resolver was first: the live one fails."""
    deciding, connection = caller
    gtrid = deciding.identity.name.new_gtrid()
    session = session_of(connection, deciding.connect)
    session.begin()
    do(connection, "INSERT INTO numbers VALUES (1)")
    session.decide(gtrid, (0, 3))
    session.commit()
    assert [table.resolve(gtrid), table.resolve(gtrid)] == [RowDecision.COMMIT] * 2
    assert table.rows(-1, 9) == [Row(gtrid, (0, 3), None, is_old=False)]

    other = deciding.identity.name.new_gtrid()
    session = session_of(connection, deciding.connect)
    session.begin()
    if deciding.kind != "sqlite" or deciding.query("PRAGMA journal_mode") == [
        ("wal",)
    ]:  # else readers keep writers out
        ask(connection, "SELECT count(*) FROM numbers")  # its snapshot is older than the row
    assert [table.resolve(other), table.resolve(other)] == [RowDecision.ROLLBACK] * 2
    with pytest.raises(PrepareFailed):
        session.decide(other, (0,))
    session.rollback()
    assert deciding.rows() == {gtrid: "commit", other: "rollback"}


@pytest.mark.parametrize("commits", [True, False])
def test_a_row_in_flight_is_waited_for(caller: tuple[Deciding, Any], table: DecisionTable, commits: bool) -> None:
    deciding, connection = caller
    gtrid = deciding.identity.name.new_gtrid()
    session = session_of(connection, deciding.connect)
    session.begin()
    do(connection, "INSERT INTO numbers VALUES (1)")
    session.decide(gtrid, (0,))
    with pytest.raises(Unreachable):  # after a second: an answer before the transaction's end would be a guess
        table.resolve(gtrid)
    found: list[RowDecision] = []

    def resolve() -> None:
        for _ in itertools.count():
            with suppress(Unreachable):
                found.append(table.resolve(gtrid))
                return

    resolver = threading.Thread(target=resolve)
    resolver.start()
    resolver.join(LOCK_TIMEOUT_MS / 1000 / 4)
    assert not found
    if commits:
        session.commit()
    else:
        session.rollback()
    resolver.join(60)
    assert found == [RowDecision.COMMIT if commits else RowDecision.ROLLBACK]
    assert deciding.numbers() == ([1] if commits else [])


def test_a_savepoint_that_is_rolled_back_takes_the_row_along(deciding: Deciding) -> None:
    gtrid = deciding.identity.name.new_gtrid()
    with closing(deciding.connect()) as connection, closing(deciding.table()) as table:
        session = session_of(connection)
        session.begin()
        do(connection, "SAVEPOINT inner_one")
        session.decide(gtrid, (0,))
        do(connection, "ROLLBACK TO SAVEPOINT inner_one")
        with pytest.raises(RowLost, match="its row was undone before COMMIT"):
            session.commit()
        session.rollback()
        assert table.resolve(gtrid) is RowDecision.ROLLBACK


def test_a_transaction_that_is_too_old_decides_nothing(deciding: Deciding) -> None:
    """The row of its rollback may have been deleted already: this is why it may be."""
    deciding.execute("UPDATE metaq_decision_table SET keep_s = 60")
    with closing(deciding.connect()) as connection, closing(deciding.table()) as table:
        assert table.identity.age_s_max == 30
        session = session_of(connection)
        session.begin()
        _make_old(session)
        with pytest.raises(PrepareFailed, match="must not decide any more"):
            session.decide(deciding.identity.name.new_gtrid(), (0,))
        session.rollback()


def _make_old(session: Any) -> None:
    """Date its begin an hour back; in PostgreSQL that takes a table with no retention time."""
    if hasattr(session, "_began_s"):
        session._began_s -= 3600
        return
    if isinstance(session, DbapiSession):
        session._state = dataclasses.replace(session._state, began=(session._state.began[0] - 3600,))  # type: ignore[operator]
        return
    identity = dataclasses.replace(session._facts.identity, keep_s=0)
    session._facts = dataclasses.replace(session._facts, identity=identity)


def test_rows_are_kept_as_long_as_they_count(deciding: Deciding) -> None:
    names = [deciding.identity.name.new_gtrid() for _ in range(4)]
    with closing(deciding.table()) as table:
        for name in names[:2]:
            table.resolve(name)
        with closing(deciding.connect()) as connection:
            for name in names[2:]:
                session = session_of(connection)
                session.begin()
                session.decide(name, (1, 2))
                session.commit()
        assert table.delete_kept() == 0
        assert table.rows(60, 9) == []  # too young to be looked at
        table.mark(names[3], "broker 2 does not know it")
        assert [row.hazard for row in table.rows(-1, 9)] == [None, "broker 2 does not know it"]
        assert len(table.rows(-1, 1)) == 1
        past = "0" if deciding.kind == "sqlite" else "'2020-01-01'"
        deciding.execute(f"UPDATE metaq_decision SET decided_at = {past}")
        assert all(row.is_old for row in table.rows(-1, 9))
        assert table.delete_kept() == 2
        assert sorted(deciding.rows()) == sorted(names[2:])
        table.delete(names)
        assert deciding.rows() == {}


def test_what_is_not_on_the_disk_yet_is_no_decision(database: Database) -> None:
    deciding = make_postgres(database)
    with closing(deciding.connect()) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.commit()
        session = session_of(connection)
        session.begin()
        session.decide(deciding.identity.name.new_gtrid(), (0,))
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
        session.commit()
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)


def test_a_sqlite_that_may_lose_a_commit_is_refused(tmp_path: Path) -> None:
    with closing(make_sqlite(tmp_path).connect()) as connection:
        connection.execute("PRAGMA synchronous = NORMAL")
        with pytest.raises(CannotEnlist, match="PRAGMA synchronous = FULL"):
            session_of(connection).begin()
        assert not connection.in_transaction
