"""SQLite, through the standard library: the caller's session, and the table over a connection of our own.

The barrier: a database file has one writer at a time. The transaction that inserted a row holds the write lock until it
ends, and the next writer sees everything committed before.

With journal_mode = DELETE, SQLite's default, the deletion of the journal is the commit, and is on the disk once its
directory is: which SQLite itself sees to with synchronous = EXTRA alone.
"""
# ruff: noqa: S608 - statements consist of constants

import functools
import os
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from journal.errors import StorageFailed
from journal.wal.file_move import sync_directory
from meta_client.coordinator.errors import CannotEnlist, Unreachable
from meta_client.coordinator.log_origin import is_same_origin, origin_of
from meta_client.protocol.errors import one_line
from meta_client.transactions.deciding import ENDED, UNDONE, DecidingSession, Says
from meta_client.transactions.dialects import SQLITE
from meta_client.transactions.errors import CopiedTable, NoDecisionTable
from meta_client.transactions.statements import SqlTable, identity_of, reaching
from meta_client.transactions.table import DATABASE, IDENTITY, TABLE, Opener, TableIdentity

LOCK_TIMEOUT_S: Final = 1.0
_FULL: Final = 2  # of PRAGMA synchronous
_SAVEPOINT: Final = "metaq_block"  # ends with the transaction that the block was entered in
_SAYS: Final[Mapping[int | None, Says]] = {
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: Says.DUPLICATE,
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: Says.DUPLICATE,
    sqlite3.SQLITE_CONSTRAINT_NOTNULL: Says.IS_NULL,
    sqlite3.SQLITE_CONSTRAINT_CHECK: Says.MADE_AGAIN,
}
_MAIN: Final = f"main.{TABLE}"  # not a temporary table of that name, nor one in an attached file
_IS_RECORDED: Final = f"SELECT 1 FROM {_MAIN} WHERE gtrid = ?"


class SqliteSession(DecidingSession):
    """One connection to a database file, in a transaction or not."""

    failures = (sqlite3.Error,)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._began_s = 0.0  # taken before the database transaction begins
        self._path = ""
        self._deletes_from: Path | None = None  # where COMMIT deletes the journal, and so decides

    def driver_connection(self) -> object:
        return self._connection

    def _enter(self) -> TableIdentity:
        connection = self._connection
        self._path = _file(connection)
        identity = _look_up(connection)
        if _rows(connection, "PRAGMA synchronous")[0][0] < _FULL:
            raise CannotEnlist(
                "a COMMIT of this connection may be lost with the power after it was answered, and a decision must "
                "not be: give it PRAGMA synchronous = FULL"
            )
        if (mode := _rows(connection, "PRAGMA main.journal_mode")[0][0]) in ("off", "memory"):
            raise CannotEnlist(
                f"with journal_mode = {mode} a crash leaves half of a transaction: give it PRAGMA journal_mode = "
                f"WAL or DELETE"
            )
        self._began_s = time.time()
        if not connection.in_transaction:
            self._has_begun = True
            connection.execute("BEGIN")
        connection.execute(f"SAVEPOINT {_SAVEPOINT}")
        return identity

    def _leave_as_it_was(self, *, has_failed: bool) -> None:
        super()._leave_as_it_was(has_failed=False)  # an error does not end the caller's transaction

    def problem(self) -> str | None:
        try:
            self._connection.execute(f"RELEASE {_SAVEPOINT}")
            self._connection.execute(f"SAVEPOINT {_SAVEPOINT}")
        except sqlite3.Error as error:
            is_ended = _code_of(error) == sqlite3.SQLITE_ERROR  # the code of no other failure of a RELEASE
            return ENDED if is_ended else one_line(error)
        return None

    def lost(self) -> str | None:
        if (problem := self.problem()) is not None or self._gtrid is None:
            return problem
        try:
            return None if _rows(self._connection, _IS_RECORDED, self._gtrid) else UNDONE
        except sqlite3.Error as error:
            return one_line(error)

    def _insert(self, gtrid: str, brokers: str) -> int:
        values = gtrid, self._began_s, self._identity.age_s_max, brokers
        statement = SQLITE.insert_decision("main.", self._identity.name.table_id, "?", "?", "?", began="?")
        stored = self._connection.execute(statement, values).rowcount
        self._deletes_from = _deletes_from(self._connection)
        return stored

    def commit(self) -> None:
        self._check_row()
        if getattr(self._connection, "autocommit", None) is True:  # Python 3.12: commit() does nothing
            self._connection.execute("COMMIT")
        else:
            self._connection.commit()
        self.make_durable()

    def make_durable(self) -> None:
        if self._deletes_from is not None:
            sync_directory(self._deletes_from)

    def _says(self, error: Exception) -> Says | None:
        return _SAYS.get(_code_of(error))

    def _has_rolled_back(self, error: Exception) -> bool:
        """True if the transaction is still there, and no COMMIT will follow."""
        with suppress(sqlite3.Error):
            return self._connection.in_transaction
        return False  # it is closed

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _abandon(self) -> None:
        self._connection.close()

    def opener(self) -> Opener:
        return functools.partial(open_table, self._path)


