"""A row and a message with MariaDB through PyMySQL: what is its own, in the order of a caller's day."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.constants import COMMAND
from pymysql.cursors import DictCursor, SSCursor
from sqlalchemy.orm import Session

from meta_client import TransactionMisuse
from meta_client.coordinator import PrepareFailed
from meta_client.coordinator.errors import CannotEnlist, Unreachable
from meta_client.transactions import CommitStep, CopiedTable, NoDecisionTable
from meta_client.transactions.databases import Change, ddl_for, init, session_of, table_at
from meta_client.transactions.mysql import parameters
from meta_client.transactions.table import RowDecision
from tests.fixtures.forked import run_metaq
from tests.fixtures.mariadb import EmbeddedMariaDb, MariaDatabase, made_in, need_mariadb
from tests.fixtures.replicas import wait_until
from tests.meta_client.transactions.conftest import World, do, make_mariadb
from tests.meta_client.transactions.crashing import engine_of


@pytest.mark.parametrize(
    "how", ["idle", "begun", "locked", "autocommit", "autocommit begun", "dict rows", "unbuffered"]
)
def test_whatever_state_the_connection_is_in(maria_world: World, how: str) -> None:
    world = maria_world
    with closing(world.deciding.connect()) as connection:
        connection.autocommit(how.startswith("autocommit"))
        connection.cursorclass = {"dict rows": DictCursor, "unbuffered": SSCursor}.get(how, connection.cursorclass)
        for number in (1, 2, 3):
            if how.endswith("begun"):
                connection.begin()
                do(connection, f"INSERT INTO numbers VALUES ({number + 10})")
            if how == "locked":  # the server does not report to the driver that a query has begun a transaction
                do(connection, f"SELECT n FROM numbers WHERE n > {number} FOR UPDATE")
            world.work(number, connection=connection)
            with pytest.raises(ZeroDivisionError), world.client.transaction(connection) as transaction:  # noqa: PT012
                do(connection, "INSERT INTO numbers VALUES (99)")
                transaction.send("orders", b"99")
                raise ZeroDivisionError
            do(connection, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")  # an error inside of a transaction
            connection.rollback()
    world.wait_quiet()
    rows = world.deciding.numbers()
    assert rows == ([1, 2, 3, 11, 12, 13] if how.endswith("begun") else [1, 2, 3])
    assert world.messages() == [1, 2, 3]


def test_a_transaction_that_is_ended_inside_the_block(maria_world: World) -> None:
    """Also where the driver takes no notice, and another transaction goes on in its place."""
    world = maria_world
    world.deciding.execute("CREATE TABLE others (n int PRIMARY KEY)")
    for is_autocommit in (False, True):
        with closing(world.deciding.connect()) as connection:
            connection.autocommit(is_autocommit)
            for word in ("COMMIT", "ROLLBACK", "CREATE TABLE IF NOT EXISTS made (n int)", "START TRANSACTION"):
                with (  # noqa: PT012 - the block is what is tested
                    pytest.raises(PrepareFailed, match="ended inside the block"),
                    world.client.transaction(connection) as transaction,
                ):
                    transaction.send("orders", b"1")
                    do(connection, word)
                    do(connection, "INSERT INTO others VALUES (1)")
                do(connection, "DELETE FROM others")
                connection.commit()
    world.wait_quiet()
    world.check([])


def test_a_deadlock_that_is_swallowed(maria_world: World) -> None:
    """The deadlock rolls back the whole transaction, and the next statement begins another one."""
    world = maria_world
    world.deciding.execute("CREATE TABLE others (n int PRIMARY KEY, m int) ENGINE = InnoDB")
    world.deciding.execute("INSERT INTO others VALUES (1, 0), (2, 0)")
    with closing(world.deciding.connect()) as connection, closing(world.deciding.connect()) as other:
        do(other, "UPDATE others SET m = 1 WHERE n = 2")
        do(other, "INSERT INTO others VALUES (3, 0), (4, 0), (5, 0), (6, 0)")  # who has written less is rolled back
        with (  # noqa: PT012 - the block is what is tested
            pytest.raises(PrepareFailed, match="a deadlock"),
            world.client.transaction(connection) as transaction,
        ):
            do(connection, "UPDATE others SET m = 1 WHERE n = 1")
            transaction.send("orders", b"1")
            waiting = threading.Thread(target=do, args=(other, "UPDATE others SET m = 2 WHERE n = 1"))
            waiting.start()
            with pytest.raises(Exception, match="Deadlock"):
                do(connection, "UPDATE others SET m = 2 WHERE n = 2")
            waiting.join()
            do(connection, "INSERT INTO numbers VALUES (1)")
        other.rollback()
        world.work(2, connection=connection)
    world.wait_quiet()
    world.check([2])


def leave_unread(connection: Any, *statements: str) -> None:
    """Leave answers unread, as a signal's exception between question and answer does."""
    for statement in statements:
        connection._execute_command(COMMAND.COM_QUERY, statement)


