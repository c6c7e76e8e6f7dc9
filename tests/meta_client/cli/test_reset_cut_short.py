"""`metaq groups reset` that ends while it stores the offsets: what it shows then is what undoes it."""

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from meta_client.consumer.offset_stores import SqlOffsetStore
from meta_client.consumer.offsets import OffsetEntry
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.forked import run_metaq, start_metaq
from tests.fixtures.postgres import Database
from tests.fixtures.tcp_proxy import TcpProxy
from tests.fixtures.wire import WireClient
from tests.integration.conftest import wait_until
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

A = Partition(0, 0)
FRAME = 25  # bytes of a message of five
HELD_UP = """
CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER held AFTER UPDATE ON meta_topic_partition_group_offset
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hold()
"""
COMMITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND query = 'COMMIT'"


class Reset:
    """A reset to the end of what `ledger` keeps in a database, at its COMMIT."""

    def __init__(self, words: list[str], directory: Path) -> None:
        self.words = words
        self._out, self._err = directory / "out", directory / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err, Path("/dev/null").open("rb") as nothing:
            self.process = start_metaq([*words, "--to", "latest"], stdin=nothing, stdout=out, stderr=err)

    def end(self) -> tuple[int, dict[str, Any], str]:
        """Wait for its end; return its status, the row that it shows, and its errors."""
        status = self.process.wait(60)
        (row,) = self._out.read_text().splitlines()
        return status, json.loads(row), self._err.read_text()

    def undo(self) -> subprocess.CompletedProcess[str]:
        return run_metaq(*self.words, "--to", f"file:{self._out}")


@pytest.fixture
def offsets(database: Database) -> Iterator[SqlOffsetStore]:
    with SqlOffsetStore(database.url(database.port), "ledger") as store:
        store.load("orders", A)
        store.commit([OffsetEntry("orders", A, FRAME)])
        yield store


@contextlib.contextmanager
def committing(
    database: Database, zookeeper: Chroot, broker: BrokerProcess, directory: Path, port: int
) -> Iterator[Reset]:
    """A reset through *port* whose COMMIT waits until the block ends."""
    with WireClient(broker.port) as wire:
        for _ in range(3):
            wire.put("orders", 0, b"hello")
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(HELD_UP)
        connection.execute("SELECT pg_advisory_lock(1)")
        words = ["groups", "reset", "ledger", "orders/0-0", "--store", database.url(port)]
        reset = Reset([*words, "--yes", "--json", "--zk", zookeeper.connect], directory)
        try:
            wait_until(lambda: database.value(COMMITS) == 1)
            yield reset
        finally:
            connection.execute("SELECT pg_advisory_unlock(1)")
            reset.process.kill()
            reset.process.wait()


def test_a_database_that_goes_at_the_commit_leaves_what_undoes_it(
    database: Database, zookeeper: Chroot, broker: BrokerProcess, offsets: SqlOffsetStore, tmp_path: Path
) -> None:
    with TcpProxy(database.port) as proxy:
        with committing(database, zookeeper, broker, tmp_path, proxy.port) as reset:
            proxy.refuse()
            status, row, errors = reset.end()
        assert (status, row["before"], row["after"], row["done"]) == (2, FRAME, 3 * FRAME, None)
        assert "the reset ended while it was being stored, perhaps done" in errors
        wait_until(lambda: offsets.load("orders", A) == 3 * FRAME)  # done it is
        proxy.heal()
        assert reset.undo().returncode == 0
        assert offsets.load("orders", A) == FRAME


def test_ctrl_c_at_the_commit_leaves_what_undoes_it(
    database: Database, zookeeper: Chroot, broker: BrokerProcess, offsets: SqlOffsetStore, tmp_path: Path
) -> None:
    with committing(database, zookeeper, broker, tmp_path, database.port) as reset:
        reset.process.send_signal(signal.SIGINT)
        status, row, errors = reset.end()
    assert (status, row["before"], row["after"], row["done"]) == (130, FRAME, 3 * FRAME, None)
    assert "the reset ended while it was being stored, perhaps done" in errors
