"""The database's side against a real PostgreSQL: what its answers mean, and what a broken connection leaves."""

import os
import select
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.rows import dict_row

from journal.records.xid import Xid
from meta_broker.testing.postgres import EmbeddedPostgres
from meta_client.coordinator.errors import BranchUnknown, CannotEnlist, PrepareFailed, Unreachable
from meta_client.coordinator.participants import BranchEnd
from meta_client.coordinator.postgres import PostgresParticipant
from tests.fixtures.postgres import Connection, Database

XID = Xid(1, b"shop.0123abcd.1-1", b"")
GID = "1_c2hvcC4wMTIzYWJjZC4xLTE=_ZGI="  # as psycopg and pgjdbc write it, with branch qualifier "db"


@pytest.fixture
def connection(database: Database) -> Connection:
    connection = database.connect()
    connection.execute("CREATE TABLE rows (n int PRIMARY KEY)")
    connection.commit()
    return connection


def begun(connection: Connection) -> PostgresParticipant:
    participant = PostgresParticipant(connection)
    participant.check()
    participant.begin(XID)
    connection.execute("INSERT INTO rows VALUES (1)")
    return participant


def count(database: Database) -> int:
    return int(database.value("SELECT count(*) FROM rows"))


def test_prepare_then_commit(database: Database, connection: Connection) -> None:
    participant = begun(connection)
    assert participant.prepare(XID) is True
    assert database.prepared() == [GID]
    assert count(database) == 0
    participant.commit(XID)
    assert (database.prepared(), count(database)) == ([], 1)
    with pytest.raises(BranchUnknown, match="holds no prepared branch"):
        participant.commit(XID)
    connection.execute("INSERT INTO rows VALUES (2)")  # an ordinary connection again
    connection.commit()


@pytest.mark.parametrize("is_prepared", [False, True])
def test_rollback(database: Database, connection: Connection, is_prepared: bool) -> None:
    participant = begun(connection)
    if is_prepared:
        participant.prepare(XID)
    participant.rollback(XID)
    participant.rollback(XID)
    assert (database.prepared(), count(database)) == ([], 0)
    connection.execute("INSERT INTO rows VALUES (2)")
    connection.commit()


@pytest.mark.parametrize(("commits", "ended"), [(True, BranchEnd.COMMITTED), (False, BranchEnd.ROLLED_BACK)])
def test_how_a_branch_ended_is_known_afterwards(
    database: Database, connection: Connection, commits: bool, ended: BranchEnd
) -> None:
    participant = begun(connection)
    participant.prepare(XID)
    receipt = participant.receipt()
    assert participant.reaches(receipt)
    assert participant.outcome(XID, receipt) is BranchEnd.NOT_ENDED
    (participant.commit if commits else participant.rollback)(XID)
    with participant.spare() as spare:
        assert spare.outcome(XID, receipt) is ended
    where, _, known = receipt.partition("@")
    number, _, timeline = known.partition(".")
    # A promoted standby: the number is one of the future, or it was given to another transaction since.
    assert participant.outcome(XID, f"{where}@{int(number) + 1_000_000}.{timeline}") is BranchEnd.UNKNOWN
    assert participant.outcome(XID, f"{where}@{number}.0000000A") is BranchEnd.UNKNOWN
    connection.execute("INSERT INTO rows VALUES (2)")  # an ordinary connection again
    connection.commit()


def test_a_transaction_that_failed_unnoticed_does_not_prepare(database: Database, connection: Connection) -> None:
    participant = begun(connection)
    with pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute("INSERT INTO rows VALUES (1)")
    with pytest.raises(PrepareFailed, match="a statement failed and the block went on") as caught:
        participant.prepare(XID)
    assert caught.value.xid == XID
    participant.rollback(XID)
    assert (database.prepared(), count(database)) == ([], 0)


def test_psycopg_alone_would_not_have_noticed(database: Database, connection: Connection) -> None:
    """The participant must check the answer itself: if this fails one day, the check in `prepare` may become
    simpler."""
    connection.tpc_begin(GID)
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("SELECT 1 / 0")
    connection.tpc_prepare()
    assert database.prepared() == []
    with pytest.raises(psycopg.errors.UndefinedObject):
        connection.tpc_commit()


def test_a_block_that_commits_by_itself_does_not_prepare(database: Database, connection: Connection) -> None:
    participant = begun(connection)
    connection.execute("COMMIT")  # as SQL, behind psycopg's back
    with pytest.raises(PrepareFailed, match="leave COMMIT and ROLLBACK to the coordinator"):
        participant.prepare(XID)
    participant.rollback(XID)
    assert database.prepared() == []


def test_the_block_cannot_call_commit(database: Database, connection: Connection) -> None:
    participant = begun(connection)
    with pytest.raises(psycopg.ProgrammingError, match="two-phase"):
        connection.commit()
    participant.prepare(XID)
    participant.commit(XID)
    assert count(database) == 1


def test_one_phase(database: Database, connection: Connection) -> None:
    begun(connection).commit_one_phase(XID)
    assert count(database) == 1
    participant = PostgresParticipant(connection)
    participant.begin(XID)
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("SELECT 1 / 0")
    with pytest.raises(PrepareFailed, match="let the error out"):
        participant.commit_one_phase(XID)
    participant.rollback(XID)


def test_what_cannot_be_prepared_says_why(database: Database, connection: Connection) -> None:
    participant = begun(connection)
    connection.execute("CREATE TEMPORARY TABLE t (n int)")
    with pytest.raises(PrepareFailed, match="temporary"):
        participant.prepare(XID)
    participant.rollback(XID)
    assert (database.prepared(), count(database)) == ([], 0)