UNREAD = [f"INSERT INTO numbers VALUES ({number})" for number in (10, 11, 12, 13)]


@pytest.mark.parametrize("way", ["driver", "sqlalchemy"])
@pytest.mark.parametrize("unread", [["SELECT 1"], UNREAD[:1], UNREAD[:2], UNREAD[:3], UNREAD])
def test_a_connection_whose_answers_are_those_of_earlier_questions(
    maria_world: World, way: str, unread: list[str]
) -> None:
    """The connection is refused, or nothing is committed if it happens inside the block; another one works.

    Of three INSERTs, the third one's answer would come where the decision's is read.
    """
    world = maria_world
    engine = engine_of(world.deciding.url)

    def connect() -> Any:
        return Session(engine) if way == "sqlalchemy" else world.deciding.connect()

    def driver_of(connection: Any) -> Any:
        if way == "driver":
            return connection
        return connection.connection().connection.driver_connection

    with closing(connect()) as connection:
        leave_unread(driver_of(connection), *unread)
        with pytest.raises(CannotEnlist, match="earlier questions"), world.client.transaction(connection):
            pytest.fail("the block must not be entered")
    with (  # noqa: PT012 - the block is what is tested
        closing(connect()) as connection,
        pytest.raises(PrepareFailed, match="earlier questions"),
        world.client.transaction(connection) as transaction,
    ):
        do(driver_of(connection), "INSERT INTO numbers VALUES (1)")
        transaction.send("orders", b"1")
        leave_unread(driver_of(connection), *unread)
    with closing(connect()) as connection:
        world.work(2, connection=driver_of(connection))
    engine.dispose()
    world.wait_quiet()
    world.check([2])


def wait_dropped(world: World, connection: Any) -> None:
    """Wait until the server has closed *connection*, which its client has not noticed."""
    query = f"SELECT count(*) FROM information_schema.processlist WHERE id = {connection.thread_id()}"
    wait_until(lambda: world.deciding.query(query) == [(0,)], "the server has closed the connection")


def test_a_connection_that_was_idle_too_long(maria_world: World) -> None:
    world = maria_world
    with closing(world.deciding.connect()) as connection:
        with (  # noqa: PT012 - the block is what is tested
            pytest.raises(PrepareFailed, match="connection is lost"),
            world.client.transaction(connection) as transaction,
        ):
            do(connection, "INSERT INTO numbers VALUES (1)")
            transaction.send("orders", b"1")
            do(connection, "SET SESSION wait_timeout = 1")
            wait_dropped(world, connection)
        assert not connection.open
    with closing(world.deciding.connect()) as connection:
        do(connection, "SET SESSION wait_timeout = 1")
        wait_dropped(world, connection)
        with pytest.raises(Unreachable), world.client.transaction(connection):
            pytest.fail("the block must not be entered")
    world.wait_quiet()
    world.check([])


