"""Decision tables that others changed, and journals that lose them: what is no barrier is refused, with a reason."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import psycopg2
import pytest
from psycopg.conninfo import make_conninfo

from meta_broker.testing.postgres import EmbeddedPostgres
from meta_client.coordinator.errors import CannotEnlist, PrepareFailed
from meta_client.transactions.databases import Change, init
from meta_client.transactions.postgres import open_table
from meta_client.transactions.table import KEEP_S
from tests.fixtures.forked import start_module
from tests.meta_client.transactions.conftest import World, ask, do
from tests.meta_client.transactions.test_crashes import CRASHING
from tests.meta_client.transactions.test_restored import resolver

POSTGRES = {
    "primary key": "ALTER TABLE metaq_decision DROP CONSTRAINT metaq_decision_pkey",
    "alone": "ALTER TABLE metaq_decision DROP CONSTRAINT metaq_decision_pkey, ADD PRIMARY KEY (gtrid, outcome)",
    "immediate": "ALTER TABLE metaq_decision DROP CONSTRAINT metaq_decision_pkey, ADD PRIMARY KEY (gtrid) DEFERRABLE",
    "SET LOGGED": "ALTER TABLE metaq_decision SET UNLOGGED",
    "has rules": "CREATE RULE nothing AS ON INSERT TO metaq_decision DO INSTEAD NOTHING",
    "is a view": "ALTER TABLE metaq_decision RENAME TO other; CREATE VIEW metaq_decision AS SELECT * FROM other",
}


def refused(world: World, connection: Any, match: str) -> None:
    with pytest.raises(CannotEnlist, match=match), world.client.transaction(connection):
        pytest.fail("the block must not be entered")


@pytest.mark.parametrize("match", POSTGRES)
def test_postgres(world: World, match: str) -> None:
    world.deciding.execute(POSTGRES[match])
    with closing(world.deciding.connect()) as connection:
        refused(world, connection, match)


@pytest.fixture
def without_fsync(postgres_server: EmbeddedPostgres) -> Iterator[None]:
    """The server does not fsync, while the test lasts."""

    def switch(statement: str, wanted: str) -> None:
        with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
            connection.execute(statement.encode())
            connection.execute("SELECT pg_reload_conf()")
            while connection.execute("SHOW fsync").fetchone() != (wanted,):
                time.sleep(0.01)

    switch("ALTER SYSTEM SET fsync = off", "off")
    yield
    switch("ALTER SYSTEM RESET fsync", "on")


@pytest.mark.usefixtures("without_fsync")
def test_a_server_that_does_not_fsync_is_told_of(world: World, caplog: pytest.LogCaptureFixture) -> None:
    open_table(world.deciding.url).close()
    assert "runs with fsync = off: a power cut may keep messages and lose their rows" in caplog.text
    with closing(psycopg2.connect(world.deciding.url)) as connection:
        caplog.clear()
        world.work(1, connection=connection)
    assert caplog.text.count("fsync = off") == 1


TRIGGER = """CREATE FUNCTION keep_out() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
    CREATE TRIGGER keep_out BEFORE INSERT ON metaq_decision FOR EACH ROW EXECUTE FUNCTION keep_out()"""
LITE_TRIGGER = "CREATE TRIGGER keep_out BEFORE INSERT ON metaq_decision BEGIN SELECT RAISE(IGNORE); END"


@pytest.mark.parametrize("connect", [psycopg.connect, psycopg2.connect])
def test_a_trigger_that_keeps_rows_out(world: World, connect: Callable[[str], Any]) -> None:
    """The database would commit without its decision: after a crash the message is rolled back, and its row stays."""
    world.deciding.execute(TRIGGER)
    with closing(connect(world.deciding.url)) as connection, pytest.raises(PrepareFailed, match="a trigger"):
        world.work(1, connection=connection)
    world.wait_quiet()
    world.check([])


def test_a_trigger_of_sqlite_that_keeps_rows_out(lite_world: World) -> None:
    lite_world.deciding.execute(LITE_TRIGGER)
    with pytest.raises(PrepareFailed, match="a trigger"):
        lite_world.work(1)
    lite_world.wait_quiet()
    lite_world.check([])


@pytest.fixture
def role(world: World) -> Iterator[str]:
    """A role without any right to the table."""
    world.deciding.execute("CREATE ROLE packer LOGIN PASSWORD 'p'")
    world.deciding.execute("GRANT SELECT, UPDATE (generation) ON metaq_decision_table TO packer")
    yield "packer"
    world.deciding.execute("DROP OWNED BY packer; DROP ROLE packer")


@pytest.mark.parametrize("missing", ["SELECT", "INSERT", "UPDATE", "DELETE"])
def test_each_right_is_needed(world: World, role: str, missing: str) -> None:
    """Without them blocks commit, and what crashes leave is resolved by nobody."""
    rights = ", ".join({"SELECT", "INSERT", "UPDATE", "DELETE"} - {missing})
    world.deciding.execute(f"GRANT {rights} ON metaq_decision TO {role}")
    with closing(psycopg.connect(world.deciding.url, user=role, password="p")) as connection:
        refused(world, connection, "GRANT SELECT, INSERT, UPDATE, DELETE ON metaq_decision TO packer")


def test_the_right_to_raise_the_generation_is_needed(world: World, role: str) -> None:
    """Without it a resolver never notices that the database was restored."""
    world.deciding.execute(f"GRANT ALL ON metaq_decision TO {role}; REVOKE UPDATE ON metaq_decision_table FROM {role}")
    world.deciding.execute(f"REVOKE UPDATE (generation) ON metaq_decision_table FROM {role}")
    with closing(psycopg.connect(world.deciding.url, user=role, password="p")) as connection:
        refused(world, connection, r"UPDATE \(generation\) ON metaq_decision_table TO packer")


def test_rows_that_a_policy_hides(world: World, role: str) -> None:
    """A decision that the role can't see counts as none."""
    world.deciding.execute(
        f"GRANT ALL ON metaq_decision TO {role}; ALTER TABLE metaq_decision ENABLE ROW LEVEL SECURITY"
    )
    world.deciding.execute(f"CREATE POLICY writes ON metaq_decision FOR INSERT TO {role} WITH CHECK (true)")
    with closing(psycopg.connect(world.deciding.url, user=role, password="p")) as connection:
        refused(world, connection, "DISABLE ROW LEVEL SECURITY")


