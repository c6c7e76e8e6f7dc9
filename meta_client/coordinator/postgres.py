"""The database's side: a psycopg 3 connection whose transaction is prepared and committed by xid.

The only file of this package that imports psycopg; imported when a connection is enlisted.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, LiteralString, TypeVar
from urllib.parse import quote

import psycopg
from psycopg import errors, sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from journal.records.xid import InvalidXid, Xid
from meta_client.coordinator.errors import BranchUnknown, CannotEnlist, PrepareFailed, Unreachable
from meta_client.coordinator.names import DATABASE, branch
from meta_client.coordinator.participants import BranchEnd
from meta_client.protocol.errors import one_line

PostgresConnection = psycopg.Connection[Any]
_Answer = TypeVar("_Answer")

CONNECT_TIMEOUT_S = 5  # an attempt; the caller backs off between attempts
PREPARED: Final = "PREPARE TRANSACTION"  # PostgreSQL's command tag on success

# Identifies a database by its cluster's system identifier, which survives a change of host, and its name.
WHERE: Final = """
SELECT system_identifier::text, current_database(), current_setting('max_prepared_transactions')::int
FROM pg_control_system()
"""
# Transaction id, by which PostgreSQL reports the outcome while its commit log lasts, and the timeline, because a
# promoted standby may assign the id again.
_TIMELINE: Final = "left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)"
_RECEIPT: Final = f"SELECT pg_current_xact_id()::text || '.' || {_TIMELINE}"
_STATUS: Final = f"SELECT pg_xact_status(%s::xid8), {_TIMELINE} = %s"
_ENDED: Final = {"committed": BranchEnd.COMMITTED, "aborted": BranchEnd.ROLLED_BACK, "in progress": BranchEnd.NOT_ENDED}
_NO_TRANSACTION: Final = {
    TransactionStatus.IDLE: "its transaction was ended inside the block: leave COMMIT and ROLLBACK to the coordinator",
    TransactionStatus.ACTIVE: "a statement is still running: leave pipelines and streams before the block ends",
    TransactionStatus.INERROR: "a statement failed and the block went on: let the error out",
    TransactionStatus.UNKNOWN: "the connection is lost",
}


@dataclass(frozen=True, slots=True)
class _Known:
    """Facts read once per connection: its database, and the parameters to connect again."""

    resource_id: str
    dsn: str
    password: str


_known: weakref.WeakKeyDictionary[object, _Known] = weakref.WeakKeyDictionary()  # by the user's connection


class PostgresParticipant:
    """One connection, used by its owner's thread alone. If it breaks after a prepare, a new one with the same
    parameters finishes the branch; the owner replaces the broken one."""

    name = "the database"

    def __init__(self, connection: PostgresConnection, given: object = None) -> None:
        """*given*: the user's object, if *connection* stands for it."""
        self._connection = connection
        self._given = connection if given is None else given
        self._is_open = False  # between tpc_begin and the end of psycopg's own two-phase state
        self._is_unanswered = False  # a PREPARE that the server may still execute
        self._receipt = ""

    def check(self) -> None:
        connection = self._connection
        if connection.closed:
            raise CannotEnlist("the database connection is closed: open a new one")
        if connection.autocommit:
            raise CannotEnlist("the database connection is in autocommit mode: set connection.autocommit = False")
        if (status := connection.info.transaction_status) is not TransactionStatus.IDLE:
            raise CannotEnlist(
                f"the database connection is in a transaction already ({status.name}): commit or roll it back first"
            )
        self._know()

    def begin(self, xid: Xid) -> None:
        self._is_open = True  # set first: a task cancelled in here has psycopg's two-phase state, too
        try:
            self._connection.tpc_begin(_gid(xid))
        except psycopg.Error as error:
            self._is_open = False
            if isinstance(error, psycopg.OperationalError):
                raise self._unreachable(error) from error
            raise

    def prepare(self, xid: Xid) -> bool:
        connection = self._connection
        # Without a transaction psycopg would begin and prepare an empty one.
        if (status := connection.info.transaction_status) in _NO_TRANSACTION:
            raise PrepareFailed(xid, self.name, _NO_TRANSACTION[status])
        # Sent by hand to check the command tag: psycopg's tpc_prepare() checks errors alone. Both go in one
        # message, which a prepared statement could not hold.
        command = sql.SQL(_RECEIPT + "; PREPARE TRANSACTION {}").format(sql.Literal(_gid(xid)))
        self._is_unanswered = True
        try:
            with plain_cursor(connection) as cursor:
                cursor.execute(command, prepare=False)
                row = cursor.fetchone()
                cursor.nextset()
                answer = cursor.statusmessage
        except psycopg.Error as error:
            self._is_unanswered = error.sqlstate is None  # with an SQLSTATE the server has answered
            raise PrepareFailed(xid, self.name, _reason(error)) from error
        self._is_unanswered = False
        # The session has left the transaction, prepared or not: this only resets psycopg's guard of commit().
        self._is_open = False
        connection.tpc_rollback()
        if answer != PREPARED:
            raise PrepareFailed(xid, self.name, f"it answered {answer}")
        assert row is not None
        self._receipt = row[0]
        return True

    def commit(self, xid: Xid) -> None:
        self._finish(xid, commits=True)

    def commit_one_phase(self, xid: Xid) -> None:
        connection = self._connection
        if (status := connection.info.transaction_status) is not TransactionStatus.INTRANS:
            # A COMMIT of a failed transaction is answered ROLLBACK too, and raises nothing.
            raise PrepareFailed(xid, self.name, _NO_TRANSACTION[status])
        self._is_open = False
        connection.tpc_commit()

    def rollback(self, xid: Xid) -> None:
        if self._is_open:
            self._is_open = False
            status = self._connection.info.transaction_status
            try:
                self._connection.tpc_rollback()
            except psycopg.Error as error:
                if not self._connection.closed:
                    raise self._unreachable(error) from error
            else:
                if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                    return
            # A PREPARE that failed, or a lost connection: only the server knows whether it was prepared.
        try:
            self._finish(xid, commits=False)
        except BranchUnknown as error:
            if self._is_unanswered:
                raise Unreachable(self.name, f"its PREPARE got no answer, and may still act: {error}") from error
            # else: never prepared, or rolled back before

    def resource_id(self) -> str:
        return self._know().resource_id

    def prepared(self) -> list[Xid]:
        connection = self._connection
        try:
            found = connection.tpc_recover()
        except psycopg.OperationalError as error:
            raise self._unreachable(error) from error
        here = connection.info.dbname  # COMMIT PREPARED works only in the branch's database
        xids = (_parse(str(xid)) for xid in found if xid.database == here)
        return [xid for xid in xids if xid is not None]

    def receipt(self) -> str:
        return f"{self.resource_id()}@{self._receipt}"

    def outcome(self, xid: Xid, receipt: str) -> BranchEnd:
        number, _, timeline = receipt.partition("@")[2].partition(".")

        def ask(connection: PostgresConnection) -> tuple[Any, ...]:
            return _one_row(connection, _STATUS, (number, timeline))

        try:
            status, is_same_timeline = self._on_some_connection(ask)
        except errors.InvalidParameterValue:  # an id not yet assigned: another server assigned it
            return BranchEnd.UNKNOWN
        except psycopg.Error as error:
            raise self._unreachable(error) from error
        return _ENDED.get(status, BranchEnd.UNKNOWN) if is_same_timeline else BranchEnd.UNKNOWN

    def reaches(self, resource_id: str) -> bool:
        return self.resource_id() == resource_id.partition("@")[0]

    @contextmanager
    def spare(self) -> "Iterator[PostgresParticipant]":
        with ExitStack() as opened:
            try:
                known = self._know()
                connection = opened.enter_context(self._spare(known.dsn, known.password or None))
            except psycopg.Error as error:
                raise self._unreachable(error) from error
            yield self._over(connection)

    def _know(self) -> _Known:
        if (known := _known.get(self._given)) is not None:
            return known
        try:
            system, database, prepared_max = _one_row(self._connection, WHERE)
        except psycopg.OperationalError as error:
            raise self._unreachable(error) from error
        if prepared_max == 0:
            raise CannotEnlist(
                f"database {database} has max_prepared_transactions = 0, nothing can be prepared there: set it to "
                f"the number of connections in postgresql.conf and restart PostgreSQL"
            )
        info = self._connection.info
        known = _Known(f"{system}/{quote(database, safe='')}", info.dsn, info.password)
        _known[self._given] = known
        return known

    def _spare(self, dsn: str, password: str | None) -> AbstractContextManager[PostgresConnection]:
        """Return another connection to the same database, for one command."""
        return psycopg.connect(dsn, password=password, connect_timeout=CONNECT_TIMEOUT_S)

    def _over(self, connection: PostgresConnection) -> "PostgresParticipant":
        return PostgresParticipant(connection)

    def _finish(self, xid: Xid, *, commits: bool) -> None:
        """Execute COMMIT PREPARED or ROLLBACK PREPARED."""
        try:
            self._on_some_connection(lambda connection: _finish_on(connection, xid, commits=commits))
        except errors.UndefinedObject as error:
            raise BranchUnknown(branch(xid, DATABASE), self.name) from error
        except psycopg.Error as error:
            # A lost connection, a branch still held by a dying session, missing rights: none decides the branch, so
            # retry; lasting failures are logged with their reason.
            raise self._unreachable(error) from error

    def _on_some_connection(self, work: Callable[[PostgresConnection], _Answer]) -> _Answer:
        """Call *work* with this connection if it is free, else with a new one; return its result."""
        connection = self._connection
        if not connection.closed and connection.info.transaction_status is TransactionStatus.IDLE:
            return work(connection)
        known = self._know()
        password = known.password or None  # None: as libpq finds it, a password file or the environment
        with self._spare(known.dsn, password) as spare:
            return work(spare)

    def _unreachable(self, error: psycopg.Error) -> Unreachable:
        return Unreachable(self.name, one_line(error))


