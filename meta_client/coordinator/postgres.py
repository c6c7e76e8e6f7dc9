"""The database's side: a psycopg 3 connection whose transaction is prepared and committed by its xid.

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

from journal.xid import InvalidXid, Xid
from meta_client.coordinator.errors import BranchUnknown, CannotEnlist, PrepareFailed, Unreachable
from meta_client.coordinator.names import DATABASE, branch
from meta_client.coordinator.participants import Ended

Connection = psycopg.Connection[Any]
Answer = TypeVar("Answer")

CONNECT_TIMEOUT_S = 5  # an attempt; the caller backs off between attempts
PREPARED: Final = "PREPARE TRANSACTION"  # what PostgreSQL answers when it did

# A database is told from another by its cluster's birth certificate, which survives a change of host, and its name.
WHERE: Final = """
SELECT system_identifier::text, current_database(), current_setting('max_prepared_transactions')::int
FROM pg_control_system()
"""
# What a transaction's outcome can be asked by for as long as PostgreSQL keeps its commit log: its number, and the
# timeline, because a promoted standby may give that number to another transaction.
_TIMELINE: Final = "left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)"
_RECEIPT: Final = f"SELECT pg_current_xact_id()::text || '.' || {_TIMELINE}"
_STATUS: Final = f"SELECT pg_xact_status(%s::xid8), {_TIMELINE} = %s"
_ENDED: Final = {"committed": Ended.COMMITTED, "aborted": Ended.ROLLED_BACK, "in progress": Ended.NOT_ENDED}
_NO_TRANSACTION: Final = {
    TransactionStatus.IDLE: "its transaction was ended inside the block: leave COMMIT and ROLLBACK to the coordinator",
    TransactionStatus.ACTIVE: "a statement is still running: leave pipelines and streams before the block ends",
    TransactionStatus.INERROR: "a statement failed and the block went on: let the error out",
    TransactionStatus.UNKNOWN: "the connection is lost",
}


@dataclass(frozen=True, slots=True)
class _Known:
    """What was asked of a connection once: which database it leads to, and how to get there again."""

    where: str
    dsn: str
    password: str


_known: weakref.WeakKeyDictionary[object, _Known] = weakref.WeakKeyDictionary()  # by the connection that was given


class PostgresParticipant:
    """One connection, used by its owner's thread alone. If it breaks after a prepare, a new one with the same
    parameters finishes the branch; the broken one is left as it is, for its owner to replace."""

    name = "the database"

    def __init__(self, connection: Connection, given: object = None) -> None:
        """*given*: what the user has, if *connection* only stands for it."""
        self._connection = connection
        self._given = connection if given is None else given
        self._is_open = False  # between tpc_begin and the end of psycopg's own two-phase state
        self._is_unanswered = False  # a PREPARE of ours, which the server may still be working on
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
        self._is_open = True  # before: a task that is cancelled in here has psycopg's two-phase state all the same
        try:
            self._connection.tpc_begin(_gid(xid))
        except psycopg.Error as error:
            self._is_open = False
            if isinstance(error, psycopg.OperationalError):
                raise self._unreachable(error) from error
            raise

    def prepare(self, xid: Xid) -> bool:
        connection = self._connection
        # Checked before: without a transaction psycopg would begin an empty one, and prepare that.
        if (status := connection.info.transaction_status) in _NO_TRANSACTION:
            raise PrepareFailed(xid, self.name, _NO_TRANSACTION[status])
        # Sent by hand, because the answer must be seen: psycopg's tpc_prepare() looks at errors alone. Both go in one
        # message, which a prepared statement could not hold.
        command = sql.SQL(_RECEIPT + "; PREPARE TRANSACTION {}").format(sql.Literal(_gid(xid)))
        self._is_unanswered = True
        try:
            with connection.cursor(row_factory=tuple_row) as cursor:
                cursor.execute(command, prepare=False)
                row = cursor.fetchone()
                cursor.nextset()
                answer = cursor.statusmessage
        except psycopg.Error as error:
            self._is_unanswered = error.sqlstate is None  # what the server says of it is an answer
            raise PrepareFailed(xid, self.name, _reason(error)) from error
        self._is_unanswered = False
        # The session is out of the transaction, prepared or not: this only lifts psycopg's guard over commit().
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

    def where(self) -> str:
        return self._know().where

    def prepared(self) -> list[Xid]:
        connection = self._connection
        try:
            found = connection.tpc_recover()
        except psycopg.OperationalError as error:
            raise self._unreachable(error) from error
        here = connection.info.dbname  # COMMIT PREPARED works in the branch's own database only
        xids = (_parse(str(xid)) for xid in found if xid.database == here)
        return [xid for xid in xids if xid is not None]

    def receipt(self) -> str:
        return f"{self.where()}@{self._receipt}"

    def outcome(self, xid: Xid, receipt: str) -> Ended:
        number, _, timeline = receipt.partition("@")[2].partition(".")

        def ask(connection: Connection) -> tuple[Any, ...]:
            return _one_row(connection, _STATUS, (number, timeline))

        try:
            status, is_same_timeline = self._on_some_connection(ask)
        except errors.InvalidParameterValue:  # a number of the future: this server never was where it was given out
            return Ended.UNKNOWN
        except psycopg.Error as error:
            raise self._unreachable(error) from error
        return _ENDED.get(status, Ended.UNKNOWN) if is_same_timeline else Ended.UNKNOWN

    def reaches(self, where: str) -> bool:
        return self.where() == where.partition("@")[0]

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

    def _spare(self, dsn: str, password: str | None) -> AbstractContextManager[Connection]:
        """Another connection to the same database, for one command."""
        return psycopg.connect(dsn, password=password, connect_timeout=CONNECT_TIMEOUT_S)

    def _over(self, connection: Connection) -> "PostgresParticipant":
        return PostgresParticipant(connection)

    def _finish(self, xid: Xid, *, commits: bool) -> None:
        """COMMIT PREPARED or ROLLBACK PREPARED."""
        try:
            self._on_some_connection(lambda connection: _finish_on(connection, xid, commits=commits))
        except errors.UndefinedObject as error:
            raise BranchUnknown(branch(xid, DATABASE), self.name) from error
        except psycopg.Error as error:
            # A lost connection, a branch that a dying session still holds, missing rights: none is a verdict about
            # the branch, so that asking again is right; what keeps failing stands in the log with its reason.
            raise self._unreachable(error) from error

    def _on_some_connection(self, work: Callable[[Connection], Answer]) -> Answer:
        """What *work* returns on this connection if it is free, else on one made for it."""
        connection = self._connection
        if not connection.closed and connection.info.transaction_status is TransactionStatus.IDLE:
            return work(connection)
        known = self._know()
        password = known.password or None  # None: as libpq finds it, a password file or the environment
        with self._spare(known.dsn, password) as spare:
            return work(spare)

    def _unreachable(self, error: psycopg.Error) -> Unreachable:
        return Unreachable(self.name, _one_line(error))


def _one_row(connection: Connection, query: LiteralString, parameters: tuple[str, ...] = ()) -> tuple[Any, ...]:
    """The one row that *query* has, whatever rows the connection makes; no transaction is left open."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        try:
            row = cursor.execute(query, parameters).fetchone()
        finally:
            if not connection.closed:
                connection.rollback()
    assert row is not None
    return row


def _finish_on(connection: Connection, xid: Xid, *, commits: bool) -> None:
    if commits:
        connection.tpc_commit(_gid(xid))
    else:
        connection.tpc_rollback(_gid(xid))


def _gid(xid: Xid) -> str:
    return str(branch(xid, DATABASE))


def _parse(gid: str) -> Xid | None:
    """The transaction whose database branch *gid* is; None for a name that no coordinator gives."""
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
            return _one_line(error)
    return f"{_one_line(error)}: {remedy}"


def _one_line(error: psycopg.Error) -> str:
    return " ".join(str(error).split()) or type(error).__name__
