"""A row and a message from tasks: both or neither, whatever ends, at every step."""

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import psycopg
import pytest
from psycopg.rows import dict_row

from meta_client.aio.client import Client
from meta_client.aio.coordinator import Coordinator
from meta_client.coordinator.errors import CannotEnlist, CoordinatorClosed
from meta_client.coordinator.steps import TwoPhaseStep
from meta_client.errors import TransactionMisuse
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.loops import in_loop, in_uvloop
from tests.fixtures.postgres import Database
from tests.meta_client.aio.producer.test_producer import consumed
from zk.embedded.chroot import Chroot

REQUESTS = int(os.environ.get("METAQ_CRASH_ROUNDS", "25"))  # of each of eight tasks
PLACED_BY_A_SERVICE = """
import asyncio, os, sys
import psycopg
from meta_client.aio import Client
from meta_client.aio.coordinator import Coordinator

zookeeper, dsn, directory, last = sys.argv[1:]


def die(step, xid):
    if step.name == last:
        os._exit(9)


async def main():
    async with (
        Client(zookeeper) as client,
        await psycopg.AsyncConnection.connect(dsn) as connection,
        await Coordinator.open(directory, name="shop", observer=die) as coordinator,
        coordinator.transaction(connection, client.producer(qualifier="shop"), topics=("orders",)) as transaction,
    ):
        await connection.execute("INSERT INTO placed VALUES (%s)", [last])
        await transaction.producer.send_async("orders", last.encode())


asyncio.run(main())
"""


@pytest.fixture
def table(database: Database) -> Database:
    with psycopg.connect(database.dsn) as connection:
        connection.execute("CREATE TABLE placed (id text PRIMARY KEY)")
    return database


def rows(database: Database) -> set[str]:
    assert database.prepared() == []
    with psycopg.connect(database.dsn) as connection:
        return {row[0] for row in connection.execute("SELECT id FROM placed").fetchall()}


@in_uvloop
async def test_both_or_neither_and_many_tasks_at_once(
    zookeeper: Chroot, broker: BrokerProcess, table: Database, tmp_path: Path
) -> None:
    async with (
        Client(zookeeper.connect) as client,
        await Coordinator.open(tmp_path / "decisions", name="shop") as coordinator,
    ):

        async def place(number: int) -> None:
            producer = client.producer(qualifier="shop")
            async with await psycopg.AsyncConnection.connect(table.dsn, row_factory=dict_row) as connection:
                for message in range(5):
                    name = f"{number}-{message}"
                    transaction = coordinator.transaction(connection, producer, topics=("orders",))
                    try:
                        async with transaction:
                            await connection.execute("INSERT INTO placed VALUES (%s)", [name])
                            await producer.send_async("orders", name.encode())
                            if message == 3:
                                raise LookupError(name)
                    except LookupError:
                        assert transaction.step is TwoPhaseStep.ROLLED_BACK
                    else:
                        assert transaction.step is TwoPhaseStep.FORGOTTEN

        await asyncio.gather(*(place(number) for number in range(8)))
    expected = {f"{number}-{message}" for number in range(8) for message in (0, 1, 2, 4)}
    assert rows(table) == expected
    assert await asyncio.to_thread(consumed, zookeeper, "orders") == Counter(name.encode() for name in expected)


@in_loop
async def test_a_service_killed_at_any_step_is_finished_by_the_next(
    zookeeper: Chroot, broker: BrokerProcess, table: Database, tmp_path: Path
) -> None:
    steps = [
        TwoPhaseStep.BEGUN,
        TwoPhaseStep.PREPARED_BROKER,
        TwoPhaseStep.PREPARED_DATABASE,
        TwoPhaseStep.DECIDED,
        TwoPhaseStep.COMMITTED_DATABASE,
        TwoPhaseStep.COMMITTED_BROKER,
    ]
    directory = tmp_path / "decisions"
    for step in steps:
        words = [sys.executable, "-c", PLACED_BY_A_SERVICE, zookeeper.connect, table.dsn, str(directory), step.name]
        done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=300)
        assert done.returncode == 9, done.stderr
    async with (
        Client(zookeeper.connect) as client,
        await psycopg.AsyncConnection.connect(table.dsn) as connection,
        await Coordinator.open(directory, name="shop") as coordinator,
    ):
        producer = client.producer(qualifier="shop")
        reports = await coordinator.recover([connection], [producer])
        assert [report.problem for report in reports] == [None] * len(reports)
        assert await coordinator.recover([connection], [producer]) == []
    expected = {"DECIDED", "COMMITTED_DATABASE", "COMMITTED_BROKER"}
    assert rows(table) == expected
    assert await asyncio.to_thread(consumed, zookeeper, "orders") == Counter(name.encode() for name in expected)


@in_loop
async def test_a_cancelled_task_is_rolled_back_before_the_decision_and_finished_after_it(
    zookeeper: Chroot, broker: BrokerProcess, table: Database, tmp_path: Path
) -> None:
    last = [TwoPhaseStep.BEGUN]

    def cancel(step: TwoPhaseStep, xid: object) -> None:
        if step is last[0]:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    async with (
        Client(zookeeper.connect) as client,
        await Coordinator.open(tmp_path / "decisions", name="shop", observer=cancel) as coordinator,
    ):

        async def place(name: str) -> None:
            async with (
                await psycopg.AsyncConnection.connect(table.dsn) as connection,
                coordinator.transaction(connection, client.producer(qualifier="shop"), topics=("orders",)) as it,
            ):
                await connection.execute("INSERT INTO placed VALUES (%s)", [name])
                await it.producer.send_async("orders", name.encode())

        for last[0] in (TwoPhaseStep.PREPARED_BROKER, TwoPhaseStep.PREPARED_DATABASE, TwoPhaseStep.DECIDED):
            with pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(place(last[0].name))
        last[0] = TwoPhaseStep.FORGOTTEN
        async with await psycopg.AsyncConnection.connect(table.dsn) as connection:
            await coordinator.recover([connection], [client.producer(qualifier="shop")])
    placed = rows(table)
    # Cancelled once both have prepared, the decision is what is waited for: it may be on its way to the disk already.
    assert placed - {"PREPARED_DATABASE"} == {"DECIDED"}
    assert await asyncio.to_thread(consumed, zookeeper, "orders") == Counter(name.encode() for name in placed)


