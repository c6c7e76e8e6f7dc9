"""Connections that callers make in ways of their own: other cursors, rows and encodings, and connect= that misleads."""

import functools
import gc
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pg8000.dbapi
import psycopg
import psycopg2
import psycopg2.extras
import pytest
from psycopg import ClientCursor, RawCursor, sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row

from meta_broker.testing.postgres import EmbeddedPostgres
from meta_client import Client
from meta_client.coordinator.errors import CannotEnlist, DecisionUnknown
from meta_client.errors import TransactionMisuse
from meta_client.transactions import CommitStep, NoDecisionTable, commit_sequence
from meta_client.transactions.databases import Change, init
from meta_client.transactions.table import ANCHOR, KEEP_S
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.postgres import Database, connect_plain
from tests.fixtures.replicas import wait_until
from tests.fixtures.tcp_proxy import TcpProxy
from tests.meta_client.transactions.conftest import World, do, make_postgres, running_world
from tests.meta_client.transactions.test_crashes import Cut

QUICK: dict[str, float] = {"age_s": 0.2, "interval_s": 0.1}


def connections(dsn: str) -> dict[str, Callable[[], Any]]:
    return {
        "raw": lambda: psycopg.connect(dsn, cursor_factory=RawCursor),
        "client": lambda: psycopg.connect(dsn, cursor_factory=ClientCursor),
        "dict": lambda: psycopg.connect(dsn, row_factory=dict_row),
        "psycopg2": lambda: psycopg2.connect(dsn, cursor_factory=psycopg2.extras.RealDictCursor),
    }


@pytest.mark.parametrize("kind", connections(""))
def test_other_cursors(world: World, kind: str) -> None:
    """They are for the caller's statements, not ours; a resolver over connect= deletes the row."""
    make = connections(world.deciding.url)[kind]
    with world.open_client(**QUICK) as client, closing(make()) as connection:
        with client.transaction(connection, connect=make) as transaction:
            do(connection, "INSERT INTO numbers VALUES (1)")
            transaction.send("orders", b"1")
        world.wait_quiet()
        (counts,) = client.transaction_counts().values()
        assert (counts.rows_deleted, counts.hazards, counts.errors) == (1, 0, 0)
    world.check([1])


@pytest.mark.parametrize(("server", "client"), [("SQL_ASCII", "SQL_ASCII"), ("UTF8", "LATIN1")])
def test_other_encodings(broker_pool: BrokerPool, postgres_server: EmbeddedPostgres, server: str, client: str) -> None:
    """The table is in a schema whose name is not ASCII."""
    with psycopg.connect(postgres_server.dsn, autocommit=True) as admin:
        how = f"TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C' ENCODING '{server}'"
        admin.execute("DROP DATABASE IF EXISTS encoded")
        admin.execute(f"CREATE DATABASE encoded {how}".encode())
        name = sql.Identifier("bücher")
        with psycopg.connect(postgres_server.dsn, dbname="encoded", client_encoding="UTF8") as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
            connection.execute(sql.SQL("ALTER DATABASE encoded SET search_path = {}").format(name))
        dsn = psycopg.conninfo.make_conninfo(postgres_server.dsn, dbname="encoded", client_encoding=client)
        try:
            world_of = make_postgres(Database(dsn, lambda: psycopg.connect(dsn)))
            with running_world(world_of, broker_pool) as world, psycopg.connect(dsn) as given:
                world.work(1, connection=given)
                world.wait_quiet()
                assert [counts.errors for counts in world.client.transaction_counts().values()] == [0]
                world.check([1])
        finally:
            admin.execute("DROP DATABASE encoded WITH (FORCE)")


