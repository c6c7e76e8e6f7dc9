"""A row and a message from tasks, over every asynchronous way to a database: both or neither, in the caller's ways."""
# ruff: noqa: PT012 - the blocks are what is tested

import asyncio
import os
import sqlite3
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession

from meta_client import ByAttribute, TransactionMisuse
from meta_client.aio import Client
from meta_client.coordinator import PrepareFailed
from meta_client.coordinator.errors import CannotEnlist
from meta_client.errors import ClientClosed, NoPartition
from meta_client.transactions import CommitStep, NoDecisionTable, NotConfirmed, TransactionConfig
from tests.fixtures.loops import in_loop, in_uvloop
from tests.meta_client.aio.transactions.ways import WAYS, Opened, asyncpg_words, opened, source
from tests.meta_client.transactions.conftest import World
from tests.meta_client.transactions.test_sqlalchemy import Number

COMMIT_STEPS = [CommitStep.PREPARED, CommitStep.RECORDED, CommitStep.DECIDED, CommitStep.COMMIT_SENT]
every_way = pytest.mark.parametrize("way", WAYS)


def client_of(world: World, **config: Any) -> Client:
    return Client(world.zookeeper, transactions=TransactionConfig(**config))


async def work(client: Client, one: Opened, number: int, *topics: str, **how: Any) -> None:
    """One transaction that writes *number* to all sides."""
    async with client.transaction(one.connection, **how) as transaction:
        await one.execute(f"INSERT INTO numbers VALUES ({number})")
        for topic in topics or ("orders",):
            await transaction.send(topic, str(number).encode())


@in_loop
async def test_a_wait_that_is_bounded_ends_while_a_broker_is_down(world: World) -> None:
    """Other tasks go on meanwhile."""

    def observe(step: CommitStep, gtrid: str) -> None:
        if step is CommitStep.DECIDED:
            world.brokers[1].kill()

    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    async with (
        client_of(world, observer=observe, age_s=1.0, interval_s=0.1) as client,
        opened("psycopg", world.deciding.url) as one,
    ):
        other = asyncio.create_task(take_turns())
        with pytest.raises(NotConfirmed) as raised:
            await work(client, one, 1, "orders", "bills", wait=1.0)
        other.cancel()
        assert raised.value.brokers == (1,)
        assert turns > 20
        world.brokers[1].start()
        await asyncio.to_thread(world.check, [1], topics=("orders", "bills"))
        assert not await asyncio.to_thread(world.prepared)


@every_way
@in_uvloop
async def test_both_or_neither_whatever_has_begun(world: World, way: str) -> None:
    steps: list[CommitStep] = []
    async with (
        client_of(world, observer=lambda step, _: steps.append(step)) as client,
        opened(way, world.deciding.url) as one,
    ):
        await work(client, one, 1, wait=True)
        assert steps == COMMIT_STEPS
        assert await asyncio.to_thread(world.messages) == [1]  # it was waited for
        await one.begin()
        await one.execute("INSERT INTO numbers VALUES (12)")
        await work(client, one, 2, "orders", "bills")
        assert await one.is_idle()
        for is_begun in (False, True):
            if is_begun:
                await one.begin()
            with pytest.raises(ZeroDivisionError):
                async with client.transaction(one.connection) as transaction:
                    await one.execute("INSERT INTO numbers VALUES (9)")
                    await (await transaction.send("orders", b"9"))
                    raise ZeroDivisionError
            assert transaction.step is CommitStep.ROLLED_BACK
            assert await one.is_idle()
        steps.clear()
        async with client.transaction(one.connection):
            await one.execute("INSERT INTO numbers VALUES (13)")
        assert steps == [CommitStep.DECIDED]
        await work(client, one, 3)
        await asyncio.to_thread(world.wait_quiet)
        (counts,) = client.transaction_counts().values()
        assert (counts.rows_deleted, counts.hazards, counts.errors) == (3, 0, 0)
    assert world.deciding.numbers() == [1, 2, 3, 12, 13]
    assert (world.messages("orders"), world.messages("bills")) == ([1, 2, 3], [2])


