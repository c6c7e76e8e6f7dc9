"""The consumer process: members of one group, which sum revenue by country, each line exactly once.

The position is kept in the database, in the transaction that counts the batch: a batch delivered twice, or to two
owners at once, finds that the position has moved on.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from decimal import Decimal
from typing import Any

import psycopg

from meta_broker.demo.child import listen, read_order, tell
from meta_broker.demo.messages import LINES_TOPIC, decode_line
from meta_broker.demo.schema import ADD_ORPHANS, ADD_REVENUE, ADVANCE, FIRST_POSITION, POSITION
from meta_broker.demo.talk import Finished, Order, StartConsumers, Stop
from meta_client import Batch, Client
from meta_client.consumer.batch import ReceivedMessage
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.offsets import OffsetEntry
from zk.tree.nodes import Partition

GROUP = "revenue"
CONFIG = ConsumerConfig(runners=2, backoff_s_max=0.1)

log = logging.getLogger(__name__)

Connection = psycopg.Connection[Any]


class Positions:
    """Offsets of the group for the consumer, read from where `Summing` keeps them."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def load(self, topic: str, partition: Partition) -> int | None:
        with psycopg.connect(self._dsn) as connection:
            connection.execute(FIRST_POSITION, (topic, str(partition)))
            return position(connection, topic, partition)

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        """Do nothing: the offsets were committed together with the sums."""


class Summing:
    """A listener. Called on several threads at once, each with its own connection."""

    def __init__(self, dsn: str, stack: ExitStack) -> None:
        self._dsn = dsn
        self._stack = stack
        self._opening = threading.Lock()
        self._local = threading.local()

    def on_batch(self, batch: Batch) -> None:
        connection = self._connection()
        with connection.transaction():
            count(connection, batch)

    def _connection(self) -> Connection:
        known: Connection | None = getattr(self._local, "connection", None)
        if known is None or known.closed:
            known = psycopg.connect(self._dsn, autocommit=True)
            with self._opening:
                self._stack.callback(known.close)
            self._local.connection = known
        return known


def count(connection: Connection, batch: Batch) -> None:
    """Add *batch* to the revenue unless it has been added, and move the position past it. In one transaction."""
    if _advance(connection, batch, batch.offset):
        _add(connection, batch.messages)
        return
    stored = position(connection, batch.topic, batch.partition)
    log.info("batch counted before partition=%s offset=%d stored=%d", batch.partition, batch.offset, stored)
    if stored >= batch.next_offset:
        return
    if stored < batch.offset:
        raise ValueError(f"{batch.topic}/{batch.partition}: a batch at {batch.offset}, but only {stored} was counted")
    if _advance(connection, batch, stored):  # its beginning was counted: add the rest
        _add(connection, [message for message in batch.messages if message.offset >= stored])


def position(connection: Connection, topic: str, partition: Partition) -> int:
    row = connection.execute(POSITION, (topic, str(partition))).fetchone()
    assert row is not None, "made when the partition became ours"
    return int(row[0])


def _advance(connection: Connection, batch: Batch, expected: int) -> bool:
    where = (batch.next_offset, batch.topic, str(batch.partition), expected)
    return connection.execute(ADVANCE, where).rowcount == 1


def _add(connection: Connection, messages: Sequence[ReceivedMessage]) -> None:
    sums: dict[str, tuple[int, Decimal]] = defaultdict(lambda: (0, Decimal(0)))
    seen = set()
    for line in (decode_line(message.payload) for message in messages):
        lines, amount = sums[line.country]
        sums[line.country] = lines + 1, amount + line.amount
        seen.add(line.invoice)
    connection.execute(ADD_ORPHANS, (sorted(seen),))
    with connection.cursor() as cursor:
        # Always in the same order, so that two consumers updating the same rows do not deadlock.
        cursor.executemany(ADD_REVENUE, [(country, *sums[country]) for country in sorted(sums)])


def main() -> None:
    """Follow the stage's orders: consume until told to stop, or until the stage is gone."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(threadName)s %(name)s %(message)s")
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    start = read_order()
    assert isinstance(start, StartConsumers)
    stopped = threading.Event()

    def obey(order: Order | None) -> None:
        if order is None or isinstance(order, Stop):
            stopped.set()

    listen(obey)
    with ExitStack() as stack:
        summing = Summing(start.dsn, stack)
        for _ in range(start.consumers):
            client = stack.enter_context(Client(start.zookeeper))  # one session each, as on three machines
            consumer = client.consumer(GROUP, Positions(start.dsn), config=CONFIG)
            consumer.subscribe(LINES_TOPIC, summing.on_batch)
            stack.callback(consumer.close)
            consumer.start()
        stopped.wait()
    tell(Finished())


if __name__ == "__main__":
    main()
