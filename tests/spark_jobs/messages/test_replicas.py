"""Reads of a broker whose master is away and whose slave has less: what the slave has comes, and nothing is lost."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from meta_client.client import Client
from meta_client.errors import BrokerAway
from spark_jobs.formats import MetaqReader
from spark_jobs.messages.options import read_options
from spark_jobs.messages.stream import MessageStream
from tests.fixtures.broker import CONFIG
from tests.fixtures.replicas import Replicas, wait_identical, wait_until
from zk.brokers.cluster import read_brokers
from zk.embedded.chroot import Chroot

COPIED, ALL = 20, 50
Reader = MetaqReader | MessageStream


@pytest.fixture
def pair(tmp_path: Path, zookeeper: Chroot) -> Iterator[Replicas]:
    """A master with ALL messages in orders/0-0, and its slave with the first COPIED of them."""
    with Replicas(tmp_path / "pair", zookeeper.connect, CONFIG) as pair, Client(zookeeper.connect) as client:
        send(client, 0, COPIED)
        wait_identical(pair.master.data, pair.slaves[0].data)
        pair.links[0].refuse()
        send(client, COPIED, ALL)
        yield pair


def send(client: Client, first: int, after: int) -> None:
    producer = client.producer()
    for number in range(first, after):
        producer.send_async("orders", b"%d" % number, partition="0-0")
    producer.flush(30)


def numbers(reader: Reader, tasks: list[InputPartition]) -> list[int]:
    return [int(row["payload"]) for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def wait_for_the_slave(zookeeper: Chroot, *, alone: bool) -> None:
    """Until clients see the slave beside its master, or alone."""
    with Client(zookeeper.connect) as client:

        def is_seen() -> bool:
            entry = read_brokers(client.session).get(0)
            return entry is not None and bool(entry.slaves) and (entry.master is None) is alone

        wait_until(is_seen, "ZooKeeper names the replicas")


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_slave_that_lags_serves_what_it_has_and_the_rest_waits(pair: Replicas, zookeeper: Chroot, fails: str) -> None:
    given = {"zookeeper": zookeeper.connect, "subscribe": "orders", "failOnDataLoss": fails}

    def batch_query() -> list[int]:
        reader = MetaqReader(read_options(given, is_stream=False), ("payload",))
        return numbers(reader, reader.partitions())

    def stream() -> MessageStream:
        return MessageStream(read_options(given | {"startingOffsets": "earliest"}, is_stream=True), ("payload",))

    wait_for_the_slave(zookeeper, alone=False)
    query = stream()
    start = query.initialOffset()
    end = query.latestOffset(start, ReadAllAvailable())
    assert numbers(query, query.partitions(start, end)) == list(range(ALL))
    query.stop()

    pair.master.kill()
    wait_for_the_slave(zookeeper, alone=True)
    assert batch_query() == list(range(COPIED))
    again = stream()  # after a restart, from its checkpoint
    assert again.latestOffset(end, ReadAllAvailable()) == end, "nothing goes backwards"
    some = again.latestOffset(start, ReadAllAvailable())
    assert numbers(again, again.partitions(start, some)) == list(range(COPIED))
    # A batch that was planned by what the master had, and is repeated: its messages are away, not gone.
    for begin in (start, some):
        with pytest.raises(BrokerAway, match=r"orders/0-0.*its slave has not got .* start its master, or wait"):
            numbers(again, again.partitions(begin, end))

    pair.master.start()
    wait_for_the_slave(zookeeper, alone=False)
    again.stop()
    last = stream()  # Spark has ended the former one, with the error
    assert numbers(last, last.partitions(some, end)) == list(range(COPIED, ALL))
    assert batch_query() == list(range(ALL))
    last.stop()
    pair.links[0].heal()
