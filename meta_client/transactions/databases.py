"""Selects the kind of database that decides, by the caller's connection or by URL."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

from meta_client.coordinator.errors import CannotEnlist
from meta_client.transactions.drivers import driver_session
from meta_client.transactions.table import DecisionTable, Session, TableIdentity

_SQLITE: Final = "sqlite:"
_POSTGRES: Final = ("postgresql", "postgres")
_MYSQL: Final = ("mysql", "mariadb")


class Change(Enum):
    """Treatment of the identity of an existing table."""

    KEEP = "keep"
    MOVED = "moved"  # this database becomes its home
    COPIED = "copied"  # it gets a new identity, and the original's rows are deleted


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of database, at one place."""

    name: str
    where: str
    open_table: Callable[[str], DecisionTable]
    ddl: Callable[[str, int], str]
    initialise: Callable[[str, int, str], TableIdentity]


def session_of(connection: Any, connect: Callable[[], Any] | None = None) -> Session:
    """Wrap *connection* for a transaction. *connect* makes another connection for the resolver where the parameters of
    *connection* cannot. Raises CannotEnlist for anything that can't decide."""
    if issubclass(type(connection), Session):  # a framework's: django. issubclass caches its answer by class
        return cast(Session, connection)
    if _is_sqlalchemy(connection):
        from meta_client.transactions.sqlalchemy import SqlAlchemySession

        return SqlAlchemySession(connection, connect)
    return driver_session(connection, connect)


def _is_sqlalchemy(connection: Any) -> bool:
    """True for a Session, a Connection, or a scoped_session. Doesn't import SQLAlchemy."""
    orm, engine = sys.modules.get("sqlalchemy.orm"), sys.modules.get("sqlalchemy.engine")
    kinds = (*((orm.Session, orm.scoped_session) if orm else ()), *((engine.Connection,) if engine else ()))
    return isinstance(connection, kinds)


def table_at(url: str) -> DecisionTable:
    """Open the decision table of the database at *url*. Raises CannotEnlist, NoDecisionTable, CopiedTable,
    Unreachable."""
    kind = _kind(url)
    return kind.open_table(kind.where)


def place_of_url(url: str) -> tuple[str, str]:
    """Return "sqlite", "mysql" or "postgres", and the place in its driver's form. Raises CannotEnlist."""
    kind = _kind(url)
    return kind.name, kind.where


def ddl_for(url: str, keep_s: int) -> str:
    """Return the SQL that `init` executes in the database at *url*."""
    kind = _kind(url)
    return kind.ddl(kind.where, keep_s)


def init(url: str, keep_s: int, change: Change = Change.KEEP) -> TableIdentity:
    """Create the table and its identity if missing, then apply *change*. Raises as table_at."""
    kind = _kind(url)
    return kind.initialise(kind.where, keep_s, change.value)


def _kind(url: str) -> _Kind:
    try:
        return _found(url)
    except ModuleNotFoundError as error:
        raise CannotEnlist(
            f"the database needs the package {error.name}, which is not installed: pip install "
            f"'metaq-broker[postgres]', or [mysql]"
        ) from error


def _found(url: str) -> _Kind:
    if url.startswith(_SQLITE):
        from meta_client.transactions import sqlite

        path = unquote(urlsplit(url).path)[1:]  # three slashes before a relative path, as in SQLAlchemy
        if not path:
            raise CannotEnlist(f"{url} names no file: give sqlite:///relative/path or sqlite:////absolute/path")
        return _Kind("sqlite", path, sqlite.open_table, sqlite.ddl, sqlite.initialise)
    scheme, mark, rest = url.partition("://")
    if scheme.partition("+")[0] in _MYSQL:
        from meta_client.transactions import mysql  # PyMySQL: metaq-broker[mysql]

        return _Kind("mysql", url, mysql.open_table, mysql.ddl, mysql.initialise)
    if mark and scheme.partition("+")[0] not in _POSTGRES:
        raise CannotEnlist(
            f"{scheme!r} is no kind of database that can decide: give postgresql://..., mysql://..., mariadb://... or "
            f"sqlite:///..."
        )
    from meta_client.transactions import postgres  # psycopg: metaq-broker[postgres]

    # libpq does not know SQLAlchemy's driver names; a text without :// is a libpq connection string.
    where = f"{scheme.partition('+')[0]}{mark}{rest}" if mark else url
    return _Kind("postgres", where, postgres.open_table, postgres.ddl, postgres.initialise)