@every_way
@in_loop
async def test_a_statement_that_fails(world: World, way: str) -> None:
    """The error is raised; a block that continues nevertheless is refused; a savepoint is undone alone."""
    async with client_of(world) as client, opened(way, world.deciding.url) as one:
        with pytest.raises(Exception, match="nowhere"):
            async with client.transaction(one.connection) as transaction:
                await transaction.send("orders", b"1")
                await one.execute("INSERT INTO nowhere VALUES (1)")
        assert await one.is_idle()
        for has_messages in (True, False):
            with pytest.raises(Exception, match=r"a statement failed and the block went on|transaction is aborted"):
                async with client.transaction(one.connection) as transaction:
                    if has_messages:
                        await transaction.send("orders", b"2")
                    with pytest.raises(Exception, match="nowhere"):
                        await one.execute("INSERT INTO nowhere VALUES (1)")
            assert await one.is_idle()
        async with client.transaction(one.connection) as transaction:
            await one.execute("INSERT INTO numbers VALUES (3)")
            nested = getattr(one.connection, "begin_nested", None) or one.connection.transaction
            with pytest.raises(Exception, match="nowhere"):
                async with nested():
                    await one.execute("INSERT INTO nowhere VALUES (1)")
            await transaction.send("orders", b"3")
        await asyncio.to_thread(world.wait_quiet)
    world.check([3])