def test_a_deferred_constraint_fails_the_prepare(database: Database, connection: Connection) -> None:
    connection.execute("CREATE TABLE parts (n int REFERENCES rows DEFERRABLE INITIALLY DEFERRED)")
    connection.commit()
    participant = begun(connection)
    connection.execute("INSERT INTO parts VALUES (7)")
    with pytest.raises(PrepareFailed, match="foreign key"):
        participant.prepare(XID)
    participant.rollback(XID)
    assert (database.prepared(), count(database)) == ([], 0)


def test_a_connection_that_is_not_fit_is_refused_before_anything_begins(database: Database) -> None:
    busy = database.connect()
    busy.execute("SELECT 1")
    with pytest.raises(CannotEnlist, match=r"in a transaction already \(INTRANS\)"):
        PostgresParticipant(busy).check()
    autocommit = database.connect()
    autocommit.autocommit = True
    with pytest.raises(CannotEnlist, match=r"set connection\.autocommit"):
        PostgresParticipant(autocommit).check()
    closed = database.connect()
    closed.close()
    with pytest.raises(CannotEnlist, match="closed: open a new one"):
        PostgresParticipant(closed).check()


def test_a_row_factory_of_the_users_does_not_disturb(database: Database, connection: Connection) -> None:
    connection.row_factory = dict_row
    participant = begun(connection)
    participant.prepare(XID)
    assert participant.prepared() == [XID]
    participant.commit(XID)
    assert connection.execute("SELECT n FROM rows").fetchone() == {"n": 1}
    connection.rollback()


def test_branches_of_others_are_not_listed(database: Database, connection: Connection) -> None:
    for gid in ("by hand", "1_c2hvcA==_b3RoZXI="):
        connection.execute("BEGIN")
        connection.execute(f"PREPARE TRANSACTION '{gid}'".encode())
    connection.rollback()
    assert len(database.prepared()) == 2
    assert PostgresParticipant(connection).prepared() == []
    connection.autocommit = True
    for gid in database.prepared():
        connection.execute(f"ROLLBACK PREPARED '{gid}'".encode())


def test_a_branch_of_another_database_is_not_listed(postgres_server: EmbeddedPostgres, connection: Connection) -> None:
    participant = begun(connection)
    participant.prepare(XID)
    with psycopg.connect(postgres_server.dsn) as elsewhere:
        other = PostgresParticipant(elsewhere)
        assert other.prepared() == []
        assert not other.reaches(participant.resource_id())
        assert participant.resource_id().split("/")[0] == other.resource_id().split("/")[0]
    assert participant.reaches(participant.resource_id())
    participant.rollback(XID)


def test_a_connection_lost_before_the_prepare_loses_its_work(database: Database, connection: Connection) -> None:
    participant = begun(connection)
    _terminate(database, connection)
    with pytest.raises(PrepareFailed, match="terminat"):
        participant.prepare(XID)
    participant.rollback(XID)
    assert (database.prepared(), count(database)) == ([], 0)


@pytest.mark.parametrize("commits", [True, False])
def test_a_connection_lost_after_the_prepare_is_replaced(
    database: Database, connection: Connection, commits: bool
) -> None:
    participant = begun(connection)
    participant.prepare(XID)
    _terminate(database, connection)
    with pytest.raises(Unreachable):  # this is how it is noticed
        participant.commit(XID)
    if commits:
        participant.commit(XID)
    else:
        participant.rollback(XID)
    assert (database.prepared(), count(database)) == ([], int(commits))
    assert connection.closed


def _terminate(database: Database, connection: Connection) -> None:
    pid = connection.info.backend_pid
    assert database.value(f"SELECT pg_terminate_backend({pid}, 60000)") is True


@pytest.fixture
def frugal_server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(settings={"max_prepared_transactions": "1"}) as server:
        yield server


def test_full_room_for_prepared_transactions(frugal_server: EmbeddedPostgres) -> None:
    other = Xid(1, b"shop.0123abcd.1-2", b"")
    with psycopg.connect(frugal_server.dsn) as first, psycopg.connect(frugal_server.dsn) as second:
        one, two = PostgresParticipant(first), PostgresParticipant(second)
        one.check()
        one.begin(XID)
        one.prepare(XID)
        two.begin(other)
        with pytest.raises(PrepareFailed, match=r"raise max_prepared_transactions, or run recover\(\)"):
            two.prepare(other)
        two.rollback(other)
        one.rollback(XID)


def test_no_room_for_prepared_transactions_at_all() -> None:
    with (
        EmbeddedPostgres(settings={"max_prepared_transactions": "0"}) as server,
        psycopg.connect(server.dsn) as connection,
        pytest.raises(CannotEnlist, match=r"in postgresql\.conf and restart PostgreSQL"),
    ):
        PostgresParticipant(connection).check()


def test_a_server_that_is_down_is_unreachable_and_commits_once_it_is_back(frugal_server: EmbeddedPostgres) -> None:
    with psycopg.connect(frugal_server.dsn) as connection:
        connection.execute("CREATE TABLE rows (n int PRIMARY KEY)")
        connection.commit()
        participant = begun(connection)
        participant.prepare(XID)
        session = os.pidfd_open(connection.info.backend_pid)
        frugal_server.kill()
        assert select.select([session], [], [], 60)[0]  # sessions outlive the server that was killed by moments
        os.close(session)
        for _ in range(2):
            with pytest.raises(Unreachable, match="gave no answer"):
                participant.commit(XID)
        frugal_server.start()
        participant.commit(XID)
    with psycopg.connect(frugal_server.dsn) as connection:
        assert connection.execute("SELECT n FROM rows").fetchall() == [(1,)]
