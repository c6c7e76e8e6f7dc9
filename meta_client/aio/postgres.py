"""The database's side for tasks: a psycopg 3 AsyncConnection. The twin of meta_client/coordinator/postgres.py, whose
rules it is; imported when a connection is enlisted."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, LiteralString, cast

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.rows import tuple_row

from meta_client.aio.bridge import wait
from meta_client.coordinator.postgres import CONNECT_TIMEOUT_S, Connection
from meta_client.coordinator.postgres import PostgresParticipant as Rules


class _Waited:
    """An asynchronous connection as rules see one: what they call, their task awaits."""

    def __init__(self, connection: "AsyncConnection[Any]") -> None:
        self._connection = connection

    @property
    def closed(self) -> bool:
        return self._connection.closed

    @property
    def autocommit(self) -> bool:
        return self._connection.autocommit

    @property
    def info(self) -> psycopg.ConnectionInfo:
        return self._connection.info

    def execute(self, command: sql.Composed) -> "psycopg.AsyncCursor[Any]":
        return wait(self._connection.execute(command))

    def tpc_begin(self, xid: str) -> None:
        wait(self._connection.tpc_begin(xid))

    def tpc_commit(self, xid: str | None = None) -> None:
        wait(self._connection.tpc_commit(xid))

    def tpc_rollback(self, xid: str | None = None) -> None:
        wait(self._connection.tpc_rollback(xid))

    def tpc_recover(self) -> list[psycopg.Xid]:
        return wait(self._connection.tpc_recover())


class PostgresParticipant(Rules):
    """One connection, used by its owner's task alone. Everything belongs inside `run`."""

    def __init__(self, connection: "AsyncConnection[Any]") -> None:
        super().__init__(_as_rules_see_it(connection), given=connection)
        self._async = connection

    def _ask_where(self, query: LiteralString) -> tuple[Any, ...]:
        return wait(_first_row(self._async, query))

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


async def _first_row(connection: "AsyncConnection[Any]", query: LiteralString) -> tuple[Any, ...]:
    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(query)
        row = await cursor.fetchone()
    await connection.rollback()
    assert row is not None
    return row


def _as_rules_see_it(connection: "AsyncConnection[Any]") -> Connection:
    return cast(Connection, _Waited(connection))  # it has all that the rules use of one