@every_way
@in_loop
async def test_a_commit_that_the_database_refuses(world: World, way: str) -> None:
    world.deciding.execute("CREATE TABLE once (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    async with client_of(world) as client, opened(way, world.deciding.url) as one:
        for has_messages in (True, False):
            with pytest.raises(Exception, match="duplicate key") as raised:
                async with client.transaction(one.connection) as transaction:
                    await one.execute("INSERT INTO once VALUES (1), (1)")
                    if has_messages:
                        await transaction.send("orders", b"1")
            assert not isinstance(raised.value, PrepareFailed)
            assert await one.is_idle()
        await work(client, one, 2)
        await asyncio.to_thread(world.wait_quiet)
    world.check([2])


@every_way
@in_loop
async def test_a_serialization_failure_comes_out_as_it_is(world: World, way: str) -> None:
    """The decision's row raises the same error, so that a retry on it covers this case."""
    async with client_of(world) as client, source(way, world.deciding.url) as lent, lent.opened() as first:
        async with lent.opened() as second:
            for number, one in enumerate((first, second)):
                await work(client, one, number)
                if hasattr(one.connection, "fetchval"):
                    await one.connection.transaction(isolation="serializable").start()
                else:
                    await one.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
                await one.execute("SELECT sum(n) FROM numbers")
            await second.execute("INSERT INTO numbers VALUES (2)")
            await first.execute("INSERT INTO numbers VALUES (3)")
            await work(client, second, 4)
            with pytest.raises(Exception, match="could not serialize") as raised:
                async with client.transaction(first.connection) as transaction:
                    await transaction.send("orders", b"3")
            assert not isinstance(raised.value, PrepareFailed)
            if isinstance(first.connection, AsyncSession):
                assert isinstance(raised.value, sqlalchemy.exc.DBAPIError)
                assert getattr(raised.value.orig, "sqlstate", None) == "40001"
            assert await first.is_idle()
        await asyncio.to_thread(world.wait_quiet)
    assert (world.deciding.numbers(), world.messages()) == ([0, 1, 2, 4], [0, 1, 4])


@every_way
@in_loop
async def test_blocks_inside_blocks_and_other_tasks(world: World, way: str) -> None:
    async with (
        client_of(world) as client,
        source(way, world.deciding.url) as lent,
        lent.opened() as one,
        lent.opened() as other,
    ):
        producer = client.producer(partitioner=ByAttribute(), compression="zstd")
        async with client.transaction(one.connection, wait=True) as transaction:
            await one.execute("INSERT INTO numbers VALUES (1)")
            with pytest.raises(TransactionMisuse, match="end that block first"):
                await work(client, one, 2)
            await work(client, other, 3)  # a transaction of its own
            transaction.join(producer)
            place = await producer.send("orders", b"1", attribute="same")
            for misuse in (transaction.send, producer.send, producer.send_async):
                with pytest.raises(TransactionMisuse, match="another thread or task"):
                    await asyncio.ensure_future(misuse("orders", b"2"))
            with pytest.raises(TransactionMisuse, match="already"):
                transaction.join(producer)
            with pytest.raises(NoPartition):
                await transaction.send("nowhere", b"1")

            async def go_on() -> None:
                transaction.join()
                handle = await transaction.send("orders", b"1", attribute="same")
                assert (await handle).partition.broker_id == place.partition.broker_id

            await asyncio.create_task(go_on())
        with pytest.raises(TransactionMisuse, match="used once"):
            await transaction.__aenter__()
        with pytest.raises(TransactionMisuse, match="is over"):
            await transaction.send("orders", b"5")
        assert (await producer.send("orders", b"4")).offset is not None  # for itself again
        await asyncio.to_thread(world.wait_quiet)
    assert world.deciding.numbers() == [1, 3]
    assert world.messages() == [1, 1, 3, 4]


@pytest.mark.parametrize("way", ["psycopg", "asyncpg pool", "psycopg session", "asyncpg session"])
@in_loop
async def test_a_send_that_nobody_awaited_rolls_back(world: World, way: str) -> None:
    async with client_of(world) as client, opened(way, world.deciding.url) as one:
        with pytest.raises(TransactionMisuse, match="1 messages may not have been sent"):
            async with client.transaction(one.connection) as transaction:
                await one.execute("INSERT INTO numbers VALUES (1)")
                transaction.send("orders", b"1")
        assert transaction.step is CommitStep.ROLLED_BACK
        await work(client, one, 2)
        await asyncio.to_thread(world.wait_quiet)
    world.check([2])


@pytest.mark.parametrize("way", ["psycopg", "asyncpg"])
@in_loop
async def test_inside_a_block_of_the_driver_s_own(world: World, way: str) -> None:
    async with client_of(world) as client, opened(way, world.deciding.url) as one:
        with pytest.raises(TransactionMisuse, match="put client"):
            async with one.connection.transaction():
                await work(client, one, 1)
        for word in ("COMMIT", "ROLLBACK"):
            with pytest.raises(PrepareFailed, match="ended inside the block"):
                async with client.transaction(one.connection) as transaction:
                    await transaction.send("orders", b"1")
                    await one.execute(word)
        assert await one.is_idle()
        await one.execute("BEGIN")  # in the driver's back
        await work(client, one, 2)
        await asyncio.to_thread(world.wait_quiet)
    world.check([2])


@pytest.mark.parametrize("way", ["psycopg session", "asyncpg session"])
@in_loop
async def test_what_a_commit_of_the_session_does(world: World, way: str) -> None:
    """Flush, events and expiry; a statement that fails in the flush, or is cancelled there, rolls everything back."""
    async with client_of(world) as client, source(way, world.deciding.url) as lent, AsyncSession(lent.made) as session:
        one = Number(n=1)
        async with client.transaction(session, wait=True) as transaction:
            session.add(one)
            await transaction.send("orders", b"1")
        assert sqlalchemy.inspect(one).expired
        await session.refresh(one)
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            async with client.transaction(session) as transaction:
                session.add(Number(n=2))
                await session.execute(sqlalchemy.insert(Number).values(n=2))
                await transaction.send("orders", b"2")
        assert transaction.step is CommitStep.ROLLED_BACK
        async with AsyncSession(lent.made) as holder:
            await holder.execute(sqlalchemy.text("LOCK TABLE numbers IN EXCLUSIVE MODE"))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3), client.transaction(session) as transaction:
                    session.add(Number(n=4))
                    await transaction.send("orders", b"4")
            assert transaction.step is CommitStep.ROLLED_BACK
        async with client.transaction(session) as transaction:
            session.add(Number(n=3))
            with pytest.raises(sqlalchemy.exc.IntegrityError):
                async with session.begin_nested():
                    await session.execute(sqlalchemy.insert(Number).values(n=1))
            await transaction.send("orders", b"3")
        await asyncio.to_thread(world.wait_quiet)
    world.check([1, 3])


