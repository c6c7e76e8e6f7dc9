"""The stage: starts all processes in order, stops them in reverse. Main thread only.

ZooKeeper, PostgreSQL, broker, consumers, producers: real processes, in one directory. They die with the thread that
starts them, see `launch`.
"""

import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from journal.records.xid import InvalidXid, Xid
from meta_broker.demo.messages import PARTITIONS
from meta_broker.demo.producers import QUALIFIER
from meta_broker.demo.schema import IN_DOUBT, PROGRESS, TABLES
from meta_broker.demo.talk import StartConsumers, StartProducers, Stop
from meta_broker.demo.talker import Talker
from meta_broker.testing.launch import server_user
from meta_broker.testing.postgres import EmbeddedPostgres
from meta_broker.testing.processes import Broker
from meta_client import Client
from meta_client.protocol.errors import XaError
from meta_client.protocol.xa import XaCode
from zk.embedded.server import EmbeddedZooKeeper

CONSUMERS = 3
STOP_TIMEOUT_S = 30
BROKER_TIMEOUT_S = 15

# Small segments and frequent checkpoints, so that a run of a minute crosses several of each; a short session, so
# that a killed broker is registered again soon. Flush has its default: fsync before each answer.
_BROKER = """\
[broker]
segment_bytes = 4194304
checkpoint_bytes = 2097152
checkpoint_seconds = 5.0

[zookeeper]
session_timeout_ms = 3000
sync_ms = 0
"""


def broker_config() -> str:
    """Return the text of broker.toml."""
    return _BROKER + "".join(f"\n[topics.{topic}]\npartitions = {count}\n" for topic, count in PARTITIONS.items())


class Stage:
    """All processes of the demo. Use as a context manager: on entry everything runs except the producers."""

    def __init__(self, directory: Path, orders: list[Path]) -> None:
        self.directory = directory
        self._orders = [str(path.resolve()) for path in orders]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Start everything. Raises EmbeddedZooKeeperFailed, EmbeddedPostgresFailed, ProgramFailed; then nothing
        runs.
        """
        with ExitStack() as stack:
            self._open(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _open(self, stack: ExitStack) -> None:
        directory = self.directory
        if server_user() is not None:
            directory.chmod(0o711)  # PostgreSQL runs as nobody, in its own directory below this one
        zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
        zookeeper.start()
        stack.callback(zookeeper.stop)
        self.zookeeper = zookeeper.connect
        self.postgres = stack.enter_context(EmbeddedPostgres(directory / "postgres"))
        self.connection: psycopg.Connection[Any] = stack.enter_context(
            psycopg.connect(self.postgres.dsn, autocommit=True)
        )
        self.connection.execute(TABLES)
        config = directory / "broker.toml"
        config.write_text(broker_config())
        self.broker = Broker(directory / "broker", self.zookeeper, config, directory / "broker.log")
        stack.callback(self.broker.kill)
        self.broker.start()
        self.client = stack.enter_context(Client(self.zookeeper))
        self.consumers = Talker("the consumers", "meta_broker.demo.consumers", directory / "consumers.log")
        stack.callback(self.consumers.kill)
        self.consumers.start(StartConsumers(dsn=self.postgres.dsn, zookeeper=self.zookeeper, consumers=CONSUMERS))
        self.producers = Talker("the producers", "meta_broker.demo.producers", directory / "producers.log")
        stack.callback(self.producers.kill)

    def start_producers(self, limit: int) -> None:
        """Start the producer process, the first time or after a kill, to begin up to *limit* invoices.

        Returns at once: await its Recovered.
        """
        decisions = str(self.directory / "decisions")
        self.producers.start(
            StartProducers(
                dsn=self.postgres.dsn, zookeeper=self.zookeeper, decisions=decisions, orders=self._orders, limit=limit
            )
        )

    def stop_consumers(self) -> None:
        """Let the consumers leave their group and end."""
        self.consumers.send(Stop())
        self.consumers.wait_for_end(STOP_TIMEOUT_S)

    def progress(self) -> tuple[int, int]:
        """Return the invoices in the database, and the lines that the consumers have summed."""
        row = self.connection.execute(PROGRESS).fetchone()
        assert row is not None
        invoices, lines = row
        return invoices, lines

    def in_doubt_in_database(self) -> set[str]:
        """Return the transactions prepared in the database, by name."""
        return {_name(gid) for (gid,) in self.connection.execute(IN_DOUBT)}

    def in_doubt_on_broker(self) -> set[str]:
        """Return the transactions prepared on the broker, by name. Raises XaError if it does not answer in time."""
        deadline = time.monotonic() + BROKER_TIMEOUT_S
        while True:
            try:
                return {xid.gtrid.decode() for xid in self.client.producer(QUALIFIER).tpc_recover()}
            except XaError as error:
                if error.code != XaCode.XAER_RMFAIL or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)  # just restarted: its address may not be known everywhere yet


def _name(gid: str) -> str:
    try:
        return Xid.parse(gid).gtrid.decode()
    except (InvalidXid, UnicodeDecodeError):
        return gid  # not made by the demo
