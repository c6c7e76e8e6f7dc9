"""Selects the database that decides, by the caller's asynchronous connection."""

import functools
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from meta_client.aio.transactions.drivers import driver_session
from meta_client.aio.transactions.private_loop import connected
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