def plain_cursor(connection: PostgresConnection) -> "psycopg.Cursor[Any]":
    """Return a cursor with %s as marks and tuples as rows, whatever *connection* makes."""
    if isinstance(connection, psycopg.Connection):
        return psycopg.Cursor(connection, row_factory=tuple_row)
    return connection.cursor()  # an adapter's, which is plain


def _one_row(connection: PostgresConnection, query: LiteralString, parameters: tuple[str, ...] = ()) -> tuple[Any, ...]:
    """Return the single row of *query* as a tuple, whatever the row factory; leaves no transaction open."""
    with plain_cursor(connection) as cursor:
        try:
            row: tuple[Any, ...] | None = cursor.execute(query, parameters).fetchone()
        finally:
            if not connection.closed:
                connection.rollback()
    assert row is not None
    return row


def _finish_on(connection: PostgresConnection, xid: Xid, *, commits: bool) -> None:
    if commits:
        connection.tpc_commit(_gid(xid))
    else:
        connection.tpc_rollback(_gid(xid))


def _gid(xid: Xid) -> str:
    return str(branch(xid, DATABASE))


def _parse(gid: str) -> Xid | None:
    """Return the transaction whose database branch is *gid*; None for a name of another kind."""
    try:
        xid = Xid.parse(gid)
    except InvalidXid:
        return None
    return branch(xid, b"") if xid.bqual == DATABASE else None


def _reason(error: psycopg.Error) -> str:
    match error:
        case errors.ObjectNotInPrerequisiteState():
            remedy = "set max_prepared_transactions in postgresql.conf and restart PostgreSQL"
        case errors.OutOfMemory() | errors.ConfigurationLimitExceeded():
            remedy = "raise max_prepared_transactions, or run recover() if old branches fill it"
        case _:
            return one_line(error)
    return f"{one_line(error)}: {remedy}"
