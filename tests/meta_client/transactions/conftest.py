"""A database that decides: PostgreSQL and SQLite, each with its decision table and a table of numbers."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from meta_client import Client
from meta_client.transactions import TransactionConfig
from meta_client.transactions.databases import init, table_at
from meta_client.transactions.table import KEEP_S, DecisionTable, Identity
from tests.fixtures.broker import BrokerProcess, running_broker
from tests.fixtures.postgres import Database
from tests.fixtures.reading import read_whole
from tests.meta_client.coordinator.conftest import QUICK
from zk.corner import Corner

NUMBERS = "CREATE TABLE numbers (n int PRIMARY KEY)"


@dataclass
class Deciding:
    """A database with a decision table. *connect* is a caller's connection, of the driver."""

    url: str
    identity: Identity
    connect: Callable[[], Any]
    failures: type[Exception]
    mark: str

    def rows(self) -> dict[str, str]:
        """Every row of the decision table, by gtrid."""
        return dict(self.query("SELECT gtrid, outcome FROM metaq_decision"))

    def numbers(self) -> list[int]:
        return [n for (n,) in self.query("SELECT n FROM numbers ORDER BY n")]

    def query(self, text: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection:
            return [tuple(row) for row in connection.execute(text).fetchall()]

    def execute(self, text: str) -> None:
        with closing(self.connect()) as connection:
            connection.execute(text)
            connection.commit()

    def table(self) -> DecisionTable:
        return table_at(self.url)


def make_postgres(database: Database) -> Deciding:
    identity = init(database.dsn, KEEP_S)
    deciding = Deciding(database.dsn, identity, lambda: psycopg.connect(database.dsn), psycopg.Error, "%s")
    deciding.execute(NUMBERS)
    return deciding


def make_sqlite(directory: Path) -> Deciding:
    path = directory / "shop.db"
    url = f"sqlite:///{path}"
    identity = init(url, KEEP_S)
    deciding = Deciding(url, identity, lambda: sqlite3.connect(path, timeout=1), sqlite3.Error, "?")
    deciding.execute(NUMBERS)
    return deciding


@pytest.fixture(params=["postgres", "sqlite"])
def deciding(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deciding]:
    if request.param == "sqlite":
        yield make_sqlite(tmp_path)
    else:
        yield make_postgres(request.getfixturevalue("database"))


@dataclass
class World:
    """One number is one transaction: a row in `numbers`, a message in `orders` of broker 0 and, of some, in `bills` of
    broker 1."""

    deciding: Deciding
    brokers: list[BrokerProcess]
    zookeeper: str
    client: Client

    def open_client(self, **config: Any) -> Client:
        return Client(self.zookeeper, transactions=TransactionConfig(**config))

    def work(self, number: int, *, connection: Any = None, topics: tuple[str, ...] = ("orders",), **how: Any) -> None:
        """One transaction that writes *number* to all sides."""
        with (
            closing(self.deciding.connect()) if connection is None else nullcontext(connection) as it,
            self.client.transaction(it, **how) as transaction,
        ):
            it.execute(f"INSERT INTO numbers VALUES ({number})")
            for topic in topics:
                transaction.send(topic, str(number).encode())

    def messages(self, topic: str = "orders") -> list[int]:
        partitions = PARTITIONS[topic]
        return sorted(int(one.payload) for one in read_whole(self.client, topic, partitions))

    def check(self, numbers: list[int], *, topics: tuple[str, ...] = ("orders",)) -> None:
        """Rows and messages are *numbers*, exactly."""
        assert self.deciding.numbers() == numbers
        for topic in topics:
            assert self.messages(topic) == numbers, topic

    def prepared(self) -> list[object]:
        listing = self.client.producer(self.deciding.identity.name.qualifier).tpc_list()
        assert not listing.failures
        return [key for keys in listing.keys.values() for key in keys]

    def wait_quiet(self, *, rows: set[str] = frozenset(), timeout_s: float = 20.0) -> None:  # type: ignore[assignment]
        """Return once nothing is prepared, and no row is left but those that are kept: *rows*, and rollbacks."""
        deadline = time.monotonic() + timeout_s
        while True:
            commits = {gtrid for gtrid, outcome in self.deciding.rows().items() if outcome == "commit"}
            if commits == rows and not self.prepared():
                return
            assert time.monotonic() < deadline, f"prepared: {self.prepared()}, rows: {self.deciding.rows()}"
            time.sleep(0.05)


PARTITIONS = {"orders": 4, "bills": 2}
BILLS = QUICK.replace("[topics.orders]\npartitions = 4", "[topics.bills]\npartitions = 2")


@contextmanager
def running_world(deciding: Deciding, directory: Path, zookeeper: Corner, brokers: int = 1) -> Iterator[World]:
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                running_broker(
                    directory / f"broker-{number}",
                    zookeeper.connect,
                    broker_id=number,
                    config=BILLS if number else QUICK,
                )
            )
            for number in range(brokers)
        ]
        client = stack.enter_context(Client(zookeeper.connect))
        yield World(deciding, running, zookeeper.connect, client)


@pytest.fixture
def world(tmp_path: Path, zookeeper: Corner, database: Database) -> Iterator[World]:
    """PostgreSQL and one broker."""
    with running_world(make_postgres(database), tmp_path, zookeeper) as world:
        yield world


@pytest.fixture
def wide_world(tmp_path: Path, zookeeper: Corner, database: Database) -> Iterator[World]:
    """PostgreSQL and two brokers."""
    with running_world(make_postgres(database), tmp_path, zookeeper, brokers=2) as world:
        yield world


@pytest.fixture
def lite_world(tmp_path: Path, zookeeper: Corner) -> Iterator[World]:
    """SQLite and one broker."""
    with running_world(make_sqlite(tmp_path), tmp_path, zookeeper) as world:
        yield world
