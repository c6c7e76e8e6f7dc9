"""The database's side: a psycopg 3 connection whose transaction is prepared and committed by its xid.

The only file of this package that imports psycopg; imported when a connection is enlisted.
"""

import weakref
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, LiteralString
from urllib.parse import quote

import psycopg
from psycopg import errors, sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from journal.xid import InvalidXid, Xid
from meta_client.coordinator.errors import BranchUnknown, CannotEnlist, PrepareFailed, Unreachable
from meta_client.coordinator.names import DATABASE, branch

Connection = psycopg.Connection[Any]

CONNECT_TIMEOUT_S = 5  # an attempt; the caller backs off between attempts
PREPARED: Final = "PREPARE TRANSACTION"  # what PostgreSQL answers when it did

# A database is told from another by its cluster's birth certificate, which survives a change of host, and its name.
WHERE: Final = """
SELECT system_identifier::text, current_database(), current_setting('max_prepared_transactions')::int
FROM pg_control_system()
"""
_NO_TRANSACTION: Final = {
    TransactionStatus.IDLE: "its transaction was ended inside the block: leave COMMIT and ROLLBACK to the coordinator",
    TransactionStatus.ACTIVE: "a statement is still running: leave pipelines and streams before the block ends",
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
        try:
            self._connection.tpc_begin(_gid(xid))
        except psycopg.OperationalError as error:
            raise self._unreachable(error) from error
        self._is_open = True

    def prepare(self, xid: Xid) -> bool:
        connection = self._connection
        # Checked before: without a transaction psycopg would begin an empty one, and prepare that.
        if (status := connection.info.transaction_status) in _NO_TRANSACTION:
            raise PrepareFailed(xid, self.name, _NO_TRANSACTION[status])
        # Sent by hand, because the answer must be seen: in a transaction that has failed PostgreSQL answers
        # ROLLBACK, reports no error, and psycopg's tpc_prepare() returns as if all were well.
        command = sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(_gid(xid)))
        try:
            answer = connection.execute(command).statusmessage
        except psycopg.Error as error:
            raise PrepareFailed(xid, self.name, _reason(error)) from error
        # The session is out of the transaction, prepared or not: this only lifts psycopg's guard over commit().
        self._is_open = False
        connection.tpc_rollback()
        if answer != PREPARED:
            raise PrepareFailed(
                xid, self.name, f"it answered {answer}: a statement failed and the block went on; let the error out"
            )
        return True

    def commit(self, xid: Xid) -> None:
        self._finish(xid, commits=True)

    def commit_one_phase(self, xid: Xid) -> None:
        connection = self._connection
        if (status := connection.info.transaction_status) is not TransactionStatus.INTRANS:
            # A COMMIT of a failed transaction is answered ROLLBACK too, and raises nothing.
            raise PrepareFailed(xid, self.name, _NO_TRANSACTION.get(status, "a statement failed: let the error out"))
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
        except BranchUnknown:
            return  # never prepared, or rolled back before

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

    def was_rolled_back(self, xid: Xid, where: str) -> bool:
        del xid, where
        return False  # a database forgets a prepared transaction with its name

    def reaches(self, where: str) -> bool:
        return self.where() == where

    def _know(self) -> _Known:
        if (known := _known.get(self._given)) is not None:
            return known
        try:
            system, database, prepared_max = self._ask_where(WHERE)
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

    def _ask_where(self, query: LiteralString) -> tuple[Any, ...]:
        """The one row that *query* has, whatever rows the connection makes; no transaction is left open."""
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(query).fetchone()
        self._connection.rollback()
        assert row is not None
        return row

    def _spare(self, dsn: str, password: str | None) -> AbstractContextManager[Connection]:
        """Another connection to the same database, for one command."""
        return psycopg.connect(dsn, password=password, connect_timeout=CONNECT_TIMEOUT_S)

    def _finish(self, xid: Xid, *, commits: bool) -> None:
        """COMMIT PREPARED or ROLLBACK PREPARED, on this connection if it can, else on one made for it."""
        connection = self._connection
        try:
            if not connection.closed and connection.info.transaction_status is TransactionStatus.IDLE:
                _finish_on(connection, xid, commits=commits)
                return
            known = self._know()
            password = known.password or None  # None: as libpq finds it, a password file or the environment
            with self._spare(known.dsn, password) as spare:
                _finish_on(spare, xid, commits=commits)
        except errors.UndefinedObject as error:
            raise BranchUnknown(branch(xid, DATABASE), self.name) from error
        except psycopg.Error as error:
            # A lost connection, a branch that a dying session still holds, missing rights: none is a verdict about
            # the branch, so that asking again is right; what keeps failing stands in the log with its reason.
            raise self._unreachable(error) from error

    def _unreachable(self, error: psycopg.Error) -> Unreachable:
        return Unreachable(self.name, _one_line(error))


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
