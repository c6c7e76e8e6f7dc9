"""psycopg 3's AsyncConnection as a PEP 249 connection, for functions inside `run`: calls suspend the task."""

from collections.abc import Sequence
from typing import Any, Final, Self, cast

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import tuple_row

from meta_client.aio.bridge.bridge import wait
from meta_client.coordinator.postgres import PostgresConnection

paramstyle: Final = "pyformat"  # by these two names is a module of PEP 249 known
Error: Final = psycopg.Error


class PsycopgCursor:
    """An asynchronous cursor with a synchronous interface."""

    def __init__(self, cursor: "psycopg.AsyncCursor[Any]") -> None:
        self._cursor = cursor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def statusmessage(self) -> str | None:
        return self._cursor.statusmessage

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    def execute(self, query: Any, parameters: Sequence[Any] = (), *, prepare: bool | None = None) -> Self:
        wait(self._cursor.execute(query, parameters or None, prepare=prepare))
        return self

    def fetchone(self) -> Any:
        return wait(self._cursor.fetchone())

    def fetchall(self) -> list[Any]:
        return wait(self._cursor.fetchall())

    def nextset(self) -> bool | None:
        return self._cursor.nextset()

    def close(self) -> None:
        wait(self._cursor.close())


class PsycopgConnection:
    """An asynchronous connection with a synchronous interface."""

    def __init__(self, connection: "AsyncConnection[Any]") -> None:
        self.connection = connection

    @property
    def closed(self) -> bool:
        return self.connection.closed

    @property
    def autocommit(self) -> bool:
        return self.connection.autocommit

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        wait(self.connection.set_autocommit(value))

    @property
    def info(self) -> psycopg.ConnectionInfo:
        return self.connection.info

    @property
    def pgconn(self) -> Any:
        return self.connection.pgconn

    @property
    def _num_transactions(self) -> int:
        return int(getattr(self.connection, "_num_transactions", 0))

    @property
    def _tpc(self) -> Any:
        return getattr(self.connection, "_tpc", None)

    def cursor(self, **how: Any) -> PsycopgCursor:
        """Return a cursor with %s as marks and, unless *how* says otherwise, tuples as rows."""
        return PsycopgCursor(psycopg.AsyncCursor(self.connection, **{"row_factory": tuple_row} | how))

    def execute(self, query: Any) -> None:
        wait(self.connection.execute(query))

    def commit(self) -> None:
        wait(self.connection.commit())

    def rollback(self) -> None:
        wait(self.connection.rollback())

    def close(self) -> None:
        wait(self.connection.close())

    def tpc_begin(self, xid: str) -> None:
        wait(self.connection.tpc_begin(xid))

    def tpc_commit(self, xid: str | None = None) -> None:
        wait(self.connection.tpc_commit(xid))

    def tpc_rollback(self, xid: str | None = None) -> None:
        wait(self.connection.tpc_rollback(xid))

    def tpc_recover(self) -> list[psycopg.Xid]:
        return wait(self.connection.tpc_recover())


def adapted(connection: "AsyncConnection[Any]") -> PostgresConnection:
    """Wrap *connection* in the synchronous interface, as far as it is used here."""
    return cast(PostgresConnection, PsycopgConnection(connection))
