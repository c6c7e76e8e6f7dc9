"""A session that sets its search path, as one for many tenants does: its resolver finds the table that it found."""

import asyncio
import time
from contextlib import closing

import pytest
from psycopg.conninfo import make_conninfo

from meta_client import aio
from meta_client.transactions.databases import init
from meta_client.transactions.table import KEEP_S
from tests.meta_client.aio.transactions.ways import opened
from tests.meta_client.transactions.conftest import World
from tests.meta_client.transactions.test_made_again import Service


@pytest.fixture
def tenants(world: World) -> World:
    """Each has its tables; those of the search path that a connection begins with are another one's."""
    for tenant in ("one", "two"):
        world.deciding.execute(f"CREATE SCHEMA {tenant}; CREATE TABLE {tenant}.numbers (n int PRIMARY KEY)")
        there = make_conninfo(world.deciding.url, options=f"-csearch_path={tenant}")
        world.deciding.identity = init(there, KEEP_S)
    return world


SET = "SET search_path = two"


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000.dbapi", "psycopg+sqlalchemy"])
def test_of_a_thread(tenants: World, driver: str) -> None:
    service = Service(driver, tenants)
    with closing(service):
        service.execute(SET)
        service.connection.commit()
        service.work(1)
    check(tenants)


@pytest.mark.parametrize("way", ["psycopg", "asyncpg", "psycopg session", "asyncpg session"])
def test_of_a_task(tenants: World, way: str) -> None:
    async def main() -> None:
        async with opened(way, tenants.deciding.url) as one, aio.Client(tenants.zookeeper) as client:
            await one.execute(SET)
            async with client.transaction(one.connection) as transaction:
                await one.execute("INSERT INTO numbers VALUES (1)")
                await transaction.send("orders", b"1")
            await asyncio.sleep(2)

    asyncio.run(main())
    check(tenants)


@pytest.mark.parametrize("driver", ["pymysql", "pymysql+sqlalchemy"])
def test_in_another_database(maria_world: World, driver: str) -> None:
    """In MySQL a database is what a schema is elsewhere."""
    home = maria_world.deciding.query("SELECT DATABASE()")[0][0]
    for statement in (f"CREATE DATABASE {home}_two", f"CREATE TABLE {home}_two.numbers (n int PRIMARY KEY)"):
        maria_world.deciding.execute(statement)
    maria_world.deciding.identity = init(f"{maria_world.deciding.url}_two", KEEP_S)
    service = Service(driver, maria_world)
    try:
        with closing(service):
            service.execute(f"USE {home}_two")
            service.work(1)
        check(maria_world, f"{home}_two")
    finally:
        maria_world.deciding.execute(f"DROP DATABASE {home}_two")


def check(world: World, schema: str = "two") -> None:
    deadline = time.monotonic() + 20
    while world.deciding.query(f"SELECT 1 FROM {schema}.metaq_decision WHERE outcome = 'commit'"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert world.deciding.query(f"SELECT n FROM {schema}.numbers") == [(1,)]
    assert world.messages() == [1]
