"""A service of many threads, or tasks, that writes rows and messages, until it is killed. Numbered by lives.

Some requests fail in the middle, some take their time between PREPARE and COMMIT, some lose their patience.
"""

import asyncio
import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import asyncpg
import psycopg
import pymysql
import sqlalchemy
from django.db import Error as DjangoError
from django.db import connections, transaction
from sqlalchemy.dialects.postgresql.asyncpg import AsyncAdapt_asyncpg_dbapi
from sqlalchemy.orm import Session

from meta_client import Client, SendFailed, TransactionConfig, aio
from meta_client.coordinator import CoordinatorError
from meta_client.transactions import CommitStep, Transaction
from meta_client.transactions.frameworks.django import send_on_commit
from tests.meta_client.aio.transactions.ways import Source, source
from tests.meta_client.transactions.conftest import do
from tests.meta_client.transactions.crashing import connect, engine_of
from tests.meta_client.transactions.django_shop import use

THREADS = 16
BASE = 1_000_000  # numbers of a life
TASKS = 200
CONNECTIONS = 20  # of all tasks
FAILURES = (  # of somebody who is down
    psycopg.Error,
    pymysql.Error,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # its pool, where a connection is lost just when it is given back
    OSError,
    sqlalchemy.exc.SQLAlchemyError,
    AsyncAdapt_asyncpg_dbapi.Error,  # of a connection that can't be made, which SQLAlchemy does not wrap
    DjangoError,
    CoordinatorError,
    SendFailed,
)
Write = Callable[[Client, int, random.Random], None]


class _Cancelled(Exception):
    pass


def main(dsn: str, zookeeper: str, life: str, way: str) -> None:
    chance = random.Random(int(life))
    dawdles = 0.002 if way.startswith("tasks ") else 0.02  # all tasks wait for one that does

    def observe(step: CommitStep, gtrid: str) -> None:
        if step is CommitStep.PREPARED and chance.random() < dawdles:
            time.sleep(chance.uniform(0.0, 1.5))  # resolvers look after half a second
        if step in (CommitStep.PREPARED, CommitStep.RECORDED) and chance.random() < 0.02:
            raise _Cancelled

    config = TransactionConfig(observer=observe, age_s=0.5, interval_s=0.2)
    if way.startswith("tasks "):
        asyncio.run(in_tasks(zookeeper, dsn, way.removeprefix("tasks "), config, int(life) * BASE))
    write = WAYS[way](dsn)
    with Client(zookeeper, transactions=config) as client:
        threads = [
            threading.Thread(
                target=work, args=(client, write, int(life) * BASE + number * BASE // THREADS), daemon=True
            )
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        print("works", flush=True)
        for thread in threads:
            thread.join()


def work(client: Client, write: Write, first: int) -> None:
    chance, number = random.Random(first), first
    while True:
        number += 1
        try:
            write(client, number, chance)
        except _Cancelled:
            continue
        except FAILURES:
            time.sleep(0.05)  # somebody is down


def send(open_one: Transaction, number: int, chance: random.Random) -> None:
    open_one.send("orders", str(number).encode())
    if number % 3 == 0:
        open_one.send("bills", str(number).encode())
    if chance.random() < 0.05:
        raise _Cancelled


def with_driver(dsn: str) -> Write:
    """A connection for each thread."""
    own, driver = threading.local(), "pymysql" if dsn.startswith(("mariadb:", "mysql:")) else "psycopg"

    def is_lost(connection: Any) -> bool:
        return bool(connection.closed if driver == "psycopg" else not connection.open)

    def write(client: Client, number: int, chance: random.Random) -> None:
        if not hasattr(own, "connection") or is_lost(own.connection):
            own.connection = connect(driver, dsn)
        with client.transaction(own.connection, wait=chance.random() < 0.2) as open_one:
            do(own.connection, f"INSERT INTO numbers VALUES ({number})")
            send(open_one, number, chance)

    return write


def with_sqlalchemy(dsn: str) -> Write:
    """A session for each transaction, and fewer connections than threads."""
    engine = engine_of(dsn, pool_size=THREADS - 2, max_overflow=0)

    def write(client: Client, number: int, chance: random.Random) -> None:
        with Session(engine) as session:
            session.execute(sqlalchemy.text("SELECT 1"))
            with client.transaction(session, wait=chance.random() < 0.2) as open_one:
                session.execute(sqlalchemy.text(f"INSERT INTO numbers VALUES ({number})"))
                send(open_one, number, chance)

    return write


def with_django(dsn: str) -> Write:
    """An atomic block, and often a failed one inside."""
    alias = use(dsn)

    def write(client: Client, number: int, chance: random.Random) -> None:
        with transaction.atomic(using=alias):
            connections[alias].cursor().execute("INSERT INTO numbers VALUES (%s)", (number,))
            if chance.random() < 0.2:
                with contextlib.suppress(_Cancelled), transaction.atomic(using=alias):
                    send_on_commit(client, "orders", b"-1", using=alias)
                    raise _Cancelled
            send_on_commit(client, "orders", str(number).encode(), using=alias)
            if number % 3 == 0:
                send_on_commit(client, "bills", str(number).encode(), using=alias)
            if chance.random() < 0.05:
                raise _Cancelled

    return write


async def in_tasks(zookeeper: str, dsn: str, way: str, config: TransactionConfig, first: int) -> None:
    """Many tasks, fewer connections, and requests that are cancelled at any moment: some of them again and again."""
    async with aio.Client(zookeeper, transactions=config) as client, source(way, dsn, CONNECTIONS) as lent:
        print("works", flush=True)
        async with asyncio.TaskGroup() as group:
            for number in range(TASKS):
                group.create_task(requests(client, lent, first + number * BASE // TASKS))


async def requests(client: aio.Client, lent: Source, first: int) -> None:
    chance, number = random.Random(first), first
    while True:
        number += 1
        request = asyncio.create_task(place(client, lent, number, chance))
        if chance.random() < 0.3:
            await asyncio.wait({request}, timeout=chance.expovariate(50))
            request.cancel()
            while not request.done() and chance.random() < 0.9:
                await asyncio.sleep(0)
                request.cancel()
        await asyncio.wait({request})
        if request.cancelled():
            continue
        error = request.exception()
        if isinstance(error, FAILURES):
            await asyncio.sleep(0.05)  # somebody is down
        elif error is not None and not isinstance(error, _Cancelled):
            raise error


async def place(client: aio.Client, lent: Source, number: int, chance: random.Random) -> None:
    async with lent.opened() as one, client.transaction(one.connection, wait=chance.random() < 0.2) as open_one:
        await one.execute(f"INSERT INTO numbers VALUES ({number})")
        await open_one.send("orders", str(number).encode())
        if number % 3 == 0:
            await (await open_one.send("bills", str(number).encode()))
        if chance.random() < 0.05:
            raise _Cancelled


WAYS: Mapping[str, Callable[[str], Write]] = {
    "driver": with_driver,
    "sqlalchemy": with_sqlalchemy,
    "django": with_django,
}


if __name__ == "__main__":
    main(*sys.argv[1:])
