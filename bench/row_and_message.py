"""A row and a message: the decision row, or metaq's outbox, beside the usual outbox, on one database and one broker.

In the usual outbox the message is a row of the same transaction, and a relay in a process of its own polls for such
rows, sends them, and deletes them once they are acknowledged; it may send twice. `python -m bench.row_and_message DSN
ZOOKEEPER` is that relay.
"""

import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import psycopg

from bench.environment import environment
from bench.result import Result
from bench.usage import measured
from meta_broker.testing.postgres import EmbeddedPostgres
from meta_client import Batch, Client
from meta_client.outbox import Outbox
from meta_client.outbox.engines import engine_at
from meta_client.outbox.tables import create
from meta_client.transactions.databases import init
from meta_client.transactions.table import KEEP_S

SECONDS: Final = 6.0
WARM_UP_S: Final = 1.5
POLL_S: Final = 0.02  # an eager relay: most poll every tenth of a second, or second
AT_ONCE: Final = 1_000
PAYLOAD: Final = b"x" * 1_000
_NUMBER = struct.Struct(">q")
Work = Callable[[psycopg.Connection, int], None]

TABLES: Final = """CREATE TABLE orders (id bigint PRIMARY KEY, note text);
CREATE TABLE outbox (id bigint PRIMARY KEY, payload bytea NOT NULL)"""
TAKE: Final = """DELETE FROM outbox WHERE id IN (SELECT id FROM outbox ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)
RETURNING payload"""


def decided_1(case: str) -> Result:
    """A row and a message decided by a row, against an outbox with a polling relay: one thread."""
    return _compare(case, 1)


def decided_16(case: str) -> Result:
    """The same, 16 threads."""
    return _compare(case, 16)


def decided_64(case: str) -> Result:
    """The same, 64 threads."""
    return _compare(case, 64)


def outbox_1(case: str) -> Result:
    """A row and a message through metaq's outbox, against the same baseline: one thread."""
    return _compare(case, 1, by_outbox=True)


def outbox_16(case: str) -> Result:
    """The same, 16 threads."""
    return _compare(case, 16, by_outbox=True)


def outbox_64(case: str) -> Result:
    """The same, 64 threads."""
    return _compare(case, 64, by_outbox=True)


def _compare(case: str, threads: int, *, by_outbox: bool = False) -> Result:
    """Measure transactions a second, and the time from commit to delivery, both ways. *by_outbox*: ours is metaq's
    outbox, else the decision row."""
    with environment("sync") as on, EmbeddedPostgres(settings={"max_connections": "150"}) as database:
        init(database.dsn, KEEP_S)
        engine = engine_at(database.dsn)
        with engine.connect() as connection:
            create(connection)
        engine.dispose()
        with psycopg.connect(database.dsn) as connection:
            connection.execute(TABLES)
        with Client(on.zookeeper) as client:
            watch = _Watch(client)
            with watch.consumer:
                watch.wait_ready()
                measure = partial(_measure, database.dsn, threads, watch, on.broker_pid)
                relays = [sys.executable, "-m", "bench.row_and_message", database.dsn, on.zookeeper]
                if by_outbox:
                    words = ["outbox", "relay", "--database", database.dsn, "--zk", on.zookeeper]
                    with _running([sys.executable, "-m", "meta_client.cli.main", *words, "--interval", str(POLL_S)]):
                        ours = measure(_with_outbox(Outbox()))
                else:
                    ours = measure(_decided(client))
                with _running(relays):
                    theirs = measure(_outboxed)
                apart = measure(_apart(client))
    detail = {
        "p50_ms": ours.ms,
        "outbox_p50_ms": theirs.ms,
        "latency_ratio": ours.ms / theirs.ms,
        "apart_tx_s": apart.tx_s,
    }
    detail |= {"outbox_us": theirs.us, "apart_us": apart.us}
    rounded = {name: round(value, 2) for name, value in detail.items()}
    return Result(case, ours.tx_s, "tx/s", theirs.tx_s, rounded | ours.usage)


