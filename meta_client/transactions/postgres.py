"""PostgreSQL, through psycopg 3: the caller's connection, and the table over one of our own.

The barrier: a unique index lets one transaction insert a key, and has every other one that inserts it wait for its end,
at every isolation level. The only file here that imports psycopg; imported when a connection is enlisted.
"""
# ruff: noqa: S608 - statements are made of our own names, and of a schema that is quoted

import functools
import logging
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import errors, sql
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from journal.xid import Xid
from meta_client.coordinator.errors import CannotEnlist, PrepareFailed, Unreachable
from meta_client.errors import TransactionMisuse
from meta_client.transactions.errors import CommitUnknown, CopiedTable, NoDecisionTable
from meta_client.transactions.names import TableName
from meta_client.transactions.statements import SqlTable, Statements, one_line
from meta_client.transactions.table import DATABASE, IDENTITY, TABLE, Identity, Opener, brokers_text

Connection = psycopg.Connection[Any]

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 5
LOCK_TIMEOUT_MS: Final = 250  # how long a look waits for a transaction that has written its row and has not ended

# A database is told from others by its cluster's birth certificate and its own number, which survive a change of host.
HOME: Final = """(SELECT system_identifier::text FROM pg_control_system()) || '/'
    || (SELECT oid::text FROM pg_database WHERE datname = current_database())"""
_FIND: Final = f"""SELECT current_database(), {HOME}, pg_is_in_recovery(), current_user,
    (SELECT nspname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = to_regclass('{TABLE}')),
    has_table_privilege(to_regclass('{TABLE}'), 'INSERT')
    AND has_table_privilege(to_regclass('{IDENTITY}'), 'SELECT')"""

DDL: Final = f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    gtrid text PRIMARY KEY,
    outcome text NOT NULL CHECK (outcome IN ('commit', 'rollback')),
    brokers text NOT NULL,
    hazard text,
    decided_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
CREATE TABLE IF NOT EXISTS {IDENTITY} (
    only_one integer PRIMARY KEY DEFAULT 1 CHECK (only_one = 1),
    table_id text NOT NULL,
    home text NOT NULL,
    keep_s integer NOT NULL CHECK (keep_s >= 60)
);
INSERT INTO {IDENTITY} (table_id, home, keep_s)
SELECT replace(gen_random_uuid()::text, '-', ''), {HOME}, {{keep_s}}
ON CONFLICT DO NOTHING;
"""
_CHANGES: Final = {
    "keep": "",
    "moved": f"UPDATE {IDENTITY} SET home = {HOME}",
    "copied": f"""DELETE FROM {TABLE};
UPDATE {IDENTITY} SET home = {HOME}, table_id = replace(gen_random_uuid()::text, '-', '')""",
}

# In a session like this an insert that meets a row waits, and then sees it; and what is decided is on the disk.
_OWN: Final = f"""SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
SET synchronous_commit = on; SET lock_timeout = {LOCK_TIMEOUT_MS}"""
# NULL, which the column refuses, if this transaction is so old that the row of its rollback may be gone already. A
# commit that is not on the disk yet is no decision: such a transaction waits for the disk after all.
_DECIDE: Final = """INSERT INTO {table} (gtrid, outcome, brokers)
VALUES (%s, CASE WHEN clock_timestamp() - transaction_timestamp() < make_interval(secs => %s) THEN 'commit' END, %s)
RETURNING CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END"""
_UNUSABLE: Final = {
    TransactionStatus.ACTIVE: "a statement is still running on the connection: finish it first",
    TransactionStatus.INERROR: "a statement failed in the connection's transaction: roll it back first",
    TransactionStatus.UNKNOWN: "the database connection is lost: open a new one",
}
_NO_TRANSACTION: Final = {
    TransactionStatus.IDLE: "its transaction was ended inside the block: leave COMMIT and ROLLBACK to the block's end",
    TransactionStatus.ACTIVE: "a statement is still running: leave pipelines and streams before the block ends",
    TransactionStatus.INERROR: "a statement failed and the block went on: let the error out, or use a savepoint",
    TransactionStatus.UNKNOWN: "the connection is lost",
}
_DONE_AGAIN: Final = (errors.SerializationFailure, errors.DeadlockDetected)  # by callers
# Classes of SQLSTATE after which nobody knows what became of a COMMIT; every other error rolls it back.
_LEAVES_OPEN: Final = ("08", "57", "58", "XX", "40003")


@dataclass(frozen=True, slots=True)
class _Known:
    """What was asked of a connection once."""

    identity: Identity
    schema: str
    dsn: str
    password: str

    @property
    def table(self) -> sql.Identifier:
        """Named with its schema: a search path may be changed at any time."""
        return sql.Identifier(self.schema, TABLE)


_known: weakref.WeakKeyDictionary[object, _Known] = weakref.WeakKeyDictionary()  # by connection


class _Undone(Exception):
    """Makes psycopg's own block roll back."""