def test_mariadb(maria_world: World) -> None:
    maria_world.deciding.execute("ALTER TABLE metaq_decision DROP PRIMARY KEY")
    with closing(maria_world.deciding.connect()) as connection:
        refused(maria_world, connection, "primary key")


@pytest.mark.parametrize("mode", ["OFF", "MEMORY"])
def test_a_sqlite_journal_that_undoes_nothing_after_a_crash(lite_world: World, mode: str) -> None:
    with closing(lite_world.deciding.connect()) as connection:
        do(connection, f"PRAGMA journal_mode = {mode}")
        refused(lite_world, connection, "journal_mode")


def test_a_sqlite_table_without_its_key(lite_world: World) -> None:
    connection: sqlite3.Connection
    with closing(lite_world.deciding.connect()) as connection:
        connection.executescript(
            "CREATE TABLE other AS SELECT * FROM metaq_decision; DROP TABLE metaq_decision;"
            "ALTER TABLE other RENAME TO metaq_decision"
        )
        refused(lite_world, connection, "primary key")


@pytest.fixture
def tenant(world: World) -> str:
    """A schema that is cloned from the first one, as for each tenant."""
    tables = ("metaq_decision", "metaq_decision_table", "numbers")
    made = (f"CREATE TABLE tenant.{name} (LIKE {name} INCLUDING ALL)" for name in tables)
    filled = (f"INSERT INTO tenant.{name} SELECT * FROM {name}" for name in tables)
    world.deciding.execute(";".join(("CREATE SCHEMA tenant", *made, *filled)))
    return make_conninfo(world.deciding.url, options="-csearch_path=tenant")


def test_a_schema_that_was_cloned(world: World, tenant: str) -> None:
    """Two tables of one name in one database: a resolver of the first would roll back what the second has decided."""
    with closing(psycopg.connect(tenant)) as connection:
        refused(world, connection, r"was made elsewhere \(.*/public; this is .*/tenant\)")
        identity = init(tenant, KEEP_S, Change.COPIED)
        assert identity != world.deciding.identity
        assert start_module(CRASHING, "psycopg", tenant, world.zookeeper, "7", "DECIDED").wait() == -9
        assert resolver(world.deciding.url, world.zookeeper).returncode == 0
        assert world.messages() == []
        assert resolver(tenant, world.zookeeper).returncode == 0
        world.work(8, connection=connection, wait=True)
        assert ask(connection, "SELECT n FROM numbers ORDER BY n") == [(7,), (8,)]
    assert world.messages() == [7, 8]


def test_a_table_of_before_that_names_no_schema(world: World) -> None:
    world.deciding.execute("UPDATE metaq_decision_table SET home = substring(home FROM '^[^/]*/[^/]*')")
    world.work(1)
    world.check([1])
