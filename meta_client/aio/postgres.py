"""The database's side for tasks: a psycopg 3 AsyncConnection, with the rules of meta_client/coordinator/postgres.py;
imported when a connection is enlisted."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

from psycopg import AsyncConnection

from meta_client.aio.bridge.bridge import wait
from meta_client.aio.bridge.psycopg_adapter import PsycopgConnection, adapted
from meta_client.coordinator.postgres import CONNECT_TIMEOUT_S, PostgresConnection
from meta_client.coordinator.postgres import PostgresParticipant as Rules


class PostgresParticipant(Rules):
    """One connection, used by its owner's task alone. All methods inside `run`."""

    def __init__(self, connection: "AsyncConnection[Any]") -> None:
        super().__init__(adapted(connection), given=connection)

    def _over(self, connection: PostgresConnection) -> "PostgresParticipant":
        return PostgresParticipant(cast(PsycopgConnection, connection).connection)

    def _spare(self, dsn: str, password: str | None) -> AbstractContextManager[PostgresConnection]:
        return _spare(dsn, password)


@contextmanager
def _spare(dsn: str, password: str | None) -> Iterator[PostgresConnection]:
    connecting = AsyncConnection.connect(dsn, password=password, connect_timeout=CONNECT_TIMEOUT_S)
    connection: AsyncConnection[Any] = wait(connecting)
    try:
        yield adapted(connection)
    finally:
        wait(connection.close())