@in_loop
async def test_a_client_that_is_closed_inside_the_block(world: World) -> None:
    async with client_of(world) as client, opened("psycopg", world.deciding.url) as one:
        await work(client, one, 1)
        with pytest.raises((PrepareFailed, ClientClosed)):
            async with client.transaction(one.connection) as transaction:
                await one.execute("INSERT INTO numbers VALUES (2)")
                await transaction.send("orders", b"2")
                await client.close()
        assert await one.is_idle()
    await asyncio.to_thread(world.wait_quiet)
    world.check([1])


@in_loop
async def test_what_can_t_take_part(world: World) -> None:
    import asyncpg

    url = world.deciding.url

    async def refused(connection: Any, match: str, kind: type[Exception] = CannotEnlist) -> None:
        with pytest.raises(kind, match=match):
            async with client.transaction(connection):
                pytest.fail("the block must not be entered")

    async with client_of(world) as client:
        for threaded in (
            psycopg.connect(url),
            sqlite3.connect(":memory:"),
            sqlalchemy.create_engine("sqlite://").connect(),
        ):
            await refused(threaded, "would stop the loop.*meta_client.Client")
            threaded.close()
        await refused(object(), "builtins.object can't decide")
        async with await psycopg.AsyncConnection.connect(url, autocommit=True, row_factory=dict_row) as connection:
            async with connection.pipeline():
                await refused(connection, "leave the pipeline first")
            await connection.execute("SET search_path = pg_catalog")
            await refused(connection, "metaq txn init", NoDecisionTable)
            assert connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
        await refused(connection, "open a new one")
        async with asyncpg.create_pool(**asyncpg_words(url), min_size=1, max_size=1) as pool:
            async with pool.acquire() as lent:
                await lent.execute("SET search_path = pg_catalog")
                await refused(lent, "metaq txn init", NoDecisionTable)
                assert not lent.is_in_transaction()
            await refused(lent, "gone back to its pool")
        for driver in ("psycopg", "asyncpg"):
            async with source(f"{driver} session", url) as lent:
                engine = lent.made.execution_options(isolation_level="AUTOCOMMIT")
                async with AsyncSession(engine) as session:
                    await refused(session, "autocommit mode")
                await refused(engine.connect(), "not open")
                async with AsyncSession(lent.made, twophase=True) as session:
                    await refused(session, "meta_client.coordinator")
        with pytest.raises(TypeError):
            async with opened("psycopg", url) as one, client.transaction(one.connection) as transaction:
                await transaction.send("orders", "text")  # type: ignore[arg-type]
    with pytest.raises(ClientClosed):
        client.transaction(connection)
    for way in ("psycopg", "asyncpg pool", "asyncpg session", "psycopg connection"):
        async with opened(way, url) as one:
            with pytest.raises(CannotEnlist, match=r"is for tasks: meta_client\.aio\.Client"):
                world.client.transaction(one.connection)
    world.check([])


@every_way
@in_uvloop
async def test_many_tasks(world: World, way: str) -> None:
    """More than connections; resolvers' are none of the pool's, which are all in use."""
    async with client_of(world) as client, source(way, world.deciding.url) as lent:

        async def requests(task: int) -> None:
            for number in range(5):
                async with lent.opened() as one:
                    await work(client, one, task * 100 + number)

        await asyncio.gather(*(requests(task) for task in range(16)))
        await asyncio.to_thread(world.wait_quiet)
        (counts,) = client.transaction_counts().values()
        assert (counts.rows_deleted, counts.hazards, counts.errors) == (80, 0, 0)
    world.check(sorted(task * 100 + number for task in range(16) for number in range(5)))


@in_loop
async def test_a_forked_child_has_none_of_it(world: World) -> None:
    async with client_of(world) as client, opened("psycopg", world.deciding.url) as one:
        async with client.transaction(one.connection) as transaction:
            await one.execute("INSERT INTO numbers VALUES (1)")
            await transaction.send("orders", b"1")
            if not (child := os.fork()):
                status = 1
                try:
                    transaction.send("orders", b"2")
                except RuntimeError as error:
                    status = 0 if "made before fork" in str(error) else 2
                os._exit(status)
            assert (await asyncio.to_thread(os.waitpid, child, 0))[1] == 0
        await asyncio.to_thread(world.wait_quiet)
    world.check([1])
