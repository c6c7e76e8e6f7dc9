"""Offsets at which a read begins in each partition, by its options; and topics that no broker can have."""

import json

import pytest

from journal.errors import InvalidRecord
from meta_client.protocol.answers import PartitionOffsets
from spark_jobs.messages.cluster import Cut
from spark_jobs.messages.names import Names, OffsetSpan
from spark_jobs.messages.options import InvalidOption, ReadOptions, read_options
from spark_jobs.messages.planning import read_messages, starting_offsets

HELD = {("orders", "0-0"): PartitionOffsets(100, 900, 400), ("orders", "0-1"): PartitionOffsets(0, 50, 50)}


def options(start: object, topics: str = "orders") -> ReadOptions:
    text = start if isinstance(start, str) else json.dumps(start)
    given = {"zookeeper": "127.0.0.1:2181", "subscribe": topics, "startingOffsets": text}
    return read_options(given, is_stream=start == "latest")


@pytest.mark.parametrize(
    ("start", "starts"),
    [
        ("earliest", [100, 0]),
        ("latest", [900, 50]),
        ({"orders": {"0-0": 500}}, [500, 0]),
        ({"orders": {"0-0": -2, "0-1": 50}}, [100, 50]),
        ({"orders": {"0-0": 50, "0-1": 99}}, [50, 50]),
        ({"orders": {"0-0": -1}}, [900, 0]),
    ],
)
def test_each_partition_begins_where_it_is_told(start: object, starts: list[int]) -> None:
    found = starting_offsets(options(start), None, Cut({}, HELD))  # type: ignore[arg-type]  # asked for times alone
    assert list(found.values()) == starts


@pytest.mark.parametrize("named", [{"orders": {"0-7": 5}}, {"stock": {"0-0": 5}}])
def test_an_offset_of_what_is_not_read_is_refused(named: object) -> None:
    with pytest.raises(InvalidOption, match="which is not read: see `metaq topics`"):
        starting_offsets(options(named), None, Cut({}, HELD))  # type: ignore[arg-type]  # asked for times alone


def test_a_task_of_sparks_own_reads_nothing() -> None:
    assert list(read_messages(None, options("earliest"), ())) == []  # type: ignore[arg-type]  # of what Spark makes itself


@pytest.mark.parametrize(("topic", "why"), [(b"", "a topic of 0 bytes"), (b"\xff", "a topic that is not UTF-8")])
def test_a_topic_that_no_broker_stores(topic: bytes, why: str) -> None:
    names = Names(0, lambda name, partition: OffsetSpan(0, 1))
    with pytest.raises(InvalidRecord, match=why):
        names.number(topic, 0)
    assert [names.number(b"orders", 1), names.number(b"orders", 2), names.number(b"orders", 1)] == [0, 1, 0]
