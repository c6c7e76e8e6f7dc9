"""Offsets in a task's own database transaction, over every asynchronous way to a database."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from meta_client.aio import Client, Outbox, TransactionOffsetStore
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.offsets import OffsetEntry
from meta_client.errors import ConsumerMisuse, NoDatabase, NotInTransaction
from tests.fixtures.loops import in_loop
from tests.fixtures.postgres import Database
from tests.meta_client.aio.transactions.ways import WAYS, Opened, Source, asyncpg_words, source
from tests.meta_client.consumer.offset_stores.test_databases import FRAME, A, batch
from zk.embedded.chroot import Chroot


def connect_of(lent: Source, dsn: str) -> Any:
    """Open a connection for the store: as the caller does."""
    if "session" in lent.way or "connection" in lent.way:
        return lent.made
    makes: dict[bool, Callable[[], Any]] = {
        True: lambda: asyncpg.connect(**asyncpg_words(dsn)),
        False: lambda: psycopg.AsyncConnection.connect(dsn),
    }
    return makes[lent.way.startswith("asyncpg")]


async def begin(one: Opened) -> Any:
    """Begin, where that is not done by the first statement; returns how to commit."""
    if isinstance(one.connection, asyncpg.Connection):
        transaction = one.connection.transaction()
        await transaction.start()
        return transaction.commit
    return one.connection.commit


@pytest.mark.parametrize("way", WAYS)
@in_loop
async def test_what_is_taken_is_taken_once_if_its_transaction_commits(database: Database, way: str) -> None:
    async with source(way, database.dsn) as lent, lent.opened() as one:
        store = TransactionOffsetStore(connect_of(lent, database.dsn), "billing")
        assert store.group == "billing"
        assert await asyncio.to_thread(store.load, "orders", A) is None  # and the table is made
        first = batch(0, 3)
        commit = await begin(one)
        assert await store.take(one.connection, first) == first.messages
        await one.execute("ROLLBACK")
        if isinstance(one.connection, asyncpg.Connection):
            await one.connection.reset()
        else:
            await one.connection.rollback()
        commit = await begin(one)
        assert await store.take(one.connection, first) == first.messages
        await commit()
        assert await asyncio.to_thread(store.load, "orders", A) == 3 * FRAME
        commit = await begin(one)
        assert await store.take(one.connection, first) == []
        assert await store.take(one.connection, batch(1, 4)) == batch(3, 2).messages
        await commit()
        await asyncio.to_thread(store.commit, [OffsetEntry("orders", A, FRAME, is_reset=True)])
        assert await asyncio.to_thread(store.load, "orders", A) == FRAME
        if isinstance(one.connection, asyncpg.Connection):
            with pytest.raises(NotInTransaction):
                await store.take(one.connection, first)


@pytest.mark.parametrize("way", WAYS)
@in_loop
async def test_an_outbox_takes_messages_with_the_transaction(database: Database, way: str) -> None:
    """The twin of meta_client.outbox, by the same ways."""
    with closing(database.connect()) as connection:
        connection.execute(
            "CREATE TABLE metaq_outbox (id serial, topic text, payload bytea, attribute text, partition text)"
        )
        connection.commit()
    async with source(way, database.dsn) as lent, lent.opened() as one:
        commit = await begin(one)
        await Outbox().send(one.connection, "orders", b"1", "a", "0-3")
        await commit()
        await begin(one)
        await Outbox().send(one.connection, "orders", b"2")
        await one.execute("ROLLBACK")
    found = database.value("SELECT json_agg(json_build_array(topic, payload, attribute, partition)) FROM metaq_outbox")
    assert found == [["orders", "\\x31", "a", "0-3"]]


@pytest.mark.parametrize("way", ["psycopg connection", "asyncpg connection"])
@in_loop
async def test_a_connection_of_sqlalchemy_that_commits_by_itself_is_refused(database: Database, way: str) -> None:
    async with source(way, database.dsn) as lent, lent.opened() as one:
        await one.connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(NotInTransaction, match="is in autocommit mode"):
            await Outbox().send(one.connection, "orders", b"1")


@in_loop
async def test_a_connection_for_threads_is_refused(database: Database) -> None:
    store = TransactionOffsetStore(lambda: psycopg.AsyncConnection.connect(database.dsn), "billing")
    with pytest.raises(NoDatabase, match="no connection for tasks"):
        await store.take(database.connect(), batch(0, 1))


@in_loop
async def test_what_would_be_offered_later_can_not_be_a_dead_letter(
    zookeeper: Chroot, database: Database, tmp_path: Path
) -> None:
    """It counts as consumed where the rest of its batch is: offered later it would be taken for done."""
    store = TransactionOffsetStore(lambda: psycopg.AsyncConnection.connect(database.dsn), "billing")

    async def listen(batch: Batch) -> None:
        del batch

    async with Client(zookeeper.connect) as client:
        consumer = client.consumer("billing", store, config=ConsumerConfig(dead_letter_directory=tmp_path / "refused"))
        with pytest.raises(ConsumerMisuse, match='on_reject "dead_letter" is not for a TransactionOffsetStore'):
            consumer.subscribe("orders", listen, on_reject="dead_letter")