def test_a_connection_that_is_killed_and_connects_again_inside_the_block(maria_world: World) -> None:
    """The messages are dropped with the rows."""
    world = maria_world
    with closing(world.deciding.connect()) as connection:
        with (  # noqa: PT012 - the block is what is tested
            pytest.raises(PrepareFailed, match="ended inside the block"),
            world.client.transaction(connection) as transaction,
        ):
            do(connection, "INSERT INTO numbers VALUES (1)")
            transaction.send("orders", b"1")
            world.deciding.query(f"KILL {connection.thread_id()}")
            with pytest.warns(DeprecationWarning, match="reconnect"):
                connection.ping(reconnect=True)
            do(connection, "INSERT INTO numbers VALUES (2)")
        world.work(3, connection=connection)
    world.wait_quiet()
    world.check([3])


@pytest.mark.parametrize("at", [CommitStep.PREPARED, CommitStep.RECORDED])
def test_a_connection_that_is_killed_at_a_step(maria_world: World, at: CommitStep) -> None:
    world = maria_world
    with closing(world.deciding.connect()) as connection:

        def kill(step: CommitStep, gtrid: str) -> None:
            if step is at:
                world.deciding.query(f"KILL {connection.thread_id()}")

        with (  # noqa: PT012 - the block is what is tested
            world.open_client(observer=kill) as client,
            pytest.raises(PrepareFailed),
            client.transaction(connection) as transaction,
        ):
            do(connection, "INSERT INTO numbers VALUES (1)")
            transaction.send("orders", b"1")
    world.wait_quiet()
    world.check([])


def test_a_slow_one_that_was_resolved_meanwhile_is_told(maria_world: World) -> None:
    world = maria_world

    def observe(step: CommitStep, gtrid: str) -> None:
        if step is CommitStep.PREPARED:
            deadline = time.monotonic() + 60
            while world.prepared():
                assert time.monotonic() < deadline
                time.sleep(0.05)

    with world.open_client(observer=observe, age_s=0.2, interval_s=0.1) as client:
        with (  # noqa: PT012 - the block is what is tested
            closing(world.deciding.connect()) as connection,
            pytest.raises(PrepareFailed, match="a resolver has rolled it back meanwhile"),
            client.transaction(connection) as transaction,
        ):
            do(connection, "INSERT INTO numbers VALUES (1)")
            transaction.send("orders", b"1")
        (counts,) = client.transaction_counts().values()
        assert (counts.resolved_rolled_back, counts.errors) == (1, 0)
    world.check([])


