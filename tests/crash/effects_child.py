"""A service that makes a database row of every message, in the transaction that keeps its offset, until it is killed.
In style "producing" with a driver it makes a message of each, too, in the same transaction; in "tasks" with an
asynchronous way to the database, too, as tasks.

    python -m tests.crash.effects_child ZOOKEEPER DSN STYLE SEED

Says on stdout, a line each: its ZooKeeper session's id and password, then `took <messages> of <messages>` after every
transaction.
"""

import asyncio
import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import pg8000.dbapi
import psycopg
import psycopg2
import pymysql
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from meta_client import aio
from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.offset_stores import TransactionOffsetStore
from meta_client.transactions import CommitStep, TransactionConfig
from meta_client.transactions.mysql import parameters
from tests.fixtures.postgres import connect_plain
from tests.meta_client.aio.transactions.ways import source

GROUP = "effects"
TOPIC, MADE = "orders", "invoices"
FETCH_BYTES = 1500
CONFIG = ConsumerConfig(backoff_s_max=0.1, commit_period_s=0.2)
INSERT = "INSERT INTO effects (number, place) VALUES (%s, %s)"


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # less than a pipe takes in one piece


def connect(driver: str, dsn: str) -> Any:
    """A connection of *driver*, or of psycopg."""
    match driver:
        case "pymysql":
            return pymysql.connect(**parameters(dsn))
        case "psycopg2":
            return psycopg2.connect(dsn)
        case "pg8000":
            return connect_plain(pg8000.dbapi, dsn)
    return psycopg.connect(dsn)


class Service:
    """The listener. *style*: how it speaks to its database."""

    def __init__(self, dsn: str, style: str, random: Random, client: Client) -> None:
        self._dsn = dsn
        self._client = client
        self._driver = style.removeprefix("producing ") if style.startswith("producing") else ""
        self._random = random
        self._engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
        self._is_session = style == "session"
        own = self._engine if self._is_session else functools.partial(connect, self._driver, dsn)
        self.offsets = TransactionOffsetStore(own, GROUP)

    def on_batch(self, batch: Batch) -> None:
        with self._transaction() as (work, insert):
            messages = self.offsets.take(work, batch)
            for message in messages:
                self._dawdle()
                insert(int(message.payload), str(message.partition))
        say("took", len(messages), "of", len(batch.messages))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[tuple[Any, Any]]:
        if self._driver:
            again = functools.partial(connect, self._driver, self._dsn)
            with (
                contextlib.closing(again()) as connection,
                self._client.transaction(connection, connect=again) as transaction,
            ):

                def insert(number: int, place: str) -> None:
                    with contextlib.closing(connection.cursor()) as cursor:
                        cursor.execute(INSERT, (number, place))
                    transaction.send(MADE, b"%d" % number)

                yield connection, insert
        elif self._is_session:
            with Session(self._engine) as session, session.begin():
                statement = text("INSERT INTO effects (number, place) VALUES (:number, :place)")
                yield session, lambda number, place: session.execute(statement, {"number": number, "place": place})
        else:
            with psycopg.connect(self._dsn) as connection:
                yield connection, lambda *row: connection.execute(INSERT, row)

    def _dawdle(self) -> None:
        """Sleep at random, to spread kills over the middle of transactions."""
        if self._random.random() < 0.1:
            time.sleep(self._random.random() * 0.005)


async def in_tasks(zookeeper: str, dsn: str, way: str, resolving: TransactionConfig) -> None:
    """Do as main, with asyncio."""
    async with (
        aio.Client(zookeeper, session_timeout_ms=20_000, transactions=resolving) as client,
        source(way, dsn) as lent,
    ):
        offsets = aio.TransactionOffsetStore(lambda: psycopg.AsyncConnection.connect(dsn), GROUP)

        async def on_batch(batch: Batch) -> None:
            async with lent.opened() as one, client.transaction(one.connection) as transaction:
                messages = await offsets.take(one.connection, batch)
                for message in messages:
                    number = int(message.payload)
                    await one.execute(f"INSERT INTO effects (number, place) VALUES ({number}, '{message.partition}')")
                    await transaction.send(MADE, b"%d" % number)
            say("took", len(messages), "of", len(batch.messages))

        who = client.session.credentials
        say(who.session_id, who.password.hex())
        consumer = client.consumer(GROUP, offsets, config=CONFIG)
        consumer.subscribe(TOPIC, on_batch, max_bytes=FETCH_BYTES)
        async with consumer:
            await asyncio.Event().wait()


def main(zookeeper: str, dsn: str, style: str, seed: str) -> None:
    random = Random(seed)

    def dawdle(step: CommitStep, gtrid: str) -> None:
        """Sleep at random, to spread kills over the gaps between steps."""
        time.sleep(random.random() * 0.01)

    resolving = TransactionConfig(age_s=0.5, interval_s=0.2, observer=dawdle)
    if style.startswith("tasks "):
        asyncio.run(in_tasks(zookeeper, dsn, style.removeprefix("tasks "), resolving))
    with Client(zookeeper, session_timeout_ms=20_000, transactions=resolving) as client:
        service = Service(dsn, style, random, client)
        who = client.session.credentials
        say(who.session_id, who.password.hex())
        consumer = client.consumer(GROUP, service.offsets, config=CONFIG)
        consumer.subscribe(TOPIC, service.on_batch, max_bytes=FETCH_BYTES)
        with consumer:
            threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