class PostgresSession:
    """One connection, in any isolation level, with autocommit or without, in a transaction or not."""

    def __init__(
        self, connection: Connection, connect: Callable[[], Connection] | None = None, *, is_managed: bool = False
    ) -> None:
        """*connect* makes another connection, where what this one was made with will not do. *is_managed*: a framework
        calls the connection's own commit() and rollback()."""
        self._connection = connection
        self._connect = connect
        self._is_managed = is_managed
        self._block: psycopg.Transaction | None = None  # if the database transaction was begun here

    def driver_connection(self) -> object:
        return self._connection

    def begin(self) -> Identity:
        connection = self._connection
        if connection.closed:
            raise CannotEnlist("the database connection is closed: open a new one")
        if connection.pgconn.pipeline_status != PipelineStatus.OFF:
            raise CannotEnlist("the database connection is in pipeline mode: leave the pipeline first")
        if (status := connection.info.transaction_status) in _UNUSABLE:
            raise CannotEnlist(_UNUSABLE[status])
        if getattr(connection, "_num_transactions", 0):  # public only as the error that a commit would raise
            raise TransactionMisuse(
                "the connection is inside a block of its own transaction(), which commits after this one: put "
                "client.transaction(...) outside, and transaction() inside if you want a savepoint"
            )
        try:
            if status is TransactionStatus.IDLE and self._is_managed:
                connection.execute("SELECT")  # begins, as psycopg does before any statement
                if connection.info.transaction_status is TransactionStatus.IDLE:
                    raise CannotEnlist("the database connection is in autocommit mode: each statement commits alone")
            elif status is TransactionStatus.IDLE:
                block = psycopg.Transaction(connection)
                block.__enter__()
                self._block = block
            return self._know().identity
        except _DONE_AGAIN:
            self._leave_as_it_was()
            raise
        except psycopg.OperationalError as error:
            self._leave_as_it_was()
            raise Unreachable(DATABASE, one_line(error)) from error
        except psycopg.Error as error:
            self._leave_as_it_was()
            raise CannotEnlist(f"the database connection can't take part: {one_line(error)}") from error
        except BaseException:
            if self._block is not None:
                self.rollback()
            raise

    def _leave_as_it_was(self) -> None:
        if not self._is_managed:  # a framework has to see that its transaction has failed
            self.rollback()

    def problem(self) -> str | None:
        return _NO_TRANSACTION.get(self._connection.info.transaction_status)

    def decide(self, gtrid: str, brokers: Collection[int]) -> None:
        known = self._know()
        statement = sql.SQL(_DECIDE).format(table=known.table)
        try:
            with self._connection.cursor(row_factory=tuple_row) as cursor:
                cursor.execute(statement, (gtrid, known.identity.age_s_max, brokers_text(brokers)))
        except _DONE_AGAIN:
            raise
        except psycopg.Error as error:
            raise PrepareFailed(Xid(1, gtrid.encode(), b""), DATABASE, _reason(error, known)) from error

    def commit(self) -> None:
        connection = self._connection
        if (problem := self.problem()) is not None:
            raise psycopg.OperationalError(problem)  # a COMMIT now would be answered ROLLBACK, or not at all
        block, self._block = self._block, None
        try:
            if block is None:
                connection.commit()
            else:
                block.__exit__(None, None, None)
                if block.status is psycopg.Transaction.Status.FAILED:
                    raise CommitUnknown("the connection was lost")
        except psycopg.Error as error:
            if connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                self.rollback()  # it was not sent
            if self.is_unknown(error):
                raise CommitUnknown(one_line(error)) from error
            raise

    def is_unknown(self, error: Exception) -> bool:
        if not isinstance(error, psycopg.Error):
            return True
        if error.sqlstate is None or error.sqlstate.startswith(_LEAVES_OPEN):
            return True
        return self._connection.info.transaction_status is not TransactionStatus.IDLE

    def rollback(self) -> None:
        block, self._block = self._block, None
        try:
            if block is None:
                self._connection.rollback()
            else:
                block.__exit__(_Undone, _Undone(), None)
        except psycopg.Error as error:
            log.warning("database connection could not be rolled back, and is closed reason=%s", one_line(error))
            self._connection.close()

    def opener(self) -> Opener:
        if self._connect is not None:
            return functools.partial(_open_over, self._connect)
        known = self._know()
        return functools.partial(open_table, known.dsn, known.password or None, schema=known.schema)

    def _know(self) -> _Known:
        if (known := _known.get(self._connection)) is None:
            known = _known[self._connection] = _look_up(self._connection)
        return known


