"""Supported drivers, and the session for a driver's connection."""

import inspect
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

from meta_client.coordinator.errors import CannotEnlist
from meta_client.transactions.dbapi import DbapiSession
from meta_client.transactions.deciding import DecidingSession
from meta_client.transactions.postgres_plain import driver_of


def driver_session(
    connection: Any, connect: Callable[[], Any] | None = None, *, is_managed: bool = False
) -> DecidingSession:
    """Wrap a driver's connection for a transaction. *is_managed*: a framework begins and ends its transactions.

    *connect* makes another connection for the resolver. Raises CannotEnlist for anything that can't decide.
    """
    if isinstance(connection, sqlite3.Connection):
        from meta_client.transactions.sqlite import SqliteSession

        return SqliteSession(connection)
    psycopg = sys.modules.get("psycopg")  # a connection implies an imported module
    if psycopg is not None and isinstance(connection, psycopg.Connection):
        from meta_client.transactions.postgres import PostgresSession

        return PostgresSession(connection, connect, is_managed=is_managed)
    if (pymysql := sys.modules.get("pymysql")) is not None and isinstance(connection, pymysql.connections.Connection):
        from meta_client.transactions.mysql import DRIVER

        return DbapiSession(connection, DRIVER, connect, is_managed=is_managed)
    if (driver := driver_of(connection)) is not None:
        return DbapiSession(connection, driver, connect, is_managed=is_managed)
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    if inspect.iscoroutinefunction(inspect.unwrap(getattr(connection, "execute", driver_session))):
        raise CannotEnlist(
            f"a {kind} is for tasks: meta_client.aio.Client takes it; or give a psycopg.Connection, a "
            f"sqlite3.Connection, or a Session or Connection of SQLAlchemy over one"
        )
    raise CannotEnlist(
        f"a {kind} can't decide about messages: give a connection of psycopg 3 (SQLAlchemy: postgresql+psycopg://...), "
        f"of psycopg2, pg8000, PyMySQL (mysql+pymysql://...) or sqlite3; in Django, use "
        f"meta_client.transactions.frameworks.django.send_on_commit"
    )
