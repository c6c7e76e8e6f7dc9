"""PostgreSQL, through psycopg 3's AsyncConnection, with the rules of meta_client/transactions/postgres.py; imported
when a connection is enlisted."""

import functools
from collections.abc import Callable
from typing import Any, cast

import psycopg
from psycopg import AsyncConnection

from meta_client.aio.bridge.psycopg_adapter import PsycopgConnection, PsycopgTransaction, adapted
from meta_client.aio.transactions.private_loop import connected, for_threads_too
from meta_client.transactions.postgres import HOW, PostgresSession, open_over
from meta_client.transactions.table import Opener

Connect = Callable[[], AsyncConnection[Any]]  # inside `run`


class AsyncPostgresSession(PostgresSession):
    """One connection at any isolation level, with or without autocommit, in or outside a transaction. Inside `run`."""

    def __init__(
        self, connection: AsyncConnection[Any], connect: Connect | None = None, *, is_managed: bool = False
    ) -> None:
        super().__init__(adapted(connection), is_managed=is_managed, given=connection)
        self._connect_again = connect

    def opener(self) -> Opener:
        connect, schema = self._connect_again, None
        if connect is None:
            known = self._know()
            password, schema = known.password or None, known.schema
            again = functools.partial(AsyncConnection.connect, known.dsn, password=password, **HOW)
            connect = functools.partial(connected, again)
        return for_threads_too(functools.partial(open_over, functools.partial(_another, connect), schema))

    def _new_block(self) -> psycopg.Transaction:
        return cast(psycopg.Transaction, PsycopgTransaction(cast(PsycopgConnection, self._connection)))


def _another(connect: Connect) -> psycopg.Connection[Any]:
    return adapted(connect())
