"""Announcement of a broker's topics, and its cost with thousands of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from journal.records.record import PartitionName
from journal.state.journal_state import OffsetRange
from journal.state.wall_clock import wall_clock_ms
from meta_broker.cluster.topic_announcer import TopicAnnouncer
from meta_broker.config.broker_config import BrokerConfig, TopicConfig
from meta_broker.store.message_store import MessageStore
from meta_broker.store.topics import Topics
from zk.brokers.registration import TopicRegistration


class Counted(dict[PartitionName, OffsetRange]):
    """Partitions that count how often all of them are looked at."""

    looks = 0

    def items(self) -> Any:
        self.looks += 1
        return super().items()

    def __iter__(self) -> Iterator[PartitionName]:
        self.looks += 1
        return super().__iter__()


def test_every_partition_is_looked_at_no_more_often_for_more_topics(tmp_path: Path) -> None:
    store = MessageStore.open(BrokerConfig(data=tmp_path, broker_id=0, port=0), "test", lambda: None, wall_clock_ms)
    try:
        for number in range(100):
            store.transactions.put(PartitionName(f"t{number}", number % 3), [b"x" * 21], 21, 1)
        offset_ranges = store.source.state.offset_ranges = Counted(store.source.state.offset_ranges)
        topics = Topics({"t1*": TopicConfig(partitions=2)})
        announcer = TopicAnnouncer(topics, store, None)
        found = announcer.registrations()
        assert offset_ranges.looks <= 3
        assert len(found) == 101
        assert found["t10"] == TopicRegistration(2)
        assert found["t11"] == TopicRegistration(3)
        assert found["t20"] == TopicRegistration(3, accept_publish=False)
        offset_ranges.looks = 0
        changed = announcer.follow_file({"t2*": TopicConfig(partitions=5)})
        store.journal.wait_flushed(store.journal.end)
        store.advance()
        assert len(changed) == 24
        assert offset_ranges.looks <= 6
        assert announcer.registrations()["t20"] == TopicRegistration(5)
    finally:
        store.close()
