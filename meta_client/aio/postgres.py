"""The database's side for tasks: a psycopg 3 AsyncConnection. The twin of meta_client/coordinator/postgres.py, whose
rules it is; imported when a connection is enlisted."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Self, cast

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import AsyncRowFactory

from meta_client.aio.bridge import wait
from meta_client.coordinator.postgres import CONNECT_TIMEOUT_S, Connection
from meta_client.coordinator.postgres import PostgresParticipant as Rules


class _WaitedCursor:
    """An asynchronous cursor as rules see one."""

    def __init__(self, cursor: "psycopg.AsyncCursor[Any]") -> None:
        self._cursor = cursor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wait(self._cursor.close())

    @property
    def statusmessage(self) -> str | None:
        return self._cursor.statusmessage

    def execute(self, query: Any, parameters: Sequence[Any] = (), *, prepare: bool | None = None) -> Self:
        wait(self._cursor.execute(query, parameters or None, prepare=prepare))
        return self

    def fetchone(self) -> Any:
        return wait(self._cursor.fetchone())

    def nextset(self) -> bool | None:
        return self._cursor.nextset()


class _Waited:
    """An asynchronous connection as rules see one: what they call, their task awaits."""

    def __init__(self, connection: "AsyncConnection[Any]") -> None:
        self.connection = connection

    @property
    def closed(self) -> bool:
        return self.connection.closed

    @property
    def autocommit(self) -> bool:
        return self.connection.autocommit

    @property
    def info(self) -> psycopg.ConnectionInfo:
        return self.connection.info

    def cursor(self, *, row_factory: AsyncRowFactory[Any]) -> _WaitedCursor:
        return _WaitedCursor(self.connection.cursor(row_factory=row_factory))

    def rollback(self) -> None:
        wait(self.connection.rollback())

    def tpc_begin(self, xid: str) -> None:
        wait(self.connection.tpc_begin(xid))

    def tpc_commit(self, xid: str | None = None) -> None:
        wait(self.connection.tpc_commit(xid))

    def tpc_rollback(self, xid: str | None = None) -> None:
        wait(self.connection.tpc_rollback(xid))

    def tpc_recover(self) -> list[psycopg.Xid]:
        return wait(self.connection.tpc_recover())


class PostgresParticipant(Rules):
    """One connection, used by its owner's task alone. Everything belongs inside `run`."""

    def __init__(self, connection: "AsyncConnection[Any]") -> None:
        super().__init__(_as_rules_see_it(connection), given=connection)

    def _over(self, connection: Connection) -> "PostgresParticipant":
        return PostgresParticipant(cast(_Waited, connection).connection)

    def _spare(self, dsn: str, password: str | None) -> AbstractContextManager[Connection]:
        return _spare(dsn, password)


@contextmanager
def _spare(dsn: str, password: str | None) -> Iterator[Connection]:
    connecting = AsyncConnection.connect(dsn, password=password, connect_timeout=CONNECT_TIMEOUT_S)
    connection: AsyncConnection[Any] = wait(connecting)
    try:
        yield _as_rules_see_it(connection)
    finally:
        wait(connection.close())


def _as_rules_see_it(connection: "AsyncConnection[Any]") -> Connection:
    return cast(Connection, _Waited(connection))  # it has all that the rules use of one