@pytest.mark.parametrize("reaches", ["another table", "no table", "nothing", "what is no connection", "another driver"])
def test_connect_that_misleads_settles_nothing(
    world: World, postgres_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, reaches: str
) -> None:
    """A COMMIT whose answer is lost has committed: a row in another database does not say that it was rolled back."""
    monkeypatch.setattr(commit_sequence, "UNKNOWN_S", 0.5)
    with psycopg.connect(postgres_server.dsn, autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS elsewhere")
        admin.execute("CREATE DATABASE elsewhere")
    elsewhere = psycopg.conninfo.make_conninfo(postgres_server.dsn, dbname="elsewhere")
    if reaches == "another table":
        init(elsewhere, KEEP_S)

    def mislead() -> Any:
        if reaches == "nothing":
            raise KeyError("DATABASE_URL")
        if reaches == "what is no connection":
            return elsewhere
        if reaches == "another driver":
            return sqlite3.connect(":memory:")
        return psycopg.connect(elsewhere)

    where = psycopg.conninfo.conninfo_to_dict(world.deciding.url)
    with closing(Cut(int(str(where["port"])), loses_answer=True)) as cut, world.open_client(**QUICK) as client:
        connection = psycopg.connect(world.deciding.url, port=cut.port)
        with (  # noqa: PT012 - the block is what is tested
            pytest.raises(
                DecisionUnknown,
                match=r"DATABASE_URL|has none|another decision table|connect= gave a (builtins.str|sqlite3)",
            ),
            client.transaction(connection, connect=mislead) as transaction,
        ):
            do(connection, "INSERT INTO numbers VALUES (1)")
            transaction.send("orders", b"1")
        assert len(world.prepared()) == 1
    with world.open_client(**QUICK) as sound:
        sound.resolve(world.deciding.url)
        deadline = time.monotonic() + 60
        while not world.messages():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    world.check([1])


def test_a_two_phase_transaction_of_the_caller_is_refused(world: World) -> None:
    """psycopg refuses commit() and rollback() then."""
    with closing(psycopg.connect(world.deciding.url)) as connection:
        connection.tpc_begin("the caller's")
        with pytest.raises(TransactionMisuse, match="tpc_begin"):
            world.work(1, connection=connection)
        connection.tpc_rollback()
        world.work(2, connection=connection)
    world.check([2])


def test_a_table_in_a_schema_that_only_the_session_s_search_path_has(world: World) -> None:
    world.deciding.execute("CREATE SCHEMA apart; ALTER TABLE metaq_decision SET SCHEMA apart")
    world.deciding.execute("ALTER TABLE metaq_decision_table SET SCHEMA apart")
    init(make_conninfo(world.deciding.url, options="-csearch_path=apart"), KEEP_S, Change.MOVED)
    with closing(world.deciding.connect()) as connection:
        connection.execute("SET search_path = public, apart")
        for number in (1, 2):
            world.work(number, connection=connection)
        connection.execute("SET search_path = public")  # it is known by now
        connection.commit()
        world.work(3, connection=connection)
    deadline = time.monotonic() + 60
    while world.deciding.query(f"SELECT 1 FROM apart.metaq_decision WHERE gtrid <> '{ANCHOR}'"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    world.check([1, 2, 3])


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_temporary_table_of_the_same_name_gets_no_row(lite_world: World, is_inside: bool) -> None:
    """A resolver would not see it, and roll the messages of a crashed process back."""
    decided: list[dict[str, str]] = []

    def observe(step: CommitStep, gtrid: str) -> None:
        if step is CommitStep.DECIDED:
            decided.append(lite_world.deciding.rows())

    temporary = "CREATE TEMP TABLE metaq_decision (gtrid text PRIMARY KEY, outcome text, brokers text)"
    with closing(lite_world.deciding.connect()) as connection, lite_world.open_client(observer=observe) as client:
        if not is_inside:
            connection.execute(temporary)
        with client.transaction(connection) as transaction:
            if is_inside:
                connection.execute(temporary)
            connection.execute("INSERT INTO numbers VALUES (1)")
            transaction.send("orders", b"1")
        assert decided == [{transaction.gtrid: "commit"}]
    lite_world.wait_quiet()
    lite_world.check([1])


def test_a_decision_table_in_an_attached_file_alone(tmp_path: Path, lite_world: World) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute(f"ATTACH '{tmp_path / 'shop.db'}' AS shop")
        with pytest.raises(NoDecisionTable), lite_world.client.transaction(connection):
            pass


def test_text_as_bytes(lite_world: World) -> None:
    """It can't hide where the journal is deleted, nor a journal that is in memory."""
    with closing(lite_world.deciding.connect()) as connection:
        connection.text_factory = bytes
        lite_world.work(1, connection=connection)
        assert connection.text_factory is bytes
        connection.execute("PRAGMA journal_mode = MEMORY")
        with pytest.raises(CannotEnlist, match="journal_mode = memory"):
            lite_world.work(2, connection=connection)
    lite_world.wait_quiet()
    lite_world.check([1])


def test_a_resolver_follows_callers_to_another_host(world: World) -> None:
    """The way by which it knows the database is gone: a failover to another host, or a password that was changed."""
    table_id = world.deciding.identity.name.table_id
    with world.open_client(**QUICK) as client:
        with (
            TcpProxy(port_of(world)) as proxy,
            closing(psycopg.connect(world.deciding.url, port=proxy.port)) as connection,
        ):
            commit(client, connection, 1)
        for number in (2, 3):
            with closing(world.deciding.connect()) as connection:
                commit(client, connection, number)
            wait_until(lambda: client.transaction_counts()[table_id].errors > 0, "its connection is lost")
        world.wait_quiet()
    world.check([1, 2, 3])


# What pg8000 could not connect leaves its socket to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_resolver_whose_connection_can_t_be_closed_opens_another(world: World) -> None:
    """Of pg8000, which raises in close() once it is broken, and again once it is closed."""
    with (
        TcpProxy(port_of(world)) as proxy,
        world.open_client(**QUICK) as client,
        closing(connect_plain(pg8000.dbapi, world.deciding.url)) as connection,
    ):
        connect = functools.partial(connect_plain, pg8000.dbapi, world.deciding.url, port=proxy.port)
        commit(client, connection, 1, connect=connect)
        world.wait_quiet()
        proxy.refuse()
        commit(client, connection, 2, connect=connect)
        table_id = world.deciding.identity.name.table_id
        wait_until(lambda: client.transaction_counts()[table_id].errors > 0, "its connection is lost")
        proxy.heal()
        world.wait_quiet()
    world.check([1, 2])
    gc.collect()


def port_of(world: World) -> int:
    return int(str(psycopg.conninfo.conninfo_to_dict(world.deciding.url)["port"]))


def commit(client: Client, connection: Any, number: int, **how: Any) -> None:
    with client.transaction(connection, **how) as transaction:
        do(connection, f"INSERT INTO numbers VALUES ({number})")
        transaction.send("orders", str(number).encode())
