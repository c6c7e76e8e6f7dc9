"""Selects the database that decides, by the caller's asynchronous connection."""

import functools
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from meta_client.aio.transactions.drivers import driver_session, is_asyncpg, is_psycopg
from meta_client.aio.transactions.private_loop import connected
from meta_client.errors import NoDatabase
from meta_client.transactions.table import Session


def session_of(connection: Any, connect: Callable[[], Awaitable[Any]] | None = None) -> Session:
    """Wrap *connection* for a transaction, inside `run`. *connect* makes another connection for the resolver, where the
    parameters of *connection* cannot. Raises CannotEnlist for anything that can't decide."""
    again = None if connect is None else functools.partial(connected, connect)
    if is_sqlalchemy(connection):
        from meta_client.aio.transactions.sqlalchemy import sqlalchemy_session

        return sqlalchemy_session(connection, again)
    return driver_session(connection, again)


def is_sqlalchemy(connection: Any) -> bool:
    """True for an AsyncSession, an AsyncConnection, or the async_scoped_session of one."""
    asyncio = sys.modules.get("sqlalchemy.ext.asyncio")
    kinds = (asyncio.AsyncSession, asyncio.AsyncConnection, asyncio.async_scoped_session) if asyncio else ()
    return isinstance(connection, kinds)


def sync_connection(connection: Any) -> Any:
    """Return *connection* as statements of ours use it inside `run`: with PEP 249's interface, or as SQLAlchemy's own
    for threads. Raises NoDatabase."""
    if is_sqlalchemy(connection):
        from meta_client.aio.transactions.sqlalchemy import sync_of

        return sync_of(connection)
    if is_psycopg(connection):
        from meta_client.aio.bridge.psycopg_adapter import adapted

        return adapted(connection)
    if is_asyncpg(connection):
        from meta_client.aio.bridge.asyncpg_adapter import AsyncpgConnection

        return AsyncpgConnection(connection)
    raise NoDatabase(
        f"{type(connection).__module__}.{type(connection).__name__} is no connection for tasks: give an "
        "AsyncConnection of psycopg, a Connection of asyncpg, or a session or connection of SQLAlchemy's asyncio"
    )
