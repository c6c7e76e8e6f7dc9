"""PostgreSQL, through asyncpg: the caller's session, and the table over a connection of our own. All inside `run`.

The SQL is in transactions/postgres_table.py and dialects.py. Imports asyncpg, as asyncpg_adapter.py does; imported when
one of its connections is enlisted.
"""

import functools
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import PurePath
from typing import Any, Final

import asyncpg
from asyncpg.transaction import TransactionState

from meta_client.aio.bridge.asyncpg_adapter import FAILURES, AsyncpgConnection, numbered
from meta_client.aio.bridge.bridge import wait
from meta_client.aio.transactions.private_loop import connected, for_threads_too
from meta_client.coordinator.errors import CannotEnlist
from meta_client.errors import TransactionMisuse
from meta_client.protocol.errors import one_line
from meta_client.transactions.deciding import AUTOCOMMIT, ENDED, UNDONE, DecidingSession, RowLost, reason
from meta_client.transactions.dialects import POSTGRES
from meta_client.transactions.postgres_table import (
    GUARDED_COMMIT,
    INSIDE_ITS_OWN,
    LOST,
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

_Connect = Callable[[], Any]  # makes another connection, inside `run`

CONNECT_TIMEOUT_S: Final = 5
_known: "weakref.WeakKeyDictionary[object, tuple[TableIdentity, str]]" = weakref.WeakKeyDictionary()  # by connection


class AsyncpgSession(DecidingSession):
    """One connection, direct or lent by a pool, at any isolation level, in or outside a transaction."""

    survives_release = True
    failures: tuple[type[Exception], ...] = FAILURES
    _says = staticmethod(says_of)

    def __init__(self, given: Any, connect: _Connect | None = None) -> None:
        """*connect* makes another connection where the parameters of this one cannot."""
        self._given = given
        self._connect = connect
        self._driver: Any = getattr(given, "_con", given)  # no public name for a pool's connection
        self._waited: Any = AsyncpgConnection(given)
        self._facts: tuple[TableIdentity, str]
        self._block: Any = None  # the transaction, unless a statement of the caller began it

    def driver_connection(self) -> object:
        if self._driver is None:
            raise CannotEnlist("the database connection has gone back to its pool: acquire another one")
        return self._driver

    def _enter(self) -> TableIdentity:
        if self._is_lost():
            raise CannotEnlist("the database connection is closed: open a new one")
        self._block = self._driver._top_xact  # otherwise known only by the error of commit()
        if self._block is not None and self._block._managed:
            raise TransactionMisuse(INSIDE_ITS_OWN)
        if not self._driver.is_in_transaction():
            self._has_begun = True
            self._start()
        self._change(MARK)
        if (known := _known.get(self._driver)) is None:
            known = _known[self._driver] = look_up(self._rows)
        self._facts = known
        return known[0]

    def _start(self) -> None:
        self._block = self._given.transaction()
        wait(self._block.start())

    def problem(self) -> str | None:
        if self._is_lost():
            return LOST
        return None if self._driver.is_in_transaction() else ENDED

    def _insert(self, gtrid: str, brokers: str) -> int:
        identity, schema = self._facts
        statement = POSTGRES.insert_decision(f"{quoted(schema)}.", identity.name.table_id, "%s", "%s", MARKED)
        return self._change(statement, (gtrid, identity.age_s_max, brokers))

    def lost(self) -> str | None:
        if (problem := self.problem()) is not None or self._gtrid is None:
            return problem
        try:
            return None if self._rows(READ_MARK)[0][0] == RECORDED else UNDONE
        except self.failures as error:
            return one_line(error)  # SQLAlchemy's COMMIT would now send nothing, and succeed

    def commit(self) -> None:
        if (problem := self.problem()) is not None:
            raise asyncpg.InterfaceError(problem)
        block, self._block = self._block, None
        if self._gtrid is None:
            wait(self._given.execute("SELECT"))  # raises in a failed transaction, where COMMIT would not
            wait(self._given.execute("COMMIT") if block is None else block.commit())
            return
        try:
            wait(self._given.execute(GUARDED_COMMIT))
            if block is not None:
                block._state = TransactionState.COMMITTED  # else the caller's rollback() of it seems to undo it
        except asyncpg.DivisionByZeroError as error:
            if self._is_over():  # COMMIT's own
                raise
            raise RowLost(UNDONE) from error
        finally:
            if self._is_over():
                self._driver._top_xact = None  # as its block's commit() does

    def _has_rolled_back(self, error: Exception) -> bool:
        return self._is_over() and has_rolled_back(getattr(error, "sqlstate", None))

    def _is_over(self) -> bool:
        """True if the transaction is known to have ended: a connection that was terminated does not tell."""
        return not self._is_lost() and not self._driver.is_in_transaction()

    def _is_lost(self) -> bool:
        """True if it is closed, or is back in its pool, which has rolled it back."""
        return getattr(self._given, "_con", self._given) is not self._driver or self._driver.is_closed()

    def _roll_back(self) -> None:
        self._block = None
        if self._is_lost():
            return
        if not self._driver.is_in_transaction():
            self._driver._top_xact = None  # remains set if BEGIN failed, or a statement ended the transaction
            return
        outer = self._driver._top_xact
        wait(self._given.execute("ROLLBACK") if outer is None else outer.rollback())

    def _abandon(self) -> None:
        self._driver.terminate()

    def opener(self) -> Opener:
        connect = self._connect or _reconnect(self._driver)
        return for_threads_too(functools.partial(_open_over, connect, self._facts[1]))

    def _forget(self) -> None:
        _known.clear()

    def _change(self, query: str, parameters: Sequence[object] = ()) -> int:
        """Execute a statement; return the count of changed rows."""
        with closing(self._waited.cursor()) as cursor:
            cursor.execute(numbered(query), parameters)
            return int(cursor.rowcount)

    def _rows(self, query: str) -> Sequence[Sequence[Any]]:
        with closing(self._waited.cursor()) as cursor:
            cursor.execute(query)
            rows: Sequence[Sequence[Any]] = cursor.fetchall()
            return rows


class AdaptedSession(AsyncpgSession):
    """The connection behind one of SQLAlchemy's, which begins and ends transactions itself."""

    _is_managed = True

    def __init__(self, adapter: Any, connect: _Connect) -> None:
        """*adapter*: SQLAlchemy's PEP 249 connection."""
        super().__init__(adapter.driver_connection, connect)
        self.failures = (adapter.dbapi.Error, *FAILURES)
        self._waited = adapter

    def problem(self) -> str | None:
        if (problem := super().problem()) is not None or self._gtrid is not None:
            return problem
        try:
            self._change("SELECT")  # raises in a failed transaction, where SQLAlchemy's COMMIT would not
        except self.failures as error:
            return reason(self._says(error), error, self._facts[0])
        return None

    def _start(self) -> None:
        self._change("SELECT")  # begins the transaction, like any first statement
        if not self._driver.is_in_transaction():
            raise CannotEnlist(AUTOCOMMIT)


def _reconnect(driver: Any) -> _Connect:
    """Return a factory of connections like *driver*, a Connection; uses private attributes."""
    where, parameters = driver._addr, driver._params
    if isinstance(where, str):  # a socket's path
        socket = PurePath(where)
        host, port = str(socket.parent), int(socket.suffix[1:])
    else:
        host, port = where
    mode = parameters.sslmode.name
    again = functools.partial(
        asyncpg.connect,
        host=host,
        port=port,
        user=parameters.user,
        password=parameters.password,
        database=parameters.database,
        ssl=mode if mode in ("disable", "allow", "prefer") else parameters.ssl,
        timeout=CONNECT_TIMEOUT_S,
        statement_cache_size=0,  # behind a pooler the name may be another client's statement
        server_settings={"application_name": "metaq resolver"},
    )
    return functools.partial(connected, again)


def _open_over(connect: _Connect, schema: str | None = None) -> SqlTable:
    connection = made_by(connect)
    with reaching(*FAILURES, undo=connection.terminate):
        wait(connection.execute(POSTGRES.looking))
        identity, schema = look_up(lambda query: wait(connection.fetch(query)), schema)
        wait(connection.execute("COMMIT"))
    statements = POSTGRES.statements(f"{quoted(schema)}.", "%s")
    return SqlTable(AsyncpgConnection(connection), identity, statements, FAILURES)