def open_table(dsn: str, password: str | None = None, *, schema: str | None = None) -> SqlTable:
    """The decision table of the database that *dsn* leads to, in *schema* or where the search path finds it.

    Raises Unreachable, NoDecisionTable, CopiedTable, CannotEnlist.
    """
    connect = functools.partial(
        psycopg.connect, dsn, password=password, connect_timeout=CONNECT_TIMEOUT_S, application_name="metaq resolver"
    )
    return _open_over(connect, schema)


def _open_over(connect: Callable[[], Connection], schema: str | None = None) -> SqlTable:
    try:
        connection = connect()
    except psycopg.Error as error:
        raise Unreachable(DATABASE, one_line(error)) from error
    try:
        connection.autocommit = True
        connection.execute(_OWN.encode())
        if schema is not None:
            connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))
        known = _look_up(connection)
    except psycopg.Error as error:
        connection.close()
        raise Unreachable(DATABASE, one_line(error)) from error
    except BaseException:
        connection.close()
        raise
    return SqlTable(connection, known.identity, _statements(known.table.as_string(connection)), (psycopg.Error,))


def initialise(dsn: str, keep_s: int, change: str) -> Identity:
    """Make the table if it is not there, then *change* it (_CHANGES). Raises Unreachable, CopiedTable."""
    try:
        with psycopg.connect(dsn, connect_timeout=CONNECT_TIMEOUT_S) as connection:
            connection.execute((ddl(dsn, keep_s) + _CHANGES[change]).encode(), prepare=False)
            return _look_up(connection).identity
    except psycopg.Error as error:
        raise Unreachable(DATABASE, one_line(error)) from error


def ddl(dsn: str, keep_s: int) -> str:
    """What `initialise` executes, the same for every database."""
    del dsn
    return DDL.format(keep_s=int(keep_s))


def _look_up(connection: Connection) -> _Known:
    with connection.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(_FIND.encode()).fetchone()
        assert row is not None
        database, here, is_replica, role, schema, is_granted = row
        if is_replica:
            raise CannotEnlist(
                f"database {database} is a replica that is being read, and decides nothing: connect to the primary "
                f"(target_session_attrs=read-write)"
            )
        if schema is None or is_granted is None:
            raise NoDecisionTable(database)
        if not is_granted:
            raise CannotEnlist(f"role {role} may not use the decision table of {database}: {_grants(role)}")
        query = sql.SQL("SELECT table_id, home, keep_s FROM {}").format(sql.Identifier(schema, IDENTITY))
        row = cursor.execute(query).fetchone()
    if row is None:
        raise NoDecisionTable(database, f"{IDENTITY} is empty")
    table_id, home, keep_s = row
    if home != here:
        raise CopiedTable(database, home, here)
    info = connection.info
    return _Known(Identity(TableName(table_id), keep_s), schema, info.dsn, info.password)


def _grants(role: str) -> str:
    return (
        f"it needs GRANT SELECT, INSERT, UPDATE, DELETE ON {TABLE} TO {role} and GRANT SELECT ON {IDENTITY} TO {role}"
    )


def _reason(error: psycopg.Error, known: _Known) -> str:
    match error:
        case errors.UniqueViolation():
            return "a resolver has rolled it back meanwhile, so long did it take from PREPARE to COMMIT: do it again"
        case errors.NotNullViolation():
            return f"its database transaction is older than {known.identity.age_s_max} s, and must not decide any more"
        case errors.InsufficientPrivilege():
            return f"{one_line(error)}: {_grants('the role')}"
    return one_line(error)


def _statements(table: str) -> Statements:
    return Statements(
        resolve=f"INSERT INTO {table} (gtrid, outcome, brokers) VALUES (%s, 'rollback', '') ON CONFLICT DO NOTHING",
        read=f"SELECT outcome FROM {table} WHERE gtrid = %s",
        rows=f"""SELECT gtrid, brokers, hazard, decided_at < clock_timestamp() - make_interval(secs => %s) FROM {table}
WHERE outcome = 'commit' AND decided_at < clock_timestamp() - make_interval(secs => %s)
ORDER BY hazard IS NOT NULL, decided_at LIMIT %s""",
        # A deletion that is lost costs one more question: nobody waits for the disk because of it.
        delete=f"""WITH fast AS (SELECT set_config('synchronous_commit', 'off', true))
DELETE FROM {table} USING fast WHERE gtrid = ANY(%s)""",
        delete_kept=f"""DELETE FROM {table} WHERE outcome = 'rollback' AND hazard IS NULL
AND decided_at < clock_timestamp() - make_interval(secs => %s)""",
        mark=f"UPDATE {table} SET hazard = %s WHERE gtrid = %s",
        listed=list,
    )
