"""Replica that a broker tells its readers to use next."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from journal.records.header import Lsn
from journal.records.record import PartitionName
from journal.state.wall_clock import wall_clock_ms
from meta_broker.cluster.topic_announcer import TopicAnnouncer
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.config.broker_section import BrokerSection
from meta_broker.handlers.context import Context, ReadReplica
from meta_broker.handlers.get import outside
from meta_broker.handlers.message_ids import MessageIds
from meta_broker.handlers.message_reader import answer_line, read_from
from meta_broker.replication.replica.receiver import ReplicaReceiver
from meta_broker.store.message_store import MessageStore
from meta_broker.store.partition_index import JournalSlice
from meta_broker.store.topics import Topics
from meta_client.protocol.requests import Fetch
from meta_client.protocol.responses import Behind

FAR = 100_000


class Follower:
    slave_id = 3
    master = "meta://127.0.0.1:8123"
    is_readable = has_heard = is_in_sync = True

    def lag(self) -> Behind:
        return Behind(4096, 17)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    """A broker with 300 kB of journal, of which 100 kB count as memory."""
    config = BrokerConfig(data=tmp_path, broker_id=0, port=0, broker=BrokerSection(tell_end_offset=True))
    store = MessageStore.open(config, "test", lambda: None, wall_clock_ms)
    topics = Topics({})
    store.page_cache.hot_bytes = FAR
    store.transactions.put(PartitionName("orders", 0), [bytes(300_000)], 300_000, 1)
    store.journal.wait_flushed(store.journal.end, 60)
    try:
        yield Context(
            config=config,
            store=store,
            topics=topics,
            ids=MessageIds(0, wall_clock_ms),
            announcer=TopicAnnouncer(topics, store, None),
            url="",
            version="",
        )
    finally:
        store.close()


def fetch(partition: int = 0) -> Fetch:
    return Fetch("orders", "group", partition, 0, 1000, 1, 0, 7)


def place(context: Context, distance: int) -> list[JournalSlice]:
    return [JournalSlice(context.store.journal.end - distance, 10)]


def test_a_master_names_a_slave_to_a_reader_far_behind(context: Context) -> None:
    assert read_from(context, fetch(), place(context, FAR + 1)) == "m"  # there is none
    end = context.store.journal.end
    context.replicas = lambda: [ReadReplica(2, end)]
    assert read_from(context, fetch(), place(context, FAR + 1)) == "s2"
    assert read_from(context, fetch(), place(context, FAR)) == "m"
    assert read_from(context, fetch(), []) == "m"


def test_only_a_slave_that_has_got_so_far_is_named(context: Context) -> None:
    end = context.store.journal.end
    context.replicas = lambda: [ReadReplica(2, Lsn(end - 2 * FAR))]
    assert read_from(context, fetch(), place(context, 2 * FAR)) == "m"
    assert read_from(context, fetch(), place(context, 2 * FAR + 1)) == "s2"


def test_partitions_are_spread_and_each_stays_where_it_is(context: Context) -> None:
    end = context.store.journal.end
    context.replicas = lambda: [ReadReplica(number, end) for number in (1, 2, 3)]
    named = [read_from(context, fetch(number), place(context, FAR + 1)) for number in range(100)]
    assert set(named) == {"s1", "s2", "s3"}
    assert named == [read_from(context, fetch(number), place(context, FAR + 1)) for number in range(100)]


def test_a_slave_keeps_its_reader_until_that_is_well_within_memory(context: Context) -> None:
    context.slave = cast(ReplicaReceiver, Follower())
    assert read_from(context, fetch(), place(context, FAR + 1)) == "s3"
    assert read_from(context, fetch(), place(context, FAR)) == "s3"
    assert read_from(context, fetch(), place(context, FAR // 2)) == "m"
    assert read_from(context, fetch(), []) == "m"


def test_a_slave_tells_how_far_it_is_behind_and_a_master_does_not(context: Context) -> None:
    assert answer_line(context, fetch(), 0, 25) == b"data 0 25 m 7\r\n"
    context.slave = cast(ReplicaReceiver, Follower())
    assert answer_line(context, fetch(), 0, 25) == b"data 0 25 m 4096 17 7\r\n"
    assert answer_line(context, fetch(), 10, 25, place(context, FAR)) == b"data 10 25 s3 4096 17 7\r\n"


def test_a_slave_sends_nobody_back_to_its_end(context: Context) -> None:
    ahead = Fetch("orders", "group", 0, 500, 1000, 1, 0, 7)
    assert outside(context, ahead, 0, 300).startswith(b"result 301 ")
    context.slave = cast(ReplicaReceiver, Follower())
    assert outside(context, ahead, 0, 300).startswith(b"result 404 ")
    assert outside(context, ahead, 600, 700) == b"result 301 3 7\r\n600"
