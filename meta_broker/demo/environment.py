"""The environment: starts all processes in order, stops them in reverse. Main thread only.

ZooKeeper, PostgreSQL, broker, consumers, producers: real processes, in one directory. They die with the thread that
starts them, see `launch`.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from journal.records.xid import InvalidXid, Xid
from meta_broker.demo.child_lines import Begin, DemoChild
from meta_broker.demo.messages import PARTITIONS
from meta_broker.demo.producers import QUALIFIER
from meta_broker.demo.schema import IN_DOUBT, PROGRESS, TABLES
from meta_broker.testing.launch import server_user
from meta_broker.testing.postgres import EmbeddedPostgres
from meta_broker.testing.processes import BrokerProgram
from meta_client import Client
from meta_client.protocol.errors import XaError
from meta_client.protocol.xa import XaCode
from zk.embedded.server import EmbeddedZooKeeper

CONSUMERS = 3
BROKER_TIMEOUT_S = 15

# Small segments and frequent checkpoints, so that a run of a minute crosses several of each; a short session, so
# that a killed broker is registered again soon. Flush has its default: fsync before each answer.
BROKER_TOML = """\
[broker]
segment_bytes = 4194304
checkpoint_bytes = 2097152
checkpoint_seconds = 5.0

[zookeeper]
session_timeout_ms = 3000
sync_ms = 0
""" + "".join(f"\n[topics.{topic}]\npartitions = {count}\n" for topic, count in PARTITIONS.items())


@dataclass(frozen=True)
class Environment:
    """The processes and servers of a run."""

    directory: Path
    orders: list[Path]
    dsn: str
    zookeeper: str
    connection: psycopg.Connection[Any]
    broker: BrokerProgram
    client: Client
    consumers: DemoChild
    producers: DemoChild

    def start_producers(self, limit: int) -> None:
        """Start the producer process, the first time or after a kill, to begin up to *limit* invoices.

        Returns at once: await its Recovered.
        """
        orders = [str(path.resolve()) for path in self.orders]
        decisions = str(self.directory / "decisions")
        start = Begin(dsn=self.dsn, zookeeper=self.zookeeper, decisions=decisions, orders=orders, limit=limit)
        self.producers.start(start)

    def progress(self) -> tuple[int, int]:
        """Return the invoices in the database, and the lines that the consumers have summed."""
        ((invoices, lines),) = self.connection.execute(PROGRESS)
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


@contextmanager
def running_environment(directory: Path, orders: list[Path]) -> Iterator[Environment]:
    """Run everything except the producers. Raises EmbeddedZooKeeperFailed, EmbeddedPostgresFailed, ProgramFailed."""
    with ExitStack() as stack:
        if server_user() is not None:
            directory.chmod(0o711)  # PostgreSQL runs as another user, in its own directory below this one
        zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
        zookeeper.start()
        stack.callback(zookeeper.stop)
        dsn = stack.enter_context(EmbeddedPostgres(directory / "postgres")).dsn
        connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        connection.execute(TABLES)
        config = directory / "broker.toml"
        config.write_text(BROKER_TOML)
        broker = BrokerProgram(directory / "broker", zookeeper.connect, config, directory / "broker.log")
        stack.callback(broker.kill)
        broker.start()
        client = stack.enter_context(Client(zookeeper.connect))
        children = []
        for name in ("consumers", "producers"):
            children.append(DemoChild(f"the {name}", f"meta_broker.demo.{name}", directory / f"{name}.log"))
            stack.callback(children[-1].kill)
        children[0].start(Begin(dsn=dsn, zookeeper=zookeeper.connect, consumers=CONSUMERS))
        yield Environment(directory, orders, dsn, zookeeper.connect, connection, broker, client, *children)


def _name(gid: str) -> str:
    try:
        return Xid.parse(gid).gtrid.decode()
    except (InvalidXid, UnicodeDecodeError):
        return gid  # not made by the demo
