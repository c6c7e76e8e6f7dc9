"""Consumers whose offsets are elsewhere than in ZooKeeper: failing listeners, seeking back, another member."""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.offset_stores import LocalOffsetStore, SqlOffsetStore, TransactionOffsetStore
from meta_client.consumer.offsets import OffsetStore
from tests.fixtures.broker import BrokerProcess
from tests.integration.conftest import OpenClient, wait_until
from zk.tree.nodes import Partition

TOPIC = "meta-test"
PLACE = Partition(0, 0)
CONFIG = ConsumerConfig(commit_period_s=0.1, backoff_s_max=0.1)


class Ledger:
    """A service that writes a row a message in the transaction of its offset; fails when it is told to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offsets = TransactionOffsetStore(self.connect, "ledger")
        self.failures = 0  # so many transactions fail after their rows are written
        self.delivered = 0
        self._lock = threading.Lock()
        with self.opened() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS rows (text TEXT)")

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=60)

    @contextlib.contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """One transaction."""
        with contextlib.closing(self.connect()) as connection, connection:
            yield connection

    def on_batch(self, batch: Batch) -> None:
        with self._lock, self.opened() as connection:
            self.delivered += len(batch.messages)
            for message in self.offsets.take(connection, batch):
                connection.execute("INSERT INTO rows VALUES (?)", (message.payload.decode(),))
            if self.failures:
                self.failures -= 1
                raise OSError("no more")

    def rows(self) -> list[str]:
        with self.opened() as connection:
            return [text for (text,) in connection.execute("SELECT text FROM rows ORDER BY rowid")]


def send(client: Client, *texts: str) -> None:
    producer = client.producer()
    for text in texts:
        producer.send(TOPIC, text.encode())


def test_a_failing_listener_a_seek_and_another_member(
    broker: BrokerProcess, open_client: OpenClient, tmp_path: Path
) -> None:
    del broker
    ledger = Ledger(tmp_path / "shop.db")
    ledger.failures = 3
    client = open_client()
    send(client, "a", "b", "c")
    with client.consumer("ledger", ledger.offsets, config=CONFIG) as consumer:
        consumer.subscribe(TOPIC, ledger.on_batch)
        consumer.start()
        wait_until(lambda: len(ledger.rows()) >= 3)
        wait_until(consumer.is_caught_up)
        assert (ledger.rows(), ledger.failures) == (["a", "b", "c"], 0)
        assert consumer.seek(TOPIC, PLACE, "earliest")  # asked for: everything takes effect again
        wait_until(lambda: len(ledger.rows()) >= 6)
        assert ledger.rows() == ["a", "b", "c"] * 2
        send(client, "d")
        wait_until(lambda: len(ledger.rows()) >= 7)
    with open_client().consumer("ledger", ledger.offsets, config=CONFIG) as consumer:
        consumer.subscribe(TOPIC, ledger.on_batch)
        consumer.start()
        send(client, "e")
        wait_until(lambda: len(ledger.rows()) >= 8)
        wait_until(consumer.is_caught_up)
    assert ledger.rows() == [*"abcabcde"]
    assert ledger.delivered > 8


@pytest.mark.parametrize("kind", ["file", "table"])
def test_what_a_consumer_stored_is_where_the_next_one_begins(
    kind: str, broker: BrokerProcess, open_client: OpenClient, tmp_path: Path
) -> None:
    del broker
    client = open_client()

    @contextlib.contextmanager
    def store() -> Iterator[OffsetStore]:
        if kind == "file":
            with LocalOffsetStore.open(tmp_path / "offsets", "reports") as in_file:
                yield in_file
        else:
            with SqlOffsetStore(f"sqlite:///{tmp_path}/offsets.db", "reports") as in_table:
                yield in_table

    seen: list[bytes] = []
    for text in ("a", "b", "c"):
        send(client, text)
        with store() as offsets, client.consumer("reports", offsets, config=CONFIG) as consumer:
            consumer.subscribe(TOPIC, lambda batch: seen.extend(message.payload for message in batch.messages))
            consumer.start()
            wait_until(lambda: consumer.is_caught_up() and len(seen) >= ord(text) - 96)  # noqa: B023 - read at once
    assert seen == [b"a", b"b", b"c"]
    assert client.session.children("/meta/consumers/reports/offsets") == []