@in_loop
async def test_requests_that_are_cancelled_at_any_moment_leave_nothing_prepared(
    zookeeper: Chroot, broker: BrokerProcess, table: Database, tmp_path: Path
) -> None:
    """While others recover all the time; after the last one nobody asks any more."""
    random, stop = Random(0), asyncio.Event()
    async with (
        Client(zookeeper.connect) as client,
        await Coordinator.open(tmp_path / "decisions", name="shop") as coordinator,
    ):

        async def place(connection: psycopg.AsyncConnection, name: str) -> None:
            producer = client.producer(qualifier="shop")
            async with coordinator.transaction(connection, producer, topics=("orders",)):
                await connection.execute("INSERT INTO placed VALUES (%s)", [name])
                await producer.send_async("orders", name.encode())

        async def request(worker: int) -> None:
            async with await psycopg.AsyncConnection.connect(table.dsn) as first:
                started = time.monotonic()
                await place(first, f"{worker}-whole")
            takes_s = time.monotonic() - started
            for number in range(REQUESTS):
                # psycopg drops a connection whose `connect` is cancelled at the last moment: so not under the timeout
                async with await psycopg.AsyncConnection.connect(table.dsn) as connection:
                    try:
                        async with asyncio.timeout(takes_s * random.uniform(0.0, 1.5)):
                            await place(connection, f"{worker}-{number}")
                    except TimeoutError:
                        takes_s *= 1.25  # the machine has become slower, or it was chance
                    else:
                        takes_s *= 0.8

        async def recover() -> None:
            async with await psycopg.AsyncConnection.connect(table.dsn) as connection:
                while not stop.is_set():
                    for report in await coordinator.recover([connection], [client.producer(qualifier="shop")]):
                        assert not report.is_hazard, str(report)

        async def in_doubt() -> bool:
            prepared = await client.producer(qualifier="shop").tpc_recover()
            return bool(prepared or await asyncio.to_thread(table.prepared))

        recovering = asyncio.create_task(recover())
        await asyncio.gather(*(request(worker) for worker in range(8)))
        stop.set()
        await recovering
        async with asyncio.timeout(60):
            while await in_doubt():
                pass
    placed = rows(table)
    assert await asyncio.to_thread(consumed, zookeeper, "orders") == Counter(name.encode() for name in placed)
    assert 8 < len(placed) < 8 * (1 + REQUESTS), "all were quick enough, or none"


@in_loop
async def test_another_task_that_sends_with_the_producer_of_an_open_block_is_told(
    zookeeper: Chroot, broker: BrokerProcess, table: Database, tmp_path: Path
) -> None:
    async with (
        Client(zookeeper.connect) as client,
        await psycopg.AsyncConnection.connect(table.dsn) as connection,
        await Coordinator.open(tmp_path / "decisions", name="shop") as coordinator,
    ):
        producer = client.producer(qualifier="shop")

        async def send(name: str) -> None:
            await producer.send("orders", name.encode())

        async def join_and_send(name: str) -> None:
            producer.join()
            await send(name)

        async with coordinator.transaction(connection, producer, topics=("orders",)):
            await connection.execute("INSERT INTO placed VALUES ('joined')")
            with pytest.raises(TransactionMisuse, match="another thread or task"):
                await asyncio.create_task(send("escaped"))
            with pytest.raises(TransactionMisuse, match="another thread or task"):
                await asyncio.create_task(producer.send_async("orders", b"escaped"))
            with pytest.raises(TransactionMisuse, match="end that block first"):
                await coordinator.transaction(connection, producer, topics=("orders",)).__aenter__()
            await asyncio.create_task(join_and_send("joined"))
    assert rows(table) == {"joined"}
    assert await asyncio.to_thread(consumed, zookeeper, "orders") == Counter({b"joined": 1})


@in_loop
async def test_what_can_not_be_enlisted_and_a_closed_coordinator(
    zookeeper: Chroot, broker: BrokerProcess, table: Database, tmp_path: Path
) -> None:
    async with (
        Client(zookeeper.connect) as client,
        await psycopg.AsyncConnection.connect(table.dsn, autocommit=True) as connection,
    ):
        coordinator = await Coordinator.open(tmp_path / "decisions", name="shop")
        producer = client.producer()
        with pytest.raises(CannotEnlist, match="autocommit"):
            await coordinator.transaction(connection, producer, topics=("orders",)).__aenter__()
        with pytest.raises(TypeError, match="give a tuple of names"):
            coordinator.transaction(connection, producer, topics="orders")
        await coordinator.close()
        await coordinator.close()
        with pytest.raises(CoordinatorClosed):
            await coordinator.transaction(connection, producer, topics=("orders",)).__aenter__()
        with pytest.raises(CoordinatorClosed):
            await coordinator.recover([connection], [producer])
