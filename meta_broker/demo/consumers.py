"""The consumers: members of one group, which sum revenue by country, each line exactly once.

The offset is stored in the transaction that counts the batch: `take` leaves out what was counted before.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal

import psycopg

from meta_broker.demo.orders import LINES_TOPIC, decode_line
from meta_broker.demo.schema import ADD_ORPHANS, ADD_REVENUE
from meta_client import Batch, Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.offset_stores import TransactionOffsetStore

GROUP = "revenue"
CONFIG = ConsumerConfig(runners=2, backoff_s_max=0.1)


class Summing:
    """A listener. Called on several threads at once, each with its own connection."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.offsets = TransactionOffsetStore(lambda: psycopg.connect(dsn), GROUP)

    def on_batch(self, batch: Batch) -> None:
        """Add to the revenue what has not been counted of *batch*, in one transaction with the offset."""
        with psycopg.connect(self._dsn) as connection:
            sums: dict[str, tuple[int, Decimal]] = defaultdict(lambda: (0, Decimal(0)))
            seen = set()
            for message in self.offsets.take(connection, batch):
                line = decode_line(message.payload)
                lines, amount = sums[line.country]
                sums[line.country] = lines + 1, amount + line.amount
                seen.add(line.invoice)
            connection.execute(ADD_ORPHANS, (sorted(seen),))
            with connection.cursor() as cursor:
                # Always in the same order, so that two consumers updating the same rows do not deadlock.
                cursor.executemany(ADD_REVENUE, [(country, *sums[country]) for country in sorted(sums)])


@contextmanager
def consuming(dsn: str, zookeeper: str, members: int) -> Iterator[None]:
    """Have *members* consume: one client each, as on so many machines."""
    summing = Summing(dsn)
    with ExitStack() as stack:
        for _ in range(members):
            consumer = stack.enter_context(Client(zookeeper)).consumer(GROUP, summing.offsets, config=CONFIG)
            consumer.subscribe(LINES_TOPIC, summing.on_batch)
            consumer.start()
        yield
