"""SQLAlchemy's AsyncSession and AsyncConnection: their synchronous counterparts, run in a greenlet as in SQLAlchemy.

The rules are meta_client/transactions/sqlalchemy.py's. The only file here that imports SQLAlchemy; imported when one of
its objects is enlisted. All inside `run`.
"""

from collections.abc import Callable
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session
from sqlalchemy.pool import PoolProxiedConnection

from meta_client.aio.transactions.drivers import driver_session, is_asyncpg
from meta_client.coordinator.errors import CannotEnlist
from meta_client.transactions.deciding import DecidingSession
from meta_client.transactions.sqlalchemy import SqlAlchemySession


def sqlalchemy_session(
    given: AsyncSession | AsyncConnection | async_scoped_session[Any], connect: Callable[[], Any] | None
) -> SqlAlchemySession:
    """Wrap *given* for a transaction. Raises CannotEnlist."""
    return SqlAlchemySession(sync_of(given), connect, _enlisted)


def sync_of(given: AsyncSession | AsyncConnection | async_scoped_session[Any]) -> Session | Connection:
    """Return the synchronous session or connection behind *given*. Raises CannotEnlist."""
    if isinstance(given, AsyncConnection):
        if given.sync_connection is None:
            raise CannotEnlist("the connection is not open: use it inside `async with engine.connect()`")
        return given.sync_connection
    session: AsyncSession = given() if isinstance(given, async_scoped_session) else given
    return session.sync_session


def _enlisted(pooled: PoolProxiedConnection, connect: Callable[[], Any]) -> DecidingSession:
    if is_asyncpg(pooled.driver_connection):
        from meta_client.aio.transactions.asyncpg import AdaptedSession

        return AdaptedSession(pooled.dbapi_connection, connect)
    return driver_session(pooled.driver_connection, connect, is_managed=True)