def stop(world: World, connection: Any, held: str) -> threading.Thread:
    """KILL QUERY, as an operator's, once a statement of *connection* waits for what another session holds by *held*."""
    holder = world.deciding.connect()
    do(holder, held)
    waiting = (
        f"SELECT count(*) FROM information_schema.processlist WHERE id = {connection.thread_id()} "
        "AND command = 'Query' AND (state LIKE 'Waiting%' OR state LIKE 'update')"
    )

    def run() -> None:
        with closing(holder):
            wait_until(lambda: world.deciding.query(waiting) == [(1,)], "it waits")
            world.deciding.query(f"KILL QUERY {connection.thread_id()}")
            wait_until(lambda: world.deciding.query(waiting) == [(0,)], "it is over")

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_row_that_was_undone_and_resolved_meanwhile_is_not_its_own(maria_world: World) -> None:
    """At READ COMMITTED the transaction sees the resolver's row."""

    def undo(step: CommitStep, gtrid: str) -> None:
        if step is CommitStep.RECORDED:
            do(connection, "ROLLBACK TO SAVEPOINT metaq_block")
            with closing(maria_world.deciding.table()) as table:
                assert table.resolve(gtrid) is RowDecision.ROLLBACK

    with closing(maria_world.deciding.connect()) as connection:
        do(connection, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        with (  # noqa: PT012 - the block is what is tested
            maria_world.open_client(observer=undo) as client,
            pytest.raises(PrepareFailed, match="undone before COMMIT"),
            client.transaction(connection) as transaction,
        ):
            do(connection, "INSERT INTO numbers VALUES (1)")
            transaction.send("orders", b"1")
    maria_world.wait_quiet()
    maria_world.check([])


def test_a_statement_that_is_stopped_as_the_block_is_entered(maria_world: World) -> None:
    """The connection is fit for it, and may try again."""
    world = maria_world
    with closing(world.deciding.connect()) as connection:
        stopping = stop(world, connection, "LOCK TABLES metaq_decision_table WRITE")
        with pytest.raises(Unreachable, match="interrupted"), world.client.transaction(connection):
            pytest.fail("the block must not be entered")
        stopping.join()
        world.work(1, connection=connection)
    world.wait_quiet()
    world.check([1])


@pytest.mark.parametrize("at", [CommitStep.PREPARED, CommitStep.RECORDED])
def test_a_statement_that_is_stopped_as_the_block_ends(maria_world: World, at: CommitStep) -> None:
    """The transaction stands after the row's INSERT; after COMMIT it stands, or is rolled back, and the server does not
    tell which."""
    world, held = maria_world, "FLUSH TABLES WITH READ LOCK"
    threads = list[threading.Thread]()
    with closing(world.deciding.connect()) as connection:

        def observe(step: CommitStep, gtrid: str) -> None:
            if step is at:
                row = f"INSERT INTO metaq_decision (gtrid, outcome, brokers) VALUES ('{gtrid}', 'rollback', '')"
                threads.append(stop(world, connection, row if at is CommitStep.PREPARED else held))

        with (  # noqa: PT012 - the block is what is tested
            world.open_client(observer=observe) as client,
            pytest.raises(PrepareFailed, match="interrupted"),
            client.transaction(connection) as transaction,
        ):
            do(connection, "INSERT INTO numbers VALUES (1)")
            transaction.send("orders", b"1")
        assert transaction.step is CommitStep.ROLLED_BACK
        threads.pop().join()
        world.work(2, connection=connection)
    world.wait_quiet()
    world.check([2])


def test_a_transaction_that_may_not_write(maria_world: World) -> None:
    world = maria_world
    with closing(world.deciding.connect()) as connection:
        do(connection, "START TRANSACTION READ ONLY")
        with (
            pytest.raises(PrepareFailed, match=r"READ ONLY.*begin it READ WRITE"),
            world.client.transaction(connection) as transaction,
        ):
            transaction.send("orders", b"1")
        world.work(2, connection=connection)
    world.wait_quiet()
    world.check([2])


def test_many_threads(maria_world: World) -> None:
    maria_world.work_in_threads()


def test_a_block_inside_a_block(maria_world: World) -> None:
    world = maria_world
    with closing(world.deciding.connect()) as connection:
        with world.client.transaction(connection) as transaction:
            do(connection, "INSERT INTO numbers VALUES (1)")
            with pytest.raises(TransactionMisuse, match="end that block first"):
                world.work(2, connection=connection)
            transaction.send("orders", b"1")
        world.work(3, connection=connection)
    world.wait_quiet()
    world.check([1, 3])


def refused(connection: Any, match: str, kind: type[Exception] = CannotEnlist) -> None:
    session = session_of(connection)
    with pytest.raises(kind, match=match):
        session.begin()


def test_what_can_t_take_part(mariadb: MariaDatabase, mariadb_server: EmbeddedMariaDb) -> None:
    deciding = make_mariadb(mariadb)
    with closing(deciding.connect()) as connection:
        do(connection, "SET unique_checks = 0")
        refused(connection, "SET unique_checks = 1")
        do(connection, "SET unique_checks = 1")
        do(connection, "ALTER TABLE metaq_decision ENGINE = MyISAM")
        refused(connection, "ALTER TABLE metaq_decision ENGINE = InnoDB")
        with pytest.raises(CannotEnlist, match="engine MyISAM"):
            deciding.table()
        do(connection, "ALTER TABLE metaq_decision ENGINE = InnoDB")
        session_of(connection).begin()
        connection.rollback()
        do(connection, "DELETE FROM metaq_decision_table")
        connection.commit()
    refused(connection, "closed: open a new one")
    with closing(deciding.connect()) as connection:
        refused(connection, "metaq_decision_table is empty", NoDecisionTable)
    with closing(mariadb_server.connect()) as nowhere:
        refused(nowhere, "USE one")


def test_a_user_without_rights_is_told_which(mariadb: MariaDatabase) -> None:
    deciding = make_mariadb(mariadb)
    deciding.execute("DROP USER IF EXISTS stranger@'%'")
    deciding.execute("CREATE USER stranger@'%' IDENTIFIED BY 'x'")
    deciding.execute(f"GRANT CREATE ON {mariadb.name}.nowhere TO stranger@'%'")
    how = parameters(mariadb.url) | {"user": "stranger", "password": "x"}
    with closing(pymysql.connect(**how)) as connection:
        refused(connection, "SELECT, INSERT, UPDATE, DELETE", NoDecisionTable)
    deciding.execute(f"GRANT SELECT ON {mariadb.name}.metaq_decision TO stranger@'%'")
    deciding.execute(f"GRANT SELECT ON {mariadb.name}.metaq_decision_table TO stranger@'%'")
    with closing(pymysql.connect(**how)) as connection:
        session = session_of(connection)
        session.begin()
        with pytest.raises(PrepareFailed, match=r"needs SELECT, INSERT, UPDATE, DELETE on metaq_decision"):
            session.decide(deciding.identity.name.new_gtrid(), (0,))
        session.rollback()
    deciding.execute("DROP USER stranger@'%'")


def test_a_copy_is_refused_and_says_what_to_do(mariadb: MariaDatabase, mariadb_server: EmbeddedMariaDb) -> None:
    deciding, copy = make_mariadb(mariadb), made_in(mariadb_server)
    for table in ("metaq_decision", "metaq_decision_table"):
        deciding.execute(f"CREATE TABLE {copy.name}.{table} LIKE {mariadb.name}.{table}")
        deciding.execute(f"INSERT INTO {copy.name}.{table} SELECT * FROM {mariadb.name}.{table}")
    with pytest.raises(CopiedTable, match="metaq txn init --copied"):
        table_at(copy.url)
    before = deciding.identity.name.table_id
    assert run_metaq("txn", "init", "--database", copy.url, "--moved", "--yes").stdout.split()[-1] == before
    assert init(copy.url, 3600, Change.COPIED).name.table_id != before
    assert init(mariadb.url, 3600) == deciding.identity
    deciding.execute(f"DROP DATABASE {copy.name}")


def test_a_deletion_does_not_wait(mariadb: MariaDatabase) -> None:
    """Deleting any part of the table waits for no transaction that has written its row and is open."""
    deciding = make_mariadb(mariadb)
    gtrids = [deciding.identity.name.new_gtrid() for _ in range(600)]
    with closing(deciding.table()) as table, closing(deciding.connect()) as connection:
        for gtrid in gtrids:
            table.resolve(gtrid)
        do(connection, "UPDATE metaq_decision SET decided_at = '2020-01-01'")
        connection.commit()
        session = session_of(connection)
        session.begin()
        session.decide(deciding.identity.name.new_gtrid(), (0,))
        table.delete(gtrids[:499])  # Unreachable if it waited
        assert table.delete_kept() == 101
        session.commit()
        assert len(deciding.rows()) == 1


def test_the_ddl_of_a_migration(mariadb: MariaDatabase) -> None:
    """Statement by statement, as migrations execute it; of MySQL it differs in what tells a server from others."""
    with closing(mariadb.connect()) as connection:
        for statement in ddl_for(mariadb.url, 3600).split(";\n")[:-1]:
            do(connection, statement)
        connection.commit()
        assert session_of(connection).begin() == init(mariadb.url, 3600)
    assert "@@server_uuid" in ddl_for("mysql+pymysql://host/shop", 3600)
    for url, match in (("mysql://host", "names no database"), ("mysql://host/shop?x=1", "'x' is not known")):
        with pytest.raises(CannotEnlist, match=match):
            table_at(url)


def test_another_database_is_used_inside_the_block(maria_world: World, mariadb_server: EmbeddedMariaDb) -> None:
    """The table is named with its database, and so is its resolver's."""
    other = made_in(mariadb_server)
    with (
        closing(maria_world.deciding.connect()) as connection,
        maria_world.client.transaction(connection) as transaction,
    ):
        do(connection, "INSERT INTO numbers VALUES (1)")
        connection.select_db(other.name)
        transaction.send("orders", b"1")
    maria_world.wait_quiet()
    maria_world.check([1])
    with closing(other.connect()) as connection:
        refused(connection, "metaq txn init", NoDecisionTable)
        do(connection, f"DROP DATABASE {other.name}")


@pytest.mark.parametrize("way", ["resolve", "decided"])
def test_a_commit_that_is_not_on_the_disk_yet_is_not_believed(slow_directory: Path, way: str) -> None:
    """InnoDB shows it to others before it is: a resolver that had a broker commit could be the only one who did."""
    flag = slow_directory / "flag"
    environment = {"LD_PRELOAD": str(slow_directory / "slow.so"), "SLOW_FLAG": str(flag)}
    with EmbeddedMariaDb(environment=environment) as server:
        deciding = make_mariadb(made_in(server))
        gtrid, believed = deciding.identity.name.new_gtrid(), list[RowDecision]()
        with closing(deciding.connect()) as connection, closing(deciding.table()) as table:
            session = session_of(connection)
            session.begin()
            session.decide(gtrid, (0,))
            flag.touch()
            committing = threading.Thread(target=session.commit)
            committing.start()
            try:
                wait_until(lambda: bool(deciding.rows()), "others see it")
                resolving = threading.Thread(target=lambda: believed.append(getattr(table, way)(gtrid)))
                resolving.start()
                resolving.join(0.5)
                assert committing.is_alive()
                assert believed == []  # before a write of its own is on the disk, behind the others
            finally:
                flag.unlink()
            committing.join()
            resolving.join()
    assert believed == [RowDecision.COMMIT]


@pytest.fixture
def strict_server() -> Iterator[EmbeddedMariaDb]:
    """With a binary log of statements, the sort that takes least."""
    need_mariadb()
    settings = "--log-bin=log", "--binlog-format=STATEMENT", "--sync-binlog=1", "--sql-mode="
    with EmbeddedMariaDb(*settings) as server:
        yield server


def test_a_server_that_may_lose_a_commit_is_refused(strict_server: EmbeddedMariaDb) -> None:
    database = made_in(strict_server)
    deciding = make_mariadb(database)
    with closing(deciding.connect()) as connection:
        for setting, remedy in (
            ("sync_binlog = 0", "sync_binlog = 1"),
            ("innodb_flush_log_at_trx_commit = 2", "innodb_flush_log_at_trx_commit = 1"),
            ("read_only = 1", "connect to the primary"),
        ):
            do(connection, f"SET GLOBAL {setting}")
            refused(connection, remedy)
            with pytest.raises(CannotEnlist, match=remedy):
                deciding.table()
            do(connection, f"SET GLOBAL {setting.partition(' ')[0]} = {0 if 'read' in setting else 1}")
        gtrids = [deciding.identity.name.new_gtrid() for _ in range(2)]
        session = session_of(connection)
        session.begin()
        session.decide(gtrids[0], (0,))
        session.commit()
        session.begin()
        session._state = type(session._state)(session._state.session, (0,))  # type: ignore[attr-defined]
        with pytest.raises(PrepareFailed, match="must not decide any more"):  # without any sql_mode, too
            session.decide(gtrids[1], (0,))
        session.rollback()
        with closing(deciding.table()) as table:
            assert [table.resolve(gtrid).value for gtrid in gtrids] == ["commit", "rollback"]
            assert len(table.rows(-1, 9)) == 1
            table.delete(gtrids)
        assert deciding.rows() == {}
