"""A table, a topic, and writers to both, shared by the coordinator's tests."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from journal.records.xid import Xid
from meta_client import Client
from meta_client.coordinator import Coordinator, TwoPhaseStep
from meta_client.producer.producer import Producer
from tests.fixtures.broker import CONFIG, BrokerProcess
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.postgres import Connection, Database
from tests.fixtures.reading import read_whole
from zk.tree.nodes import Partition

# A broker that was killed ends its old session when it starts again; without its directory it waits for the end.
QUICK = CONFIG.replace("session_timeout_ms = 4000", "session_timeout_ms = 1000")
STEADY = CONFIG.replace("session_timeout_ms = 4000", "session_timeout_ms = 8000")
PARTITIONS = 4  # of `orders` in CONFIG
TABLE = "CREATE TABLE numbers (n int PRIMARY KEY)"
Observer = Callable[[TwoPhaseStep, Xid], None]


@dataclass
class World:
    """One number is one transaction: a row in the table `numbers`, a message in the topic `orders`."""

    database: Database
    broker: BrokerProcess
    zookeeper: str
    client: Client
    directory: Path
    connection: Connection
    begins: Mapping[tuple[str, Partition], int]  # where its messages begin: brokers are lent

    def coordinator(self, observer: Observer | None = None) -> Coordinator:
        return Coordinator.open(self.directory, "shop", observer=observer)

    def producer(self) -> Producer:
        return self.client.producer("shop")

    def work(self, coordinator: Coordinator, producer: Producer, number: int) -> None:
        """One transaction that writes *number* to both sides."""
        with coordinator.transaction(self.connection, producer, topics=("orders",)):
            self.connection.execute("INSERT INTO numbers VALUES (%s)", (number,))
            producer.send("orders", str(number).encode(), timeout_s=60)

    def numbers(self) -> tuple[list[int], list[int]]:
        """Return the numbers in the table, and those in the topic."""
        with psycopg.connect(self.database.dsn) as connection:
            rows = [n for (n,) in connection.execute("SELECT n FROM numbers ORDER BY n")]
        return rows, sorted(
            int(message.payload) for message in read_whole(self.client, "orders", PARTITIONS, self.begins)
        )

    def row_count(self) -> int:
        with psycopg.connect(self.database.dsn) as connection:
            ((count,),) = connection.execute("SELECT count(*) FROM numbers")
        assert isinstance(count, int)
        return count

    def in_doubt(self) -> list[object]:
        """Return what is prepared on either side."""
        listing = self.producer().tpc_list()
        assert not listing.failures
        return [*self.database.prepared(), *(key for keys in listing.keys.values() for key in keys)]


@pytest.fixture
def world(tmp_path: Path, broker_pool: BrokerPool, database: Database) -> Iterator[World]:
    connection = database.connect()
    connection.execute(TABLE)
    connection.commit()
    with broker_pool.lend(STEADY) as lent, Client(lent.connect) as client:
        (broker,) = lent.brokers
        yield World(database, broker, lent.connect, client, tmp_path / "decisions", connection, lent.ends())
