"""Supported asynchronous drivers, and the session for a driver's connection."""

import sys
from collections.abc import Callable
from typing import Any

from meta_client.coordinator.errors import CannotEnlist
from meta_client.transactions.databases import session_of as threaded_session_of
from meta_client.transactions.deciding import DecidingSession


def driver_session(
    connection: Any, connect: Callable[[], Any] | None = None, *, is_managed: bool = False
) -> DecidingSession:
    """Wrap a driver's connection for a transaction. *connect* is called inside `run`. *is_managed*: a framework begins
    and ends its transactions."""
    if is_psycopg(connection):
        from meta_client.aio.transactions.postgres import AsyncPostgresSession

        return AsyncPostgresSession(connection, connect, is_managed=is_managed)
    if is_asyncpg(connection):
        from meta_client.aio.transactions.asyncpg import AsyncpgSession

        return AsyncpgSession(connection, connect)
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    give = (
        "give a psycopg.AsyncConnection, an asyncpg.Connection, or an AsyncSession or AsyncConnection of SQLAlchemy "
        "over one (postgresql+psycopg://..., postgresql+asyncpg://...)"
    )
    if _is_for_threads(connection):
        raise CannotEnlist(
            f"a {kind} would stop the loop whenever it waits: {give}; meta_client.Client, the client with threads, "
            f"takes this one"
        )
    raise CannotEnlist(f"a {kind} can't decide about messages: {give}")


def _is_for_threads(connection: Any) -> bool:
    try:
        threaded_session_of(connection)
    except CannotEnlist:
        return False
    return True


def is_psycopg(connection: Any) -> bool:
    """True for psycopg's AsyncConnection. Doesn't import psycopg."""
    psycopg = sys.modules.get("psycopg")
    return psycopg is not None and isinstance(connection, psycopg.AsyncConnection)


def is_asyncpg(connection: Any) -> bool:
    """True for asyncpg's connections, direct or lent by a pool."""
    asyncpg = sys.modules.get("asyncpg")
    return asyncpg is not None and isinstance(connection, asyncpg.Connection)
