"""psycopg 3's AsyncConnection as a PEP 249 connection, for functions inside `run`: calls suspend the task."""

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Self, TypeVar, cast

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import tuple_row

from meta_client.aio.bridge.bridge import wait
from meta_client.coordinator.postgres import PostgresConnection

paramstyle: Final = "pyformat"  # by these two names is a module of PEP 249 known
Error: Final = psycopg.Error
_OF_CONNECTIONS: Final = frozenset(
    {"execute", "commit", "rollback", "close", "tpc_begin", "tpc_commit", "tpc_rollback", "tpc_recover"}
)
_Outcome = TypeVar("_Outcome")


class Adapter:
    """An asynchronous object of psycopg, of which the methods *awaited* are waited for, and the rest is as it is."""

    def __init__(self, adapted: Any, awaited: frozenset[str] = frozenset()) -> None:
        self._adapted = adapted
        self._awaited = awaited

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._adapted, name)
        return functools.partial(_waited, found) if name in self._awaited else found


def _waited(method: Callable[..., Awaitable[_Outcome]], *arguments: object, **named: object) -> _Outcome:
    return wait(method(*arguments, **named))


class PsycopgCursor(Adapter):
    """An asynchronous cursor with a synchronous interface."""

    def __init__(self, cursor: "psycopg.AsyncCursor[Any]") -> None:
        super().__init__(cursor, frozenset({"fetchone", "fetchall", "close"}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def execute(self, query: Any, parameters: Sequence[Any] = (), *, prepare: bool | None = None) -> Self:
        wait(self._adapted.execute(query, parameters or None, prepare=prepare))
        return self


class PsycopgConnection(Adapter):
    """An asynchronous connection with a synchronous interface."""

    def __init__(self, connection: "AsyncConnection[Any]") -> None:
        super().__init__(connection, _OF_CONNECTIONS)
        self.connection = connection

    @property
    def autocommit(self) -> bool:
        return self.connection.autocommit

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        wait(self.connection.set_autocommit(value))

    def cursor(self, **how: Any) -> PsycopgCursor:
        """Return a cursor with %s as marks and, unless *how* says otherwise, tuples as rows."""
        return PsycopgCursor(psycopg.AsyncCursor(self.connection, **{"row_factory": tuple_row} | how))


def adapted(connection: "AsyncConnection[Any]") -> PostgresConnection:
    """Wrap *connection* in the synchronous interface, as far as it is used here."""
    return cast(PostgresConnection, PsycopgConnection(connection))
