"""asyncpg's Connection as a PEP 249 connection, for functions inside `run`: calls suspend the task."""

import functools
import itertools
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Self

import asyncpg

from meta_client.aio.bridge.bridge import wait

CLOSE_S: Final = 5.0
FAILURES: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,  # a TimeoutError, too: of its command_timeout
)
paramstyle: Final = "format"  # by these two names is a module of PEP 249 known
Error: Final = FAILURES


class AsyncpgCursor:
    """One statement and its result."""

    rowcount = -1  # of rows that it changed

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._rows: list[Any] = []

    def execute(self, query: str, parameters: Sequence[Any] = ()) -> Self:
        query = numbered(query)
        if query.startswith("SELECT"):
            self._rows = wait(self._connection.fetch(query, *parameters))
        else:
            count = wait(self._connection.execute(query, *parameters)).rpartition(" ")[2]  # "UPDATE 1", "CREATE TABLE"
            self.rowcount = int(count) if count.isdigit() else -1
        return self

    def fetchone(self) -> Any:
        return self._rows[0] if self._rows else None

    def fetchall(self) -> list[Any]:
        return self._rows

    def close(self) -> None:
        self._rows = []


class AsyncpgConnection:
    """A connection, direct or lent by a pool, with PEP 249's interface."""

    autocommit = True  # outside of a transaction

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    @property
    def in_transaction(self) -> bool:
        return bool(self.connection.is_in_transaction())

    def cursor(self) -> AsyncpgCursor:
        return AsyncpgCursor(self.connection)

    def commit(self) -> None:
        """Do nothing: each statement has committed."""

    def rollback(self) -> None:
        """Do nothing: each statement has committed."""

    def close(self) -> None:
        with suppress(*FAILURES):  # then it is broken off
            wait(self.connection.close(timeout=CLOSE_S))


@functools.lru_cache(maxsize=256)
def numbered(query: str) -> str:
    """Replace %s in *query* by $1, $2, ...."""
    number = itertools.count(1)
    return re.sub("%s", lambda mark: f"${next(number)}", query)