@dataclass(frozen=True, slots=True)
class _Measured:
    tx_s: float
    ms: float  # from commit to consumer, the median
    usage: dict[str, Any]  # as Load.detail, of a transaction

    @property
    def us(self) -> float:
        """Processor time of a transaction, of all processes."""
        return float(sum(self.usage[f"{process}_us"] for process in ("client", "broker", "others")))


def _decided(client: Client) -> Work:
    def work(connection: psycopg.Connection, number: int) -> None:
        with client.transaction(connection) as transaction:
            connection.execute("INSERT INTO orders VALUES (%s, 'note')", (number,))
            transaction.send("bench", _NUMBER.pack(number) + PAYLOAD)

    return work


@contextmanager
def _running(command: list[str]) -> Iterator[None]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as relay:
        try:
            yield
        finally:
            relay.kill()


def _with_outbox(outbox: Outbox) -> Work:
    def work(connection: psycopg.Connection, number: int) -> None:
        with connection.transaction():
            connection.execute("INSERT INTO orders VALUES (%s, 'note')", (number,))
            outbox.send(connection, "bench", _NUMBER.pack(number) + PAYLOAD)

    return work


def _apart(client: Client) -> Work:
    """Return work without a guarantee: commit the row, then send the message and wait for it."""
    producer = client.producer()

    def work(connection: psycopg.Connection, number: int) -> None:
        with connection.transaction():
            connection.execute("INSERT INTO orders VALUES (%s, 'note')", (number,))
        producer.send("bench", _NUMBER.pack(number) + PAYLOAD)

    return work


def _outboxed(connection: psycopg.Connection, number: int) -> None:
    with connection.transaction():
        connection.execute("INSERT INTO orders VALUES (%s, 'note')", (number,))
        connection.execute("INSERT INTO outbox VALUES (%s, %s)", (number, _NUMBER.pack(number) + PAYLOAD))


class _Watch:
    """Consumes, and records the arrival of each message."""

    def __init__(self, client: Client) -> None:
        self.came: dict[int, int] = {}
        self.consumer = client.consumer("bench-rows")
        self.consumer.subscribe("bench", self._take)

    def wait_ready(self) -> None:
        while not self.consumer.owned():
            time.sleep(0.05)

    def _take(self, batch: Batch) -> None:
        now = time.monotonic_ns()
        for message in batch.messages:
            self.came[_NUMBER.unpack_from(message.payload)[0]] = now


def _measure(dsn: str, threads: int, watch: _Watch, broker_pid: int, work: Work) -> _Measured:
    """Measure *work* after the warm-up."""
    committed: dict[int, int] = {}
    base = time.monotonic_ns()  # numbers of this measurement
    stopping = threading.Event()

    def run(thread: int) -> None:
        with psycopg.connect(dsn) as connection:
            number = base + thread * 10**12
            while not stopping.is_set():
                number += 1
                work(connection, number)
                committed[number] = time.monotonic_ns()

    workers = [threading.Thread(target=run, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    time.sleep(WARM_UP_S)
    with measured(broker_pid) as load:
        first = time.monotonic_ns()
        time.sleep(SECONDS)
        last = time.monotonic_ns()
    stopping.set()
    for worker in workers:
        worker.join()
    deadline = time.monotonic() + 60
    while missing := committed.keys() - watch.came.keys():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(missing)} of {len(committed)} messages did not come")
        time.sleep(0.05)
    counted = [number for number, at in committed.items() if first <= at <= last]
    delays = [max(0, watch.came[number] - committed[number]) / 1e6 for number in counted]
    return _Measured(len(counted) / ((last - first) / 1e9), statistics.median(delays), load.detail(len(counted)))


def relay(dsn: str, zookeeper: str) -> None:
    """Send the rows of the outbox until killed."""
    with Client(zookeeper) as client, psycopg.connect(dsn) as connection:
        producer = client.producer()
        while True:
            with connection.transaction():
                payloads = connection.execute(TAKE, (AT_ONCE,)).fetchall()
                for (payload,) in payloads:
                    producer.send_async("bench", payload)
                producer.flush()
            if len(payloads) < AT_ONCE:
                time.sleep(POLL_S)


if __name__ == "__main__":
    relay(*sys.argv[1:])
