"""PostgreSQL, through psycopg 3: the caller's session, and the table over a connection of our own.

The SQL is in postgres_table and dialects. The only file here that imports psycopg; imported when a connection is
enlisted.
"""

import functools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from meta_client.coordinator.errors import CannotEnlist
from meta_client.coordinator.postgres import plain_cursor
from meta_client.errors import TransactionMisuse
from meta_client.protocol.errors import one_line
from meta_client.transactions.deciding import AUTOCOMMIT, ENDED, FAILED, UNDONE, DecidingSession, RowLost
from meta_client.transactions.dialects import POSTGRES
from meta_client.transactions.postgres_block import ThreadBlock
from meta_client.transactions.postgres_table import (
    HOME,
    INSIDE_ITS_OWN,
    LOST,
    LOST_HOST,
    MARK,
    MARKED,
    READ_MARK,
    RECORDED,
    has_rolled_back,
    look_up,
    quoted,
    says_of,
)
from meta_client.transactions.statements import SqlTable, made_by, reaching
from meta_client.transactions.table import Opener, TableIdentity

_Connection = psycopg.Connection[Any]

CONNECT_TIMEOUT_S: Final = 5
HOW: Final[Mapping[str, Any]] = {"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "metaq resolver"}

_UNUSABLE: Final = {
    TransactionStatus.ACTIVE: "a statement is still running on the connection: finish it first",
    TransactionStatus.INERROR: "a statement failed in the connection's transaction: roll it back first",
    TransactionStatus.UNKNOWN: "the database connection is lost: open a new one",
}
_NO_TRANSACTION: Final = {
    TransactionStatus.IDLE: ENDED,
    TransactionStatus.ACTIVE: "a statement is still running: leave pipelines and streams before the block ends",
    TransactionStatus.INERROR: FAILED,
    TransactionStatus.UNKNOWN: LOST,
}
_UTF8: Final = "SET client_encoding = 'UTF8'"  # with SQL_ASCII psycopg returns bytes for text


@dataclass(frozen=True, slots=True)
class _Known:
    """Facts read once per connection."""

    identity: TableIdentity
    schema: str
    insert_decision: bytes  # constant, so that psycopg prepares it; names the schema: the search path may change
    dsn: str
    password: str


_known: weakref.WeakKeyDictionary[object, _Known] = weakref.WeakKeyDictionary()  # by connection


class _Undone(Exception):
    """Makes psycopg's own block roll back."""


class PostgresSession(DecidingSession):
    """One connection at any isolation level, with or without autocommit, in or outside a transaction."""

    survives_release = True
    failures = (psycopg.Error,)
    _says = staticmethod(says_of)

    def __init__(
        self,
        connection: _Connection,
        connect: Callable[[], _Connection] | None = None,
        *,
        is_managed: bool = False,
        given: object = None,
    ) -> None:
        """*connect* makes another connection where the parameters of this one cannot. *is_managed*: a framework calls
        the connection's commit() and rollback(). *given*: the user's object, if *connection* stands for it."""
        self._connection = connection
        self._given = connection if given is None else given
        self._connect = connect
        self._is_managed = is_managed
        self._block: ThreadBlock | None = None  # set if we began the database transaction
        self._facts: _Known

    def driver_connection(self) -> object:
        return self._given

    def _enter(self) -> TableIdentity:
        connection = self._connection
        if connection.closed:
            raise CannotEnlist("the database connection is closed: open a new one")
        if connection.pgconn.pipeline_status != PipelineStatus.OFF:
            raise CannotEnlist("the database connection is in pipeline mode: leave the pipeline first")
        if (status := connection.info.transaction_status) in _UNUSABLE:
            raise CannotEnlist(_UNUSABLE[status])
        if getattr(connection, "_num_transactions", 0):  # otherwise known only by the error of commit()
            raise TransactionMisuse(INSIDE_ITS_OWN)
        if status is TransactionStatus.INTRANS and getattr(connection, "_tpc", None):
            raise TransactionMisuse(
                "the connection is in a two-phase transaction of its own, by tpc_begin(): end it first"
            )
        if status is TransactionStatus.IDLE and not self._is_managed:
            self._block, self._has_begun = self._new_block(), True
            self._block.__enter__()
        if self._block is None or not self._block.is_marked:
            connection.execute(MARK)  # begins a framework's transaction, like any first statement
        if connection.info.transaction_status is TransactionStatus.IDLE:
            raise CannotEnlist(AUTOCOMMIT)
        if (known := _known.get(self._given)) is None:
            known = _known[self._given] = _look_up(connection)
        self._facts = known
        return known.identity

    def _new_block(self) -> ThreadBlock:
        return ThreadBlock(self._connection)

    def problem(self) -> str | None:
        return _NO_TRANSACTION.get(self._connection.info.transaction_status)

    def lost(self) -> str | None:
        if (problem := self.problem()) is not None or self._gtrid is None:
            return problem
        try:
            with plain_cursor(self._connection) as cursor:
                mark = cursor.execute(READ_MARK.encode()).fetchall()[0][0]
        except psycopg.Error as error:
            return None if self.problem() == LOST else one_line(error)  # then COMMIT fails
        return None if mark in (RECORDED, RECORDED.encode()) else UNDONE

    def _insert(self, gtrid: str, brokers: str) -> int:
        known = self._facts
        with plain_cursor(self._connection) as cursor:
            cursor.execute(known.insert_decision, (gtrid, known.identity.age_s_max, brokers))
            return cursor.rowcount

    def commit(self) -> None:
        if (problem := self.problem()) is not None:
            raise psycopg.OperationalError(problem)  # COMMIT would be answered with ROLLBACK, or not at all
        block, self._block = self._block, None
        if block is None:
            self._check_row()
            self._connection.commit()
            return
        block.is_recorded = self._gtrid is not None
        try:
            block.__exit__(None, None, None)
        except errors.DivisionByZero as error:
            if self._connection.info.transaction_status is not TransactionStatus.INERROR:  # of COMMIT itself
                raise
            raise RowLost(UNDONE) from error
        if block.status is psycopg.Transaction.Status.FAILED:
            raise psycopg.OperationalError("the connection was lost")

    def _has_rolled_back(self, error: Exception) -> bool:
        is_over = self._connection.info.transaction_status is TransactionStatus.IDLE
        return is_over and has_rolled_back(getattr(error, "sqlstate", None))

    def _roll_back(self) -> None:
        block, self._block = self._block, None
        if self._is_streaming():
            raise psycopg.OperationalError("a statement, stream or COPY that was not ended holds it")
        if block is None:
            self._connection.rollback()
        else:
            block.__exit__(_Undone, _Undone(), None)
            if self._is_unusable():  # psycopg logs an error of ROLLBACK, and raises none
                raise psycopg.OperationalError("ROLLBACK failed, or BEGIN was interrupted")

    def _abandon(self) -> None:
        self._connection.close()

    def _is_unusable(self) -> bool:
        is_idle = self._connection.info.transaction_status is TransactionStatus.IDLE
        return not is_idle or bool(getattr(self._connection, "_num_transactions", 0))

    def _is_streaming(self) -> bool:
        """True if a generator of the caller's, as of Cursor.stream(), may hold psycopg's lock: ROLLBACK would wait for
        it without end."""
        is_active = self._connection.info.transaction_status is TransactionStatus.ACTIVE
        return is_active and self._connection.pgconn.pipeline_status == PipelineStatus.OFF

    def opener(self) -> Opener:
        if self._connect is not None:
            return functools.partial(open_over, self._connect, self._facts.schema)
        known = self._facts
        return functools.partial(open_table, known.dsn, known.password or None, schema=known.schema)

    def _forget(self) -> None:
        _known.clear()


def open_table(dsn: str, password: str | None = None, *, schema: str | None = None) -> SqlTable:
    """Open the decision table of the database at *dsn*, in *schema* or on the search path.

    Raises Unreachable, NoDecisionTable, CopiedTable, CannotEnlist.
    """
    return open_over(lambda: psycopg.connect(bounded(dsn), password=password, **HOW), schema)


def bounded(dsn: str) -> str:
    """Return *dsn* with time limits for a database whose host is lost, unless it has its own. Raises psycopg's
    error."""
    return make_conninfo("", **(LOST_HOST | conninfo_to_dict(dsn)))


def open_over(connect: Callable[[], _Connection], schema: str | None = None) -> SqlTable:
    """Open the table over a connection from *connect*, like open_table."""
    connection = made_by(connect, known_by="pgconn")
    with reaching(psycopg.Error, undo=connection.close):
        connection.autocommit = True
        connection.cursor_factory, connection.row_factory = psycopg.Cursor, tuple_row
        connection.prepare_threshold = None  # behind a pooler the name may be another client's statement
        connection.execute(f"{_UTF8}; {POSTGRES.looking}".encode())
        known = _look_up(connection, schema)
        connection.execute("COMMIT")
    statements = POSTGRES.statements(f"{quoted(known.schema)}.", "%s")
    return SqlTable(connection, known.identity, statements, (psycopg.Error,), _is_lock)


def _is_lock(error: Exception) -> bool:
    return isinstance(error, errors.LockNotAvailable)


def initialise(dsn: str, keep_s: int, change: str) -> TableIdentity:
    """Create the table if missing, then apply *change* (dialects). Raises Unreachable, CopiedTable."""
    with reaching(psycopg.Error), psycopg.connect(dsn, connect_timeout=CONNECT_TIMEOUT_S) as connection:
        connection.execute((ddl(dsn, keep_s) + POSTGRES.change(change, HOME)).encode(), prepare=False)
        return _look_up(connection).identity


def ddl(dsn: str, keep_s: int) -> str:
    """Return the SQL that `initialise` executes, the same for every database."""
    del dsn
    return POSTGRES.ddl(HOME, keep_s)


def _look_up(connection: _Connection, schema: str | None = None) -> _Known:
    info = connection.info
    encoding = "utf-8" if info.encoding == "ascii" else info.encoding  # "ascii": SQL_ASCII, any bytes

    def ask(query: str) -> list[tuple[Any, ...]]:
        rows = cursor.execute(query.encode(encoding)).fetchall()
        return [tuple(one.decode(encoding) if isinstance(one, bytes) else one for one in row) for row in rows]

    with plain_cursor(connection) as cursor:
        identity, schema = look_up(ask, schema)
    prefix, table_id = f"{quoted(schema)}.".replace("%", "%%"), identity.name.table_id
    insert_decision = POSTGRES.insert_decision(prefix, table_id, "%s", "%s", MARKED)
    return _Known(identity, schema, insert_decision.encode(encoding), info.dsn, info.password)
