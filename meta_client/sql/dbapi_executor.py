"""Executes statements through a PEP 249 connection of any driver: the caller's, in the caller's transaction.

SQLAlchemy compiles the statements and the driver's own cursor executes them. An engine around the connection would
begin, reset and commit the transaction by its own rules.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from meta_client.errors import NoDatabase
from meta_client.sql.core import Executable
from meta_client.sql.executor import Executor

if TYPE_CHECKING:
    from sqlalchemy import Dialect

# Styles of drivers' parameters, and of the statements for them: every driver of pyformat takes these by position too.
_STYLES: Final = {style: style for style in ("qmark", "format", "numeric", "named")} | {"pyformat": "format"}


class DbapiExecutor(Executor):
    """Through a connection of a driver."""

    def __init__(self, connection: Any) -> None:
        """Raises NoDatabase if *connection* is not of a PEP 249 driver."""
        kind: Any = type(connection)
        driver = _driver_of(kind)
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
        text, names = _compiled(statement, self._dialect)
        return text, values if names is None else tuple([values[name] for name in names])


@lru_cache
def _dialect(style: Any, *, is_mysql: bool) -> "Dialect":
    from sqlalchemy.dialects import mysql
    from sqlalchemy.engine.default import DefaultDialect

    return mysql.dialect(paramstyle=style) if is_mysql else DefaultDialect(paramstyle=style)


@lru_cache(maxsize=128)
def _compiled(statement: Executable, dialect: "Dialect") -> tuple[str, Sequence[str] | None]:
    """Return the text of *statement*, and the names of its parameters where the driver takes them by position."""
    compiled: Any = cast("Any", statement).compile(dialect=dialect)
    return compiled.string, getattr(compiled, "positiontup", ())  # DDL has none


@lru_cache(maxsize=128)
def _driver_of(kind: Any) -> Any:
    """Return the PEP 249 module of a class of connections. Raises NoDatabase."""
    for base in kind.__mro__ if hasattr(kind, "cursor") else ():  # pg8000.native's has none
        name = base.__module__
        while name:
            module = sys.modules.get(name)
            if getattr(module, "paramstyle", None) in _STYLES and hasattr(module, "Error"):
                return module
            name = name.rpartition(".")[0]
    raise NoDatabase(
        f"{kind.__module__}.{kind.__name__} is no PEP 249 connection, and no connection or "
        "session of SQLAlchemy: give one that is"
    )


def _first(row: Any) -> object:
    """Return the only column of a row, whatever type the connection uses for rows."""
    return next(iter(row.values())) if isinstance(row, Mapping) else cast("object", row[0])
