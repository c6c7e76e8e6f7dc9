"""Which databases can decide: by the connection that a caller gives, and by URL."""

import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from meta_client.coordinator.errors import CannotEnlist
from meta_client.transactions.table import DecisionTable, DriverSession, Identity, Session

_SQLITE: Final = "sqlite:"
_POSTGRES: Final = ("postgresql", "postgres")


class Change(Enum):
    """What becomes of the identity of a table that is there already."""

    KEEP = "keep"
    MOVED = "moved"  # it belongs here from now on
    COPIED = "copied"  # it becomes a table of its own, and the rows of the original go


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of database, at one place."""

    where: str
    open_table: Callable[[str], DecisionTable]
    ddl: Callable[[str, int], str]
    initialise: Callable[[str, int, str], Identity]


def session_of(connection: Any, connect: Callable[[], Any] | None = None) -> Session:
    """*connection* as a transaction uses it. *connect* makes another one for whoever finishes a transaction, where what
    *connection* was made with will not do. Raises CannotEnlist for what can't decide."""
    if isinstance(connection, Session):  # a framework's: django
        return connection
    if _is_sqlalchemy(connection):
        from meta_client.transactions.sqlalchemy import SqlAlchemySession

        return SqlAlchemySession(connection, connect)
    return driver_session(connection, connect)


def driver_session(
    connection: Any, connect: Callable[[], Any] | None = None, *, is_managed: bool = False
) -> DriverSession:
    """As session_of, for a connection of a driver. *is_managed*: a framework begins and ends its transactions."""
    if isinstance(connection, sqlite3.Connection):
        from meta_client.transactions.sqlite import SqliteSession

        return SqliteSession(connection)
    psycopg = sys.modules.get("psycopg")  # whose connection this can't be unless it was imported
    if psycopg is not None and isinstance(connection, psycopg.Connection):
        from meta_client.transactions.postgres import PostgresSession

        return PostgresSession(connection, connect, is_managed=is_managed)
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise CannotEnlist(
        f"a {kind} can't decide about messages: give a connection of psycopg 3 (SQLAlchemy: postgresql+psycopg://...) "
        f"or of sqlite3; in Django, use meta_client.transactions.django.send_on_commit"
    )


def _is_sqlalchemy(connection: Any) -> bool:
    """Whether it is a Session, a Connection, or the scoped_session of one: none, unless its module was imported."""
    orm, engine = sys.modules.get("sqlalchemy.orm"), sys.modules.get("sqlalchemy.engine")
    kinds = (*((orm.Session, orm.scoped_session) if orm else ()), *((engine.Connection,) if engine else ()))
    return isinstance(connection, kinds)


def table_at(url: str) -> DecisionTable:
    """The decision table of the database at *url*. Raises CannotEnlist, NoDecisionTable, CopiedTable, Unreachable."""
    kind = _kind(url)
    return kind.open_table(kind.where)


def ddl_for(url: str, keep_s: int) -> str:
    """What `init` executes in the database at *url*."""
    kind = _kind(url)
    return kind.ddl(kind.where, keep_s)


def init(url: str, keep_s: int, change: Change = Change.KEEP) -> Identity:
    """Make the table and its identity, unless they are there, and *change* that. Raises as table_at."""
    kind = _kind(url)
    return kind.initialise(kind.where, keep_s, change.value)


def _kind(url: str) -> _Kind:
    if url.startswith(_SQLITE):
        from meta_client.transactions import sqlite

        path = unquote(urlsplit(url).path)[1:]  # as SQLAlchemy has it: three slashes before a relative path
        if not path:
            raise CannotEnlist(f"{url} names no file: give sqlite:///relative/path or sqlite:////absolute/path")
        return _Kind(path, sqlite.open_table, sqlite.ddl, sqlite.initialise)
    scheme, mark, rest = url.partition("://")
    if mark and scheme.partition("+")[0] not in _POSTGRES:
        raise CannotEnlist(f"{scheme!r} is no kind of database that can decide: give postgresql://... or sqlite:///...")
    from meta_client.transactions import postgres  # psycopg: metaq-broker[postgres]

    # SQLAlchemy's names of drivers mean nothing to libpq; a text without :// is libpq's own.
    where = f"{scheme.partition('+')[0]}{mark}{rest}" if mark else url
    return _Kind(where, postgres.open_table, postgres.ddl, postgres.initialise)
