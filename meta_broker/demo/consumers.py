"""The consumer process: members of one group, which sum revenue by country, each line exactly once.

The offset is stored in the transaction that counts the batch: `take` leaves out what was counted before.
"""

from collections import defaultdict
from contextlib import ExitStack
from decimal import Decimal
from typing import Any

import psycopg

from meta_broker.demo import child_lines
from meta_broker.demo.messages import LINES_TOPIC, LineMessage, decode
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
        with psycopg.connect(self._dsn) as connection:
            self.count(connection, batch)

    def count(self, connection: psycopg.Connection[Any], batch: Batch) -> None:
        """Add to the revenue what has not been counted of *batch*, in the transaction of *connection*."""
        sums: dict[str, tuple[int, Decimal]] = defaultdict(lambda: (0, Decimal(0)))
        seen = set()
        for message in self.offsets.take(connection, batch):
            line = decode(message.payload, LineMessage)
            lines, amount = sums[line.country]
            sums[line.country] = lines + 1, amount + line.amount
            seen.add(line.invoice)
        connection.execute(ADD_ORPHANS, (sorted(seen),))
        with connection.cursor() as cursor:
            # Always in the same order, so that two consumers updating the same rows do not deadlock.
            cursor.executemany(ADD_REVENUE, [(country, *sums[country]) for country in sorted(sums)])


def main() -> None:
    """Consume until the environment ends the input, or is gone."""
    start = child_lines.begun()
    summing = Summing(start.dsn)
    with ExitStack() as stack:
        for _ in range(start.consumers):
            client = stack.enter_context(Client(start.zookeeper))  # one session each, as on three machines
            consumer = client.consumer(GROUP, summing.offsets, config=CONFIG)
            consumer.subscribe(LINES_TOPIC, summing.on_batch)
            stack.callback(consumer.close)
            consumer.start()
        child_lines.listen(lambda order: None)
    child_lines.tell(child_lines.Finished())


if __name__ == "__main__":
    main()