class _FileTable(SqlTable):
    def _make_durable(self) -> None:
        """Fsync the directory of a deleted journal, which a killed process, or one not so far, may not have done."""
        with reaching(OSError, sqlite3.Error):
            if (directory := _deletes_from(self._connection)) is not None:
                sync_directory(directory)


def open_table(path: str) -> SqlTable:
    """Open the decision table in the file *path*. Raises Unreachable, NoDecisionTable, CopiedTable, CannotEnlist."""
    if not Path(path).is_file():
        raise Unreachable(DATABASE, f"{path} is not there")
    connection = _connect(path)
    with reaching(sqlite3.Error, undo=connection.close):
        identity = _look_up(connection)
    return _FileTable(connection, identity, SQLITE.statements("", "?"), (sqlite3.Error,), _is_lock)


def initialise(path: str, keep_s: int, change: str) -> TableIdentity:
    """Create the table if missing, then apply *change* (dialects). Raises Unreachable, CopiedTable."""
    with closing(_connect(path)) as connection, reaching(sqlite3.Error):
        connection.executescript(ddl(path, keep_s) + SQLITE.change(change, _home(path)))
        return _look_up(connection)


def ddl(path: str, keep_s: int) -> str:
    """Return the SQL that `initialise` executes."""
    return SQLITE.ddl(_home(path), keep_s)


def _connect(path: str) -> sqlite3.Connection:
    """Connect to the file *path*. Raises Unreachable, also for one that is no database."""
    with reaching(sqlite3.Error):
        connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    with reaching(sqlite3.Error, undo=connection.close):
        connection.execute("PRAGMA synchronous = EXTRA")
    return connection


def _look_up(connection: sqlite3.Connection) -> TableIdentity:
    path = _file(connection)
    if not _rows(connection, f"SELECT name FROM pragma_table_info('{IDENTITY}', 'main')"):
        raise NoDecisionTable(path)
    found = _rows(connection, f"SELECT table_id, home, keep_s FROM main.{IDENTITY}")
    if not found:
        raise NoDecisionTable(path, f"{IDENTITY} is empty")
    if _rows(connection, f"SELECT name FROM pragma_table_info('{TABLE}', 'main') WHERE pk") != [("gtrid",)]:
        raise NoDecisionTable(path, f"{TABLE} has no primary key, so that both could be decided: drop it")
    ((table_id, home, keep_s),) = found
    if not is_same_origin(home, here := _here(path)):
        raise CopiedTable(path, home, here)
    return identity_of(path, table_id, keep_s)


def _is_lock(error: Exception) -> bool:
    return _code_of(error) == sqlite3.SQLITE_BUSY


def _code_of(error: Exception) -> int | None:
    """Return the extended result code; None: SQLite itself was not asked."""
    return getattr(error, "sqlite_errorcode", None)


def _file(connection: sqlite3.Connection) -> str:
    path = next((file for _, name, file in _rows(connection, "PRAGMA database_list") if name == "main"), "")
    if not path:
        raise CannotEnlist("a database in memory ends with its connection, and decides nothing: use a file")
    return str(path)


def _deletes_from(connection: sqlite3.Connection) -> Path | None:
    """Return the directory whose fsync makes a COMMIT durable; None: the COMMIT does."""
    is_deleted = _rows(connection, "PRAGMA main.journal_mode")[0][0] == "delete"
    return Path(os.fsdecode(_file(connection))).parent if is_deleted else None


def _rows(connection: sqlite3.Connection, query: str, *values: str) -> list[tuple[Any, ...]]:
    """Return the rows of *query* as tuples with text, whatever the connection's factories."""
    factory, connection.text_factory = connection.text_factory, str
    try:
        with closing(connection.cursor()) as cursor:  # an interrupted query would hold its lock while a traceback lasts
            cursor.row_factory = None
            return cursor.execute(query, values).fetchall()
    finally:
        connection.text_factory = factory


def _home(path: str) -> str:
    """Return the file's place as an SQL string literal."""
    return f"'{_here(path)}'"


def _here(path: str) -> str:
    try:
        return origin_of(Path(os.fsdecode(path))).strip()
    except StorageFailed as error:
        raise CannotEnlist(str(error)) from error
