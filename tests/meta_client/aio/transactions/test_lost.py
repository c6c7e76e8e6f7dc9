"""Connections that are lost inside a block, or inside its COMMIT: what became of it is found out."""

import asyncio
import contextlib

import psycopg
import pytest

from meta_client.coordinator import DecisionUnknown, PrepareFailed
from meta_client.transactions import CommitStep, commit_sequence
from tests.fixtures.loops import in_loop, until
from tests.meta_client.aio.transactions.test_cancelled import client_of
from tests.meta_client.aio.transactions.ways import WAYS, opened
from tests.meta_client.transactions.conftest import World
from tests.meta_client.transactions.test_crashes import Cut

# A COMMIT that waits for whoever holds the lock.
HOLD = (
    "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql\n"
    "AS 'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END'",
    "CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON numbers DEFERRABLE INITIALLY DEFERRED\n"
    "FOR EACH ROW EXECUTE FUNCTION hold()",
)
WAITING = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
every_way = pytest.mark.parametrize("way", WAYS)


@every_way
@pytest.mark.parametrize("loses_answer", [True, False])
@in_loop
async def test_inside_commit(world: World, way: str, loses_answer: bool) -> None:
    info = psycopg.conninfo.conninfo_to_dict(world.deciding.url)
    with contextlib.closing(Cut(int(info["port"] or 0), loses_answer=loses_answer)) as cut:
        dsn = psycopg.conninfo.make_conninfo(world.deciding.url, port=cut.port)
        outcome = contextlib.nullcontext() if loses_answer else pytest.raises(PrepareFailed, match="turned out")
        async with client_of(world) as client, opened(way, dsn) as one:
            with outcome:
                async with client.transaction(one.connection) as transaction:
                    await one.execute("INSERT INTO numbers VALUES (1)")
                    await transaction.send("orders", b"1")
            if "session" in way or "connection" in way:  # they go on with another one
                async with client.transaction(one.connection) as transaction:
                    await one.execute("INSERT INTO numbers VALUES (2)")
                    await transaction.send("orders", b"2")
            else:
                assert await one.is_closed()
            await asyncio.to_thread(world.wait_quiet)
    rows = [1] * loses_answer + [2] * ("session" in way or "connection" in way)
    world.check(rows)


@pytest.mark.parametrize("way", ["psycopg", "asyncpg", "asyncpg session"])
@in_loop
async def test_a_database_that_can_t_be_asked(world: World, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller gets an unknown outcome; the resolver that reaches the database ends it."""
    monkeypatch.setattr(commit_sequence, "UNKNOWN_S", 0.5)
    info = psycopg.conninfo.conninfo_to_dict(world.deciding.url)
    with contextlib.closing(Cut(int(info["port"] or 0), loses_answer=False)) as cut:
        dsn = psycopg.conninfo.make_conninfo(world.deciding.url, port=cut.port)

        def close(step: CommitStep, gtrid: str) -> None:
            if step is CommitStep.RECORDED:
                cut.close()

        async with client_of(world, observer=close) as client:
            with contextlib.suppress(psycopg.Error, OSError):  # of a session that ends
                async with opened(way, dsn) as one:
                    with pytest.raises(DecisionUnknown, match="can't be asked"):  # noqa: PT012
                        async with client.transaction(one.connection) as transaction:
                            await one.execute("INSERT INTO numbers VALUES (1)")
                            await transaction.send("orders", b"1")
            assert await asyncio.to_thread(world.prepared)
            world.client.resolve(world.deciding.url)
            await asyncio.to_thread(world.wait_quiet)
    world.check([])


@every_way
@pytest.mark.parametrize("at", [None, CommitStep.PREPARED, CommitStep.RECORDED])
@in_loop
async def test_before_commit(world: World, way: str, at: CommitStep | None) -> None:
    """Rolled back, whatever is raised; no COMMIT is taken for sent that was not."""

    def cut(step: CommitStep | None, gtrid: str) -> None:
        if step is at and not cuts:
            cuts.append(gtrid)
            world.deciding.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'"
            )

    cuts: list[str] = []
    async with client_of(world, observer=cut) as client:
        with contextlib.suppress(psycopg.Error):  # of a pool that gets it back
            async with opened(way, world.deciding.url) as one:
                with pytest.raises(Exception) as raised:  # noqa: PT012 - the block is what is tested
                    async with client.transaction(one.connection) as transaction:
                        await one.execute("INSERT INTO numbers VALUES (1)")
                        await transaction.send("orders", b"1")
                        cut(None, "in the block")
                assert "pytest" not in type(raised.value).__module__
                assert transaction.step in (CommitStep.ROLLED_BACK, CommitStep.RECORDED)
        async with opened(way, world.deciding.url) as one, client.transaction(one.connection) as transaction:
            await one.execute("INSERT INTO numbers VALUES (2)")
            await transaction.send("orders", b"2")
        await asyncio.to_thread(world.wait_quiet)
    world.check([2])


@pytest.mark.parametrize("way", ["asyncpg", "asyncpg pool"])
@in_loop
async def test_terminated_inside_commit_by_another_task(world: World, way: str) -> None:
    """Asyncpg does so itself when it can't cancel a COMMIT that exceeds its command_timeout."""
    for statement in HOLD:
        world.deciding.execute(statement)
    with contextlib.closing(world.deciding.connect()) as holder:
        holder.execute("SELECT pg_advisory_xact_lock(7)")
        async with client_of(world) as client, opened(way, world.deciding.url) as one:

            async def work() -> None:
                async with client.transaction(one.connection) as transaction:
                    await one.execute("INSERT INTO numbers VALUES (1)")
                    await transaction.send("orders", b"1")

            task = asyncio.create_task(work())
            await until(lambda: bool(world.deciding.query(WAITING)))
            one.connection.terminate()
            holder.rollback()
            await task
        await asyncio.to_thread(world.wait_quiet)
    world.check([1])
