"""Every asynchronous way to a PostgreSQL database, under one name each: for tests, and for the services they kill."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine

DRIVERS = ("psycopg", "asyncpg")
WAYS = tuple(f"{driver}{kind}" for driver in DRIVERS for kind in ("", " pool", " session", " connection"))


@dataclass
class Opened:
    """One caller's connection: *connection* is given to the client."""

    connection: Any

    async def execute(self, statement: str) -> None:
        alchemy = isinstance(self.connection, AsyncSession | AsyncConnection)
        await self.connection.execute(sqlalchemy.text(statement) if alchemy else statement)

    async def begin(self) -> None:
        """Read, like a program that has read something: where each statement commits alone, it says so."""
        if hasattr(self.connection, "fetchval"):
            await self.connection.transaction().start()
        await self.execute("SELECT count(*) FROM numbers")

    async def is_idle(self) -> bool:
        """True if it is in no transaction."""
        if isinstance(self.connection, AsyncSession | AsyncConnection):
            return not self.connection.in_transaction()
        if isinstance(self.connection, psycopg.AsyncConnection):
            return self.connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
        return not self.connection.is_in_transaction()

    async def is_closed(self) -> bool:
        if isinstance(self.connection, AsyncSession | AsyncConnection):
            return False
        if isinstance(self.connection, psycopg.AsyncConnection):
            return self.connection.closed
        driver = getattr(self.connection, "_con", self.connection)  # a pool takes back what is lost
        return driver is None or bool(driver.is_closed())


@contextlib.asynccontextmanager
async def opened(way: str, dsn: str) -> AsyncIterator[Opened]:
    """A connection of its own, or what stands for one."""
    async with source(way, dsn) as lent, lent.opened() as one:
        yield one


@dataclass
class Source:
    """Source of connections. *made*: a pool, an engine, or the database itself."""

    way: str
    dsn: str
    made: Any

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Opened]:
        if isinstance(self.made, AsyncEngine):
            is_session = self.way.endswith("session")
            async with AsyncSession(self.made) if is_session else self.made.connect() as given:
                yield Opened(given)
        elif self.made is not None:
            async with self.made.connection() if self.way == "psycopg pool" else self.made.acquire() as lent:
                yield Opened(lent)
        elif self.way == "psycopg":
            async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
                yield Opened(connection)
        else:
            connection = await asyncpg.connect(**asyncpg_words(self.dsn))
            try:
                yield Opened(connection)
            finally:
                await connection.close()


@contextlib.asynccontextmanager
async def source(way: str, dsn: str, size: int = 4) -> AsyncIterator[Source]:
    """A source of at most *size* connections, if it is a pool."""
    driver, _, kind = way.partition(" ")
    if way == "psycopg pool":
        async with AsyncConnectionPool(dsn, min_size=1, max_size=size, open=False) as pool:
            yield Source(way, dsn, pool)
    elif way == "asyncpg pool":
        async with asyncpg.create_pool(**asyncpg_words(dsn), min_size=1, max_size=size) as pool:
            yield Source(way, dsn, pool)
    elif kind:
        engine = async_engine(driver, dsn, pool_size=size, max_overflow=0)
        try:
            yield Source(way, dsn, engine)
        finally:
            await engine.dispose()
    else:
        yield Source(way, dsn, None)


def async_engine(driver: str, dsn: str, **options: Any) -> AsyncEngine:
    words = conninfo_to_dict(dsn)
    query = {name: str(value) for name, value in words.items() if name in ("host", "port")}
    named = {"username": words.get("user"), "password": words.get("password"), "database": words.get("dbname")}
    url = sqlalchemy.URL.create(f"postgresql+{driver}", query=query, **named)  # type: ignore[arg-type]
    return create_async_engine(url, **options)


def asyncpg_words(dsn: str) -> dict[str, Any]:
    """libpq's *dsn* in asyncpg's words."""
    names = {"user": "user", "password": "password", "host": "host", "port": "port", "dbname": "database"}
    return {names[name]: value for name, value in conninfo_to_dict(dsn).items() if name in names}
