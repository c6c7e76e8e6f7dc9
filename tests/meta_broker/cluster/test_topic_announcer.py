"""Announcement of a broker's topics, and its cost with thousands of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from journal.records.record import PartitionName
from journal.state.journal_state import OffsetRange
from journal.state.wall_clock import wall_clock_ms
from meta_broker.cluster.topic_announcer import TopicAnnouncer, reload
from meta_broker.config.broker_config import BrokerConfig, TopicConfig
from meta_broker.config.loading import load
from meta_broker.store.message_store import MessageStore
from meta_broker.store.topics import Topics
from tests.fixtures.access import AccessFile
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


def test_a_reload_takes_what_it_can_and_says_what_needs_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, topics = tmp_path / "broker.toml", "[topics.orders]\n"
    path.write_text(topics)
    config = load(path, data=tmp_path / "data", broker_id=0, port=0)
    access = AccessFile(tmp_path / "access.toml", shop='consume = ["*"]').section()
    path.write_text(f"[broker]\nconnections_max = 7\n[admin]\nhost = 'localhost'\n[topics.stock]\n{access}")
    fresh = reload(config)
    assert fresh is not None
    assert [*fresh.topics] == ["stock"]
    assert (fresh.broker, fresh.admin, fresh.rules) == (config.broker, config.admin, None)
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "only topics, filters, TLS, access and quotas are reloaded",
        "[admin] is changed by a restart alone, apart from the token in its file",
        "access rules are turned on and off by a restart alone",
    ]
    path.write_text("[topics")
    assert reload(config) is None
    assert caplog.messages[-1].startswith("not reloaded, everything stays as it was")
