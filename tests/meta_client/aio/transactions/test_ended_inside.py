"""A task's caller ends the block's database transaction by SQL, and goes on in another one: no message goes with it."""
# ruff: noqa: PT012 - the blocks are what is tested

import asyncio

import asyncpg
import pytest

from meta_client.aio import Client
from meta_client.coordinator import PrepareFailed
from tests.fixtures.loops import in_loop
from tests.meta_client.aio.transactions.ways import WAYS, opened
from tests.meta_client.transactions.conftest import World
from tests.meta_client.transactions.test_unsound_tables import TRIGGER


@pytest.mark.parametrize("way", [way for way in WAYS if "pool" not in way])
@in_loop
async def test_it_is_told(world: World, way: str) -> None:
    async with Client(world.zookeeper) as client, opened(way, world.deciding.url) as one:
        for is_begun in (False, True):
            if is_begun:
                await one.begin()
            with pytest.raises(PrepareFailed, match="ended inside the block"):
                async with client.transaction(one.connection) as transaction:
                    await one.execute("INSERT INTO numbers VALUES (1)")
                    await transaction.send("orders", b"1")
                    await one.execute("ROLLBACK AND CHAIN")
                    await one.execute("INSERT INTO numbers VALUES (2)")
            assert await one.is_idle()
        async with client.transaction(one.connection) as transaction:
            await one.execute("INSERT INTO numbers VALUES (3)")
            await transaction.send("orders", b"3")
        await asyncio.to_thread(world.wait_quiet)
    world.check([3])


@pytest.mark.parametrize("way", [way for way in WAYS if "pool" not in way])
@in_loop
async def test_a_trigger_that_keeps_decisions_out(world: World, way: str) -> None:
    world.deciding.execute(TRIGGER)
    async with Client(world.zookeeper) as client, opened(way, world.deciding.url) as one:
        with pytest.raises(PrepareFailed, match="a trigger"):
            async with client.transaction(one.connection) as transaction:
                await one.execute("INSERT INTO numbers VALUES (1)")
                await transaction.send("orders", b"1")
        await asyncio.to_thread(world.wait_quiet)
    world.check([])


@in_loop
async def test_a_stream_that_was_left(world: World) -> None:
    """It holds psycopg's lock, so that ROLLBACK would wait without end: the connection is closed instead."""
    async with Client(world.zookeeper) as client, opened("psycopg", world.deciding.url) as one:
        with pytest.raises(PrepareFailed, match="leave pipelines and streams"):
            async with client.transaction(one.connection) as transaction:
                await one.execute("INSERT INTO numbers VALUES (1)")
                await transaction.send("orders", b"1")
                rows = one.connection.cursor().stream("SELECT generate_series(1, 1000)")
                await anext(rows)
        assert await one.is_closed()
        await rows.aclose()
        await asyncio.to_thread(world.wait_quiet)
    world.check([])


@pytest.mark.parametrize("end", ["commit", "rollback"])
@in_loop
async def test_the_callers_transaction_object_of_asyncpg_knows_that_it_is_committed(world: World, end: str) -> None:
    """Its rollback() must not seem to undo what is committed, nor end a transaction that was begun since."""
    async with Client(world.zookeeper) as client, opened("asyncpg", world.deciding.url) as one:
        own = one.connection.transaction()
        await own.start()
        async with client.transaction(one.connection) as transaction:
            await one.execute("INSERT INTO numbers VALUES (1)")
            await transaction.send("orders", b"1")
        with pytest.raises(asyncpg.InterfaceError, match="already committed"):
            await getattr(own, end)()
        await asyncio.to_thread(world.wait_quiet)
    world.check([1])
