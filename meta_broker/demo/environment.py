"""The environment: starts all processes in order, in one directory, and stops them in reverse. Main thread only."""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from journal.records.xid import Xid
from meta_broker.demo import producers
from meta_broker.demo.consumers import consuming
from meta_broker.demo.orders import PARTITIONS
from meta_broker.demo.producers import QUALIFIER, ProducerEvent, RecoveryDone, RolledBack, Shop, Trapped, Work
from meta_broker.demo.schema import IN_DOUBT, PROGRESS, TABLES
from meta_broker.testing.postgres import EmbeddedPostgres
from meta_broker.testing.real import STOP_TIMEOUT_S, BrokerProgram, ProgramFailed
from meta_client import Client
from meta_client.coordinator import TwoPhaseStep
from meta_client.protocol.errors import XaError
from meta_client.protocol.xa import XaCode
from zk.embedded.launch import log_tail, server_user
from zk.embedded.server import EmbeddedZooKeeper

CONSUMERS = 3
SPAWN = multiprocessing.get_context("spawn")  # this process has threads, which a fork would not take along
_E = TypeVar("_E", RecoveryDone, Trapped)
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


class ProducerProcess:
    """Producers that can be killed and started again, one process at a time. Owned by the thread that starts it."""

    def __init__(self, shop: Shop) -> None:
        self.rolled_back = 0  # attempts, over all starts
        self._shop = shop
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection

    @property
    def log_tail(self) -> str:
        return log_tail(self._shop.log)

    def start(self, limit: int) -> None:
        """Start the process, to begin up to *limit* invoices. Returns at once: await its RecoveryDone."""
        assert self._process is None
        self._pipe, theirs = SPAWN.Pipe()
        self._process = SPAWN.Process(target=producers.main, args=(theirs, self._shop, limit), daemon=True)
        self._process.start()
        theirs.close()  # or its end would not be noticed

    def order(self, limit: int, *steps: TwoPhaseStep) -> None:
        """Send Work. Raises ProgramFailed if the process has ended."""
        try:
            self._pipe.send(Work(limit, frozenset(steps)))
        except OSError as error:
            raise self._failed() from error

    def next_event(self, timeout_s: float) -> ProducerEvent | None:
        """Return the next event; None: there was none in time. Raises ProgramFailed if the process has ended."""
        try:
            if not self._pipe.poll(timeout_s):
                return None
            event: ProducerEvent = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._failed() from error
        self.rolled_back += isinstance(event, RolledBack)
        return event

    def wait_for(self, kind: type[_E], timeout_s: float) -> _E:
        """Return the next event of *kind*, dropping others before it. Raises ProgramFailed."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            if isinstance(event := self.next_event(left), kind):
                return event
        raise ProgramFailed(f"the producers said no {kind.__name__} within {timeout_s:g} s: {self.log_tail}")

    def kill(self) -> None:
        """Kill the process and wait until it is gone. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None

    def _failed(self) -> ProgramFailed:
        assert self._process is not None
        self._process.join(STOP_TIMEOUT_S)
        code = self._process.exitcode
        return ProgramFailed(f"the producers ended with code {code}; the end of {self._shop.log}: {self.log_tail}")


@dataclass(frozen=True)
class Environment:
    """The processes and servers of a run. Closing *consumers* ends them."""

    directory: Path
    connection: psycopg.Connection[Any]
    broker: BrokerProgram
    client: Client
    consumers: ExitStack
    producers: ProducerProcess

    def progress(self) -> tuple[int, int]:
        """Return the invoices in the database, and the lines that the consumers have summed."""
        ((invoices, lines),) = self.connection.execute(PROGRESS)
        return invoices, lines

    def in_doubt_in_database(self) -> set[str]:
        """Return the transactions prepared in the database, by name."""
        return {Xid.parse(gid).gtrid.decode() for (gid,) in self.connection.execute(IN_DOUBT)}

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
        zookeeper = stack.enter_context(EmbeddedZooKeeper(directory / "zookeeper"))
        dsn = stack.enter_context(EmbeddedPostgres(directory / "postgres")).dsn
        connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        connection.execute(TABLES)
        config = directory / "broker.toml"
        config.write_text(BROKER_TOML)
        broker = BrokerProgram(directory / "broker", zookeeper.connect, config, directory / "broker.log")
        stack.callback(broker.kill)
        broker.start()
        client = stack.enter_context(Client(zookeeper.connect))
        consumers = stack.enter_context(ExitStack())
        consumers.enter_context(consuming(dsn, zookeeper.connect, CONSUMERS))
        shop = Shop(dsn, zookeeper.connect, orders, directory / "decisions", directory / "producers.log")
        producing = ProducerProcess(shop)
        stack.callback(producing.kill)
        yield Environment(directory, connection, broker, client, consumers, producing)
