"""`readStream.format("metaq")`: every message in one batch, through restarts; its limits; messages that are gone."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import GreaterThan
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from meta_client.errors import BrokerAway, NotConnected
from meta_client.protocol.messages import encode_frame
from spark_jobs.messages import fetching
from spark_jobs.messages.fetching import FetchTask
from spark_jobs.messages.frames import Extents, find_frames
from spark_jobs.messages.options import read_options
from spark_jobs.messages.segments import DataLost
from spark_jobs.messages.selection import Selection
from spark_jobs.messages.stream import MessageStream, limited
from tests.spark_jobs.conftest import SmallCluster
from zk.brokers.cluster import BrokerEntry
from zk.tree.broker_url import BrokerUrl

WAIT_S = 60


def send(cluster: SmallCluster, topic: str, count: int, first: int = 0) -> None:
    producer = cluster.client.producer()
    for number in range(first, first + count):
        producer.send_async(topic, b"%d" % number, partition=f"{number % 2}-{number // 2 % 4}")
    producer.flush(30)


@pytest.fixture
def rows(tmp_path: Path) -> Callable[[], list[int]]:
    """Numbers that a query has written to files, sorted."""

    def read() -> list[int]:
        lines = [line for part in (tmp_path / "out").glob("part-*") for line in part.read_text().split()]
        return sorted(int(json.loads(line)["number"]) for line in lines)

    return read


@pytest.fixture
def writer(spark: SparkSession, cluster: SmallCluster, tmp_path: Path) -> Callable[..., DataStreamWriter]:
    """A query over a topic that writes the numbers to JSON files, with its own checkpoint."""

    def make(topic: str, **options: int) -> DataStreamWriter:
        source = spark.readStream.format("metaq").options(zookeeper=cluster.zookeeper, subscribe=topic, **options)
        source = source.option("startingOffsets", "earliest")
        numbers: DataFrame = source.schema("payload BINARY").load().selectExpr("string(payload) AS number")
        written = numbers.writeStream.format("json").option("path", str(tmp_path / "out"))
        return written.option("checkpointLocation", str(tmp_path / "checkpoint"))

    return make


@pytest.fixture(autouse=True)
def _ends(spark: SparkSession) -> Iterator[None]:
    yield
    for query in spark.streams.active:
        query.stop()


def until(reached: Callable[[], bool], query: StreamingQuery) -> None:
    deadline = time.monotonic() + WAIT_S
    while not reached():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_every_message_once_as_it_comes(
    cluster: SmallCluster, topic: str, writer: Callable[..., DataStreamWriter], rows: Callable[[], list[int]]
) -> None:
    send(cluster, topic, 30)
    query = writer(topic).trigger(processingTime="100 milliseconds").start()
    until(lambda: len(rows()) >= 30, query)
    send(cluster, topic, 20, 30)
    until(lambda: len(rows()) >= 50, query)
    assert rows() == list(range(50))
    until(lambda: query.lastProgress is not None and query.lastProgress.numInputRows == 0, query)
    progress = query.lastProgress
    assert progress is not None
    (source,) = json.loads(progress.json)["sources"]
    assert source["latestOffset"] == source["endOffset"]  # no lag
    assert set(source["endOffset"][topic]) == {f"{broker}-{number}" for broker in range(2) for number in range(4)}


def test_available_now_in_limited_batches_and_again_from_the_checkpoint(
    cluster: SmallCluster, topic: str, writer: Callable[..., DataStreamWriter], rows: Callable[[], list[int]]
) -> None:
    send(cluster, topic, 40)
    limited_query = writer(topic, maxOffsetsPerTrigger=500).trigger(availableNow=True).start()
    assert limited_query.awaitTermination(WAIT_S)
    assert limited_query.exception() is None
    assert rows() == list(range(40))
    assert len([one for one in limited_query.recentProgress if one.numInputRows]) > 1
    send(cluster, topic, 10, 40)
    again = writer(topic).trigger(availableNow=True).start()
    assert again.awaitTermination(WAIT_S)
    assert rows() == list(range(50))


def stream(cluster: SmallCluster, topic: str, **options: str) -> MessageStream:
    given = {"zookeeper": cluster.zookeeper, "subscribe": topic} | options
    return MessageStream(read_options(given, is_stream=True), ("offset",))


@pytest.mark.parametrize("is_available_now", [False, True])
def test_messages_that_are_gone(cluster: SmallCluster, topic: str, is_available_now: bool) -> None:
    send(cluster, topic, 8)
    beyond = {topic: {"0-0": 10_000_000}}
    source = stream(cluster, topic)
    try:
        if is_available_now:
            source.prepareForTriggerAvailableNow()
        with pytest.raises(DataLost, match="its newest messages are lost"):
            source.latestOffset(beyond, ReadAllAvailable())
    finally:
        source.stop()
    patient = stream(cluster, topic, failOnDataLoss="false")
    try:
        assert patient.latestOffset(beyond, ReadAllAvailable())[topic]["0-0"] == 10_000_000
    finally:
        patient.stop()
    task = FetchTask(topic, "0-0", BrokerEntry(BrokerUrl.parse(cluster.brokers[0].url)), 10_000, 20_000)
    with pytest.raises(DataLost, match=r"-0: offsets from [0-9]+ on are not stored any more"):
        list(fetching.read_task(task, Selection(), ("offset",), fail_on_data_loss=True))
    assert list(fetching.read_task(task, Selection(), ("offset",), fail_on_data_loss=False)) == []


def test_a_broker_that_is_away_holds_up_its_own_partitions_alone(cluster: SmallCluster, topic: str) -> None:
    send(cluster, topic, 16)
    source, available_now = (stream(cluster, topic, startingOffsets="earliest") for _ in range(2))
    try:
        begun = source.initialOffset()
        available_now.prepareForTriggerAvailableNow()
        cluster.brokers[1].kill()
        ends = source.latestOffset(begun, ReadAllAvailable())
        assert {name: ends[topic][name] > begun[topic][name] for name in ("0-0", "1-0")} == {"0-0": True, "1-0": False}
        with pytest.raises((NotConnected, BrokerAway), match=r"broker (up|is not up)"):
            available_now.latestOffset(begun, ReadAllAvailable())
        cluster.brokers[1].start()
        deadline = time.monotonic() + WAIT_S
        while source.latestOffset(begun, ReadAllAvailable())[topic]["1-0"] == begun[topic]["1-0"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        while len(cluster.client.topology.view(topic, 5).available) < 8:  # or the next test finds half a cluster
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        source.stop()
        available_now.stop()


def test_a_deleted_topic_is_data_loss_and_a_broker_that_is_away_is_none(cluster: SmallCluster) -> None:
    """The batch was planned before: Spark reads it again after a restart."""
    batch = {"spark-gone": {"0-0": 10}}
    named = {"zookeeper": cluster.zookeeper, "subscribe": "spark-gone"}
    strict, lenient = (
        MessageStream(read_options(named | {"failOnDataLoss": fails}, is_stream=True), ("offset",))
        for fails in ("true", "false")
    )
    try:
        with pytest.raises(DataLost, match="broker 0 has spark-gone/0-0 not any more, which the checkpoint names"):
            strict.partitions({}, batch)
        assert lenient.partitions({}, batch) == []
        with pytest.raises(BrokerAway, match="read spark-gone/9-0: its broker is not up"):
            lenient.partitions({}, {"spark-gone": {"0-0": 10, "9-0": 10}})
    finally:
        strict.stop()
        lenient.stop()


@pytest.mark.parametrize(
    ("option", "offsets"), [("startingOffsets", {"9-9": 5}), ("endingOffsets", {"9-9": 5}), ("startingOffsets", None)]
)
def test_offsets_of_what_is_not_read_are_refused(
    spark: SparkSession, cluster: SmallCluster, topic: str, option: str, offsets: dict[str, int] | None
) -> None:
    send(cluster, topic, 8)
    given = {topic: offsets} if offsets else {"spark-othr": {"0-0": 5}}
    reader = spark.read.format("metaq").options(zookeeper=cluster.zookeeper, subscribe=topic)
    with pytest.raises(PySparkException, match=f'option "{option}" names spark-'):
        reader.option(option, json.dumps(given)).load().collect()


def test_a_filter_on_time_leaves_out_what_has_none() -> None:
    """A genuine broker's ids hold no times, so that the timestamp is null: no comparison holds of it."""
    body = encode_frame(1 << 62, 0, b"x")
    one, zero = np.ones(1, np.int64), np.zeros(1, np.int64)
    frames = find_frames(body, Extents(zero, zero, zero - 1, zero, one, zero + len(body)))
    selection = Selection()
    assert selection.push_filter(GreaterThan(("timestamp",), datetime(2020, 1, 1, tzinfo=UTC)))
    for has_times in (True, False):
        mask = selection.mask(frames, has_times=has_times)
        assert mask is not None
        assert mask.tolist() == [has_times]


def test_a_limit_is_shared_and_never_stops_a_partition() -> None:
    begins = {("t", "0-0"): 0, ("t", "0-1"): 100, ("t", "0-2"): 7}
    ends = {("t", "0-0"): 1000, ("t", "0-1"): 101, ("t", "0-2"): 7}
    assert limited(begins, ends, 2000) == ends
    some = limited(begins, ends, 10)
    assert some == {("t", "0-0"): 10, ("t", "0-1"): 101, ("t", "0-2"): 7}
    assert (
        ReadMaxBytes(10)
        == MessageStream(
            read_options({"brokers": "b:1", "subscribe": "t", "maxOffsetsPerTrigger": "10"}, is_stream=True), ()
        ).getDefaultReadLimit()
    )
