"""PostgreSQL, through psycopg 3's AsyncConnection, with the rules of meta_client/transactions/postgres.py; imported
when a connection is enlisted."""

import functools
from collections.abc import Callable
from typing import Any, Self, cast

import psycopg
from psycopg import AsyncConnection

from meta_client.aio.bridge.bridge import wait
from meta_client.aio.bridge.psycopg_adapter import Adapter, PsycopgConnection, adapted
from meta_client.aio.transactions.private_loop import connected, for_threads_too
from meta_client.transactions.postgres import HOW, PostgresSession, bounded, open_over
from meta_client.transactions.postgres_block import TaskBlock, ThreadBlock
from meta_client.transactions.table import Opener

_Connect = Callable[[], AsyncConnection[Any]]  # inside `run`


class AsyncPostgresSession(PostgresSession):
    """One connection at any isolation level, with or without autocommit, in or outside a transaction. Inside `run`."""

    def __init__(
        self, connection: AsyncConnection[Any], connect: _Connect | None = None, *, is_managed: bool = False
    ) -> None:
        super().__init__(adapted(connection), is_managed=is_managed, given=connection)
        self._connect_again = connect

    def opener(self) -> Opener:
        connect, known = self._connect_again, self._facts
        if connect is None:
            password = known.password or None
            again = functools.partial(AsyncConnection.connect, bounded(known.dsn), password=password, **HOW)
            connect = functools.partial(connected, again)
        return for_threads_too(functools.partial(open_over, functools.partial(_another, connect), known.schema))

    def _new_block(self) -> ThreadBlock:
        return cast(ThreadBlock, _Waited(TaskBlock(cast(PsycopgConnection, self._connection).connection)))


class _Waited(Adapter):
    """The block of a task with a synchronous interface."""

    def __enter__(self) -> Self:
        wait(self._adapted.__aenter__())
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        wait(self._adapted.__aexit__(kind, error, trace))


def _another(connect: _Connect) -> psycopg.Connection[Any]:
    return adapted(connect())
