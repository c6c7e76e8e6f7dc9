"""Consume, store and produce in one block over each plain driver, in and out of autocommit mode."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pg8000.dbapi
import psycopg2
import pymysql
import pytest

from meta_client.consumer.offset_stores import TransactionOffsetStore
from meta_client.consumer.offset_stores.errors import TakenMeanwhile
from meta_client.coordinator.errors import CoordinatorError
from meta_client.errors import NotInTransaction
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.postgres import connect_plain
from tests.meta_client.consumer.offset_stores.test_databases import FRAME, A, batch
from tests.meta_client.transactions.conftest import World, do, make, running_world

DRIVERS: dict[str, Any] = {"pymysql": pymysql, "psycopg2": psycopg2, "pg8000": pg8000.dbapi}
BATCHES = range(0, 30, 3)


@pytest.fixture(params=[(driver, by_itself) for driver in DRIVERS for by_itself in (False, True)], ids=str)
def shop(
    request: pytest.FixtureRequest, broker_pool: BrokerPool
) -> Iterator[tuple[World, type[Exception], Callable[[], Any]]]:
    """A world, the driver's error, and what makes a connection of the driver."""
    name, by_itself = request.param
    driver = DRIVERS[name]
    deciding = make("mariadb" if driver is pymysql else "postgres", request)

    def connect() -> Any:
        if driver is pymysql:
            return deciding.connect(autocommit=by_itself)  # type: ignore[call-arg]
        connection = connect_plain(driver, deciding.url)
        connection.autocommit = by_itself
        return connection

    with running_world(deciding, broker_pool) as world:
        yield world, driver.Error, connect


def work(world: World, connection: Any, connect: Callable[[], Any], store: TransactionOffsetStore, first: int) -> int:
    """One block; returns how many messages were new."""
    with world.client.transaction(connection, connect=connect) as transaction:
        new = store.take(connection, batch(first, 3))
        for message in new:
            do(connection, f"INSERT INTO numbers VALUES ({int(message.payload)})")
            transaction.send("orders", message.payload)
    return len(new)


def test_offset_row_and_message_together_or_neither(shop: Any) -> None:
    world, _, connect = shop
    store = TransactionOffsetStore(lambda: world.deciding.connect(), "billing")
    assert store.load("orders", A) is None
    with closing(connect()) as connection:
        assert [work(world, connection, connect, store, first) for first in (0, 0, 2)] == [3, 0, 2]
        with pytest.raises(ZeroDivisionError), world.client.transaction(connection, connect=connect) as transaction:  # noqa: PT012
            assert len(store.take(connection, batch(5, 2))) == 2
            do(connection, "INSERT INTO numbers VALUES (99)")
            transaction.send("orders", b"99")
            raise ZeroDivisionError
        assert store.load("orders", A) == 5 * FRAME
        if connection.get_autocommit() if hasattr(connection, "get_autocommit") else connection.autocommit:
            with pytest.raises(NotInTransaction):  # outside of a block
                store.take(connection, batch(5, 2))
        assert work(world, connection, connect, store, 5) == 3
    world.wait_quiet()
    world.check(list(range(8)))
    assert store.load("orders", A) == 8 * FRAME


def test_members_that_take_the_same(shop: Any) -> None:
    """Each message takes effect once; who comes too late gets nothing, or an error and nothing later."""
    world, error, connect = shop
    store = TransactionOffsetStore(lambda: world.deciding.connect(), "billing")
    store.load("orders", A)

    def member() -> None:
        with closing(connect()) as connection:
            for first in BATCHES:
                while True:
                    try:
                        work(world, connection, connect, store, first)
                        break
                    except (TakenMeanwhile, CoordinatorError, error):
                        connection.rollback()

    members = [threading.Thread(target=member) for _ in range(4)]
    for one in members:
        one.start()
    for one in members:
        one.join()
    world.wait_quiet()
    world.check(list(range(BATCHES.stop)))
    assert store.load("orders", A) == BATCHES.stop * FRAME
