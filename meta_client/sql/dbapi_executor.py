"""Executes statements through a PEP 249 connection of any driver: the caller's, in the caller's transaction.

SQLAlchemy compiles the statements and the driver's own cursor executes them. An engine around the connection would
begin, reset and commit the transaction by its own rules.
"""

import sys
from collections.abc import Mapping
from contextlib import closing
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from meta_client.errors import NoDatabase
from meta_client.sql.core import Executable
from meta_client.sql.executor import Executor

if TYPE_CHECKING:
    from sqlalchemy import Compiled, Dialect

# Styles of drivers' parameters, and of the statements for them: every driver of pyformat takes these by position too.
_STYLES: Final = {style: style for style in ("qmark", "format", "numeric", "named")} | {"pyformat": "format"}


class DbapiExecutor(Executor):
    """Through a connection of a driver."""

    def __init__(self, connection: Any) -> None:
        """Raises NoDatabase if *connection* is not of a PEP 249 driver."""
        driver = _driver_of(connection)
        # Names are quoted: PARTITION and OFFSET are words of SQL in some databases.
        super().__init__(connection, driver.Error, quote=True)
        is_mysql = any(name in driver.__name__.lower() for name in ("mysql", "mariadb"))
        self._dialect = _dialect(_STYLES[driver.paramstyle], is_mysql=is_mysql)

    def execute(self, statement: Executable, values: Mapping[str, object]) -> int:
        with closing(self.connection.cursor()) as cursor:
            cursor.execute(*self._compiled(statement, values))
            return int(cursor.rowcount)

    def scalar(self, statement: Executable, values: Mapping[str, object]) -> object:
        with closing(self.connection.cursor()) as cursor:
            cursor.execute(*self._compiled(statement, values))
            rows = list(cursor.fetchall())
        return _first(rows[0]) if rows else None

    def _compiled(self, statement: Executable, values: Mapping[str, object]) -> tuple[str, Any]:
        compiled = _compiled(statement, self._dialect)
        if not values:
            return compiled.string, ()
        given: Mapping[str, Any] = compiled.construct_params(dict(values)) or {}
        names = getattr(compiled, "positiontup", None)
        return compiled.string, given if names is None else tuple(given[name] for name in names)


@lru_cache
def _dialect(style: Any, *, is_mysql: bool) -> "Dialect":
    from sqlalchemy.dialects import mysql
    from sqlalchemy.engine.default import DefaultDialect

    return mysql.dialect(paramstyle=style) if is_mysql else DefaultDialect(paramstyle=style)


@lru_cache(maxsize=128)
def _compiled(statement: Executable, dialect: "Dialect") -> "Compiled":
    compiled: Compiled = cast("Any", statement).compile(dialect=dialect)
    return compiled


def _driver_of(connection: Any) -> Any:
    """Return the PEP 249 module of *connection*. Raises NoDatabase."""
    for kind in type(connection).__mro__:
        name = kind.__module__
        while name:
            module = sys.modules.get(name)
            if getattr(module, "paramstyle", None) in _STYLES and hasattr(module, "Error"):
                return module
            name = name.rpartition(".")[0]
    raise NoDatabase(
        f"{type(connection).__module__}.{type(connection).__name__} is no PEP 249 connection, and no connection or "
        "session of SQLAlchemy: give one that is"
    )


def _first(row: Any) -> object:
    """Return the only column of a row, whatever type the connection uses for rows."""
    return next(iter(row.values())) if isinstance(row, Mapping) else cast("object", row[0])
