"""A database that decides: PostgreSQL, SQLite and MariaDB, each with its decision table and a table of numbers."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from meta_client import Client
from meta_client.transactions import TransactionConfig
from meta_client.transactions.databases import init, table_at
from meta_client.transactions.table import ANCHOR, KEEP_S, DecisionTable, TableIdentity
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.mariadb import MariaDatabase
from tests.fixtures.postgres import Database
from tests.fixtures.reading import read_whole
from tests.meta_client.coordinator.conftest import STEADY
from zk.tree.nodes import Partition

NUMBERS = "CREATE TABLE numbers (n int PRIMARY KEY)"


@dataclass
class Deciding:
    """A database with a decision table. *connect* makes a caller's connection, of the driver."""

    kind: str
    url: str
    identity: TableIdentity
    connect: Callable[[], Any]

    def rows(self) -> dict[str, str]:
        """Every row of the decision table, by gtrid."""
        return dict(self.query(f"SELECT gtrid, outcome FROM metaq_decision WHERE gtrid <> '{ANCHOR}'"))

    def numbers(self) -> list[int]:
        return [n for (n,) in self.query("SELECT n FROM numbers ORDER BY n")]

    def query(self, text: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection:
            return ask(connection, text)

    def execute(self, text: str) -> None:
        with closing(self.connect()) as connection:
            do(connection, text)
            connection.commit()

    def table(self) -> DecisionTable:
        return table_at(self.url)


def do(connection: Any, text: str) -> None:
    """Execute a statement, as any driver does."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(text)


def ask(connection: Any, text: str) -> list[tuple[Any, ...]]:
    """The rows of a query, by any driver."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(text)
        return [tuple(row) for row in cursor.fetchall()]


def made(kind: str, url: str, connect: Callable[[], Any]) -> Deciding:
    deciding = Deciding(kind, url, init(url, KEEP_S), connect)
    deciding.execute(NUMBERS)
    return deciding


def make_postgres(database: Database) -> Deciding:
    return made("postgres", database.dsn, lambda: psycopg.connect(database.dsn))


def make_sqlite(directory: Path) -> Deciding:
    path = directory / "shop.db"
    return made("sqlite", f"sqlite:///{path}", lambda: sqlite3.connect(path, timeout=60))


def make_mariadb(database: MariaDatabase) -> Deciding:
    return made("mariadb", database.url, database.connect)


def make(kind: str, request: pytest.FixtureRequest) -> Deciding:
    """A test's database of that kind. Skips the test where there is none."""
    match kind:
        case "sqlite":
            return make_sqlite(request.getfixturevalue("tmp_path"))
        case "mariadb":
            return make_mariadb(request.getfixturevalue("mariadb"))
    return make_postgres(request.getfixturevalue("database"))


@pytest.fixture(params=["postgres", "sqlite", "mariadb"])
def deciding(request: pytest.FixtureRequest) -> Deciding:
    return make(request.param, request)


@dataclass
class World:
    """One number is one transaction: a row in `numbers`, a message in `orders` of broker 0 and, of some, in `bills` of
    broker 1."""

    deciding: Deciding
    brokers: list[BrokerProcess]
    zookeeper: str
    client: Client
    begins: Mapping[tuple[str, Partition], int]  # where its messages begin: brokers are lent

    def open_client(self, **config: Any) -> Client:
        return Client(self.zookeeper, transactions=TransactionConfig(**config))

    def work(self, number: int, *, connection: Any = None, topics: tuple[str, ...] = ("orders",), **how: Any) -> None:
        """One transaction that writes *number* to all sides."""
        with (
            closing(self.deciding.connect()) if connection is None else nullcontext(connection) as it,
            self.client.transaction(it, **how) as transaction,
        ):
            do(it, f"INSERT INTO numbers VALUES ({number})")
            for topic in topics:
                transaction.send(topic, str(number).encode())

    def work_in_threads(self) -> None:
        """200 transactions in eight threads, a connection each, one message and no accident."""

        def work(thread: int) -> None:
            with closing(self.deciding.connect()) as connection:
                for number in range(25):
                    self.work(thread * 100 + number, connection=connection)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.wait_quiet()
        self.check(sorted(thread * 100 + number for thread in range(8) for number in range(25)))
        (counts,) = self.client.transaction_counts().values()
        assert (counts.rows_deleted, counts.hazards, counts.errors) == (200, 0, 0)

    def messages(self, topic: str = "orders") -> list[int]:
        partitions = PARTITIONS[topic]
        return sorted(int(one.payload) for one in read_whole(self.client, topic, partitions, self.begins))

    def check(self, numbers: list[int], *, topics: tuple[str, ...] = ("orders",)) -> None:
        """Rows and messages are *numbers*, exactly: messages soon, because a block does not wait for COMMIT."""
        assert self.deciding.numbers() == numbers
        deadline = time.monotonic() + 60
        for topic in topics:
            while (found := self.messages(topic)) != numbers:
                assert time.monotonic() < deadline, f"{topic}: {found}"
                time.sleep(0.05)

    def prepared(self) -> list[object]:
        listing = self.client.producer(self.deciding.identity.name.qualifier).tpc_list()
        assert not listing.failures
        return [key for keys in listing.keys.values() for key in keys]

    def wait_quiet(self, *, rows: set[str] = frozenset(), timeout_s: float = 60.0) -> None:  # type: ignore[assignment]
        """Return once nothing is prepared, and no row is left but those that are kept: *rows*, and rollbacks."""
        deadline = time.monotonic() + timeout_s
        while True:
            commits = {gtrid for gtrid, outcome in self.deciding.rows().items() if outcome == "commit"}
            if commits == rows and not self.prepared():
                return
            assert time.monotonic() < deadline, f"prepared: {self.prepared()}, rows: {self.deciding.rows()}"
            time.sleep(0.05)


PARTITIONS = {"orders": 4, "bills": 2}
BILLS = STEADY.replace("[topics.orders]\npartitions = 4", "[topics.bills]\npartitions = 2")


@contextmanager
def running_world(deciding: Deciding, pool: BrokerPool, brokers: int = 1) -> Iterator[World]:
    with pool.lend(*(BILLS if number else STEADY for number in range(brokers))) as lent, Client(lent.connect) as client:
        yield World(deciding, lent.brokers, lent.connect, client, lent.ends())


@pytest.fixture
def world(broker_pool: BrokerPool, database: Database) -> Iterator[World]:
    """PostgreSQL and one broker."""
    with running_world(make_postgres(database), broker_pool) as world:
        yield world


@pytest.fixture
def wide_world(broker_pool: BrokerPool, database: Database) -> Iterator[World]:
    """PostgreSQL and two brokers."""
    with running_world(make_postgres(database), broker_pool, brokers=2) as world:
        yield world


@pytest.fixture
def maria_world(broker_pool: BrokerPool, mariadb: MariaDatabase) -> Iterator[World]:
    """MariaDB and one broker."""
    with running_world(make_mariadb(mariadb), broker_pool) as world:
        yield world


@pytest.fixture
def lite_world(tmp_path: Path, broker_pool: BrokerPool) -> Iterator[World]:
    """SQLite and one broker."""
    with running_world(make_sqlite(tmp_path), broker_pool) as world:
        yield world
