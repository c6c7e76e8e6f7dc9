"""`df.write` and `writeStream` with `format("metaq")` on a real Spark: each row once, whatever Spark repeats."""

import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StringType, StructType

from meta_client.batches.decision import Decisions, SinkFailed
from meta_client.batches.finishing import BatchFinisher
from meta_client.batches.names import QUALIFIER, BatchName, BranchName
from spark_jobs.sink.commit import BatchEnd, verbs_of
from spark_jobs.sink.options import write_options
from spark_jobs.sink.writers import BatchWriter
from tests.fixtures.hdfs_server import Hdfs
from tests.spark_jobs.conftest import QUICK, SmallCluster
from zk.errors import ZooKeeperUnavailable

WAIT_S = 120


def numbers(spark: SparkSession, count: int, tasks: int = 3) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("string(id) AS payload", "concat('k', id % 5) AS key")


def stored(cluster: SmallCluster, topic: str) -> Counter[str]:
    return Counter(message.payload.decode() for message in cluster.client.browse(topic))


def prepared(cluster: SmallCluster) -> list[object]:
    listing = verbs_of(cluster.client).list_prepared(QUALIFIER)
    assert not listing.failures
    return [key for keys in listing.keys.values() for key in keys]


def decisions(cluster: SmallCluster) -> set[str]:
    return set(cluster.client.session.children(f"{cluster.client.session.paths.root}/metaq/spark"))


def each_once(count: int) -> Counter[str]:
    return Counter(map(str, range(count)))


def write(frame: DataFrame, cluster: SmallCluster, **options: Any) -> None:
    frame.write.format("metaq").mode("append").options(zookeeper=cluster.zookeeper, **options).save()


def test_a_write_is_one_transaction(spark: SparkSession, cluster: SmallCluster, topic: str) -> None:
    before = decisions(cluster)
    write(numbers(spark, 60), cluster, topic=topic)
    found = list(cluster.client.browse(topic))
    assert Counter(message.payload.decode() for message in found) == each_once(60)
    places: dict[str | None, set[str]] = {}
    for message in found:
        places.setdefault(message.attribute, set()).add(str(message.partition))
    assert {len(partitions) for partitions in places.values()} == {1}, "a key has one partition"
    assert len({next(iter(partitions)) for partitions in places.values()}) > 1
    assert decisions(cluster) == before
    assert prepared(cluster) == []


def wait_for_tasks(spark: SparkSession) -> None:
    """Until no task runs: a job that has failed leaves some behind."""
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    deadline = time.monotonic() + WAIT_S
    while sum(each.numRunningTasks() for each in tracker.getExecutorInfos()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_failed_task_leaves_nothing(spark: SparkSession, cluster: SmallCluster, topic: str) -> None:
    broken = numbers(spark, 40).withColumn(
        "payload", F.when(F.col("payload") == "39", F.raise_error(F.lit("row 39"))).otherwise(F.col("payload"))
    )
    before = decisions(cluster)
    with pytest.raises(PySparkException, match="row 39"):
        write(broken, cluster, topic=topic)
    wait_for_tasks(spark)
    assert decisions(cluster) == before
    assert stored(cluster, topic) == Counter()
    assert prepared(cluster) == []


def begun(cluster: SmallCluster, topic: str) -> BatchWriter:
    schema = StructType().add("payload", StringType())
    given = {"zookeeper": cluster.zookeeper, "topic": topic}
    return BatchWriter.begin(write_options(given, schema, overwrite=False, is_stream=False))


def test_a_string_of_any_bytes_is_a_payload(cluster: SmallCluster, topic: str) -> None:
    """`cast(binary AS string)` is one in Spark. Columns of the source that are not written are not read, either."""
    writer = begun(cluster, topic)
    odd = pa.array([b"\xffA"], pa.binary()).view(pa.string())
    writer.commit([writer.write(iter([pa.RecordBatch.from_pydict({"payload": odd, "error": odd})]))])
    assert [message.payload for message in cluster.client.browse(topic)] == [b"\xffA"]


def test_a_task_that_ends_after_its_write_leaves_nothing(cluster: SmallCluster, topic: str) -> None:
    """Of a job that has failed, Spark's driver does not wait for the other tasks."""
    writer = begun(cluster, topic)

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"payload": ["late"]})
        writer.abort([])

    with pytest.raises(SinkFailed, match="is over: another of its tasks failed"):
        writer.write(rows())
    assert prepared(cluster) == []
    assert stored(cluster, topic) == Counter()


def test_a_write_that_is_committed_has_not_failed(
    cluster: SmallCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller would repeat it, and have its rows twice."""
    before = decisions(cluster)
    writer = begun(cluster, topic)
    written = writer.write(iter([pa.RecordBatch.from_pydict({"payload": ["0"]})]))

    def delete(self: Decisions) -> None:
        raise ZooKeeperUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(Decisions, "delete", delete)
        writer.commit([written])
    assert stored(cluster, topic) == each_once(1)
    (left,) = decisions(cluster) - before
    BatchFinisher(cluster.client.session, verbs_of(cluster.client), 0.0).run_pass()
    assert decisions(cluster) == before, left


def test_a_decided_write_that_nobody_can_repeat_says_so(cluster: SmallCluster) -> None:
    name, nowhere = BatchName.once(), (BranchName(999, "0.0.nobody.999"),)
    end = BatchEnd(cluster.client, name.query, patience_s=0)
    end.decisions.begin()
    with pytest.raises(SinkFailed, match=r"999.*do not repeat the write"):
        end.commit(name, nowhere)
    assert end.decisions.read().branches == nowhere
    end.decisions.delete()


def test_a_named_write_happens_once(spark: SparkSession, cluster: SmallCluster, topic: str) -> None:
    for _ in range(2):
        write(numbers(spark, 20), cluster, topic=topic, transactionId=f"load-{topic}")
    assert stored(cluster, topic) == each_once(20)
    assert prepared(cluster) == []


def stream(
    spark: SparkSession,
    cluster: SmallCluster,
    topic: str,
    directory: Path,
    files_max: int = 1,
    place: str = "",
    **options: str,
) -> StreamingQuery:
    source = spark.readStream.format("text").option("maxFilesPerTrigger", files_max).load(str(directory / "in"))
    writer = source.selectExpr("value AS payload", f"'{topic}' AS topic").writeStream.format("metaq")
    checkpoint = place or str(directory / "checkpoint")
    writer = writer.options(zookeeper=cluster.zookeeper, checkpointLocation=checkpoint, **options)
    query = writer.trigger(availableNow=True).start()
    with suppress(StreamingQueryException):  # the query keeps it
        query.awaitTermination(WAIT_S)
    return query


def add_file(directory: Path, first: int, after: int) -> None:
    (directory / "in").mkdir(exist_ok=True)
    made = directory / f"{first}"
    made.write_text("".join(f"{number}\n" for number in range(first, after)))
    made.rename(directory / "in" / f"{first}.txt")


def test_a_stream_and_the_batch_that_spark_repeats(
    spark: SparkSession, cluster: SmallCluster, topic: str, tmp_path: Path
) -> None:
    add_file(tmp_path, 0, 10)
    add_file(tmp_path, 10, 25)
    query = stream(spark, cluster, topic, tmp_path)
    assert query.exception() is None
    assert stored(cluster, topic) == each_once(25)
    # What is left when a driver dies after the sink's commit and before Spark has noted it.
    for noted in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        noted.unlink()
    add_file(tmp_path, 25, 30)
    again = stream(spark, cluster, topic, tmp_path)
    assert again.exception() is None
    assert next(json.loads(one.json)["batchId"] for one in again.recentProgress if one.numInputRows) == 1
    assert stored(cluster, topic) == each_once(30)
    assert prepared(cluster) == []


def failures_of_a_copy(
    spark: SparkSession, cluster: SmallCluster, topic: str, directory: Path, *, batches: int
) -> Iterator[str]:
    """Write *batches*, restore the checkpoint of the first, and yield how two attempts to go on fail."""
    for batch in range(batches):
        add_file(directory, 10 * batch, 10 * batch + 10)
        assert stream(spark, cluster, topic, directory).exception() is None
        if batch == 0:
            shutil.copytree(directory / "checkpoint", directory / "older")
    shutil.rmtree(directory / "checkpoint")
    (directory / "older").rename(directory / "checkpoint")
    add_file(directory, 30, 40)
    for _ in range(2):
        failure = stream(spark, cluster, topic, directory, files_max=9).exception()
        assert failure is not None
        yield str(failure)


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        (3, "is older than batch 2, which is decided: its checkpoint is a copy"),
        (2, "is decided with rows from other offsets: its checkpoint is a copy"),
    ],
)
def test_a_restored_checkpoint_is_refused(
    spark: SparkSession, cluster: SmallCluster, topic: str, tmp_path: Path, batches: int, said: str
) -> None:
    """Its next batch has the number of another, the newest one or an older: taken for that, rows that came since would
    be left out in silence. What is decided stays whole."""
    for failure in failures_of_a_copy(spark, cluster, topic, tmp_path, batches=batches):
        assert said in failure
    assert stored(cluster, topic) == each_once(10 * batches)
    assert prepared(cluster) == []


def test_a_location_that_is_a_url_with_every_character(
    spark: SparkSession, cluster: SmallCluster, topic: str, tmp_path: Path
) -> None:
    """Spark unescapes nothing; it keeps no plan but the newest one here, and repeats a batch with other settings."""
    place = f"file:{tmp_path}/a%20b #1?/x/../checkpoint ü/"
    kept, shuffled = "spark.sql.streaming.minBatchesToRetain", "spark.sql.shuffle.partitions"
    spark.conf.set(kept, "1")
    try:
        for first in (0, 10, 20):
            add_file(tmp_path, first, first + 10)
            query = stream(spark, cluster, topic, tmp_path, place=place)
            assert query.exception() is None
        (found,) = tmp_path.glob("*/checkpoint ü")
        for noted in (found / "commits").glob("*2*"):
            noted.unlink()
        spark.conf.set(shuffled, "3")
        assert stream(spark, cluster, topic, tmp_path, place=place).exception() is None
    finally:
        spark.conf.unset(kept)
        spark.conf.set(shuffled, QUICK[shuffled])
    assert stored(cluster, topic) == each_once(30)
    assert prepared(cluster) == []


def test_a_checkpoint_in_hdfs(
    spark: SparkSession, cluster: SmallCluster, topic: str, tmp_path: Path, hdfs_server: Hdfs
) -> None:
    """Spark writes it by Hadoop's protocol, and the sink reads it by WebHDFS."""
    place, url = f"{hdfs_server.native}/orders", f"{hdfs_server.web}/orders"
    for first in (0, 10):
        add_file(tmp_path, first, first + 10)
        assert stream(spark, cluster, topic, tmp_path, place=place, checkpointUrl=url).exception() is None
    assert stored(cluster, topic) == each_once(20)
    assert "by option checkpointUrl" in str(
        stream(spark, cluster, topic, tmp_path, place=f"{hdfs_server.native}/other").exception()
    )
    assert stored(cluster, topic) == each_once(20)
    assert prepared(cluster) == []


def for_each_batch(spark: SparkSession, cluster: SmallCluster, directory: Path, **options: Any) -> StreamingQuery:
    """Write each file to the topic of the options by a batch write of its own."""
    source = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(directory / "in"))

    def copy(frame: DataFrame, _: int) -> None:
        write(frame.withColumnRenamed("value", "payload"), cluster, **options)

    writer = source.writeStream.foreachBatch(copy).option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    with suppress(StreamingQueryException):
        query.awaitTermination(WAIT_S)
    return query


def test_a_write_in_for_each_batch_is_as_exact_as_the_sink(
    spark: SparkSession, cluster: SmallCluster, topic: str, tmp_path: Path
) -> None:
    """A repeated batch is there once; one of a restored checkpoint, with the number of another, is not left out in
    silence; and one node holds the decisions of all."""
    before = decisions(cluster)
    named = {"topic": topic, "transactionId": topic, "checkpointLocation": str(tmp_path / "checkpoint")}
    add_file(tmp_path, 0, 10)
    assert for_each_batch(spark, cluster, tmp_path, **named).exception() is None
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "older")
    add_file(tmp_path, 10, 20)
    assert for_each_batch(spark, cluster, tmp_path, **named).exception() is None
    for noted in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        noted.unlink()
    assert for_each_batch(spark, cluster, tmp_path, **named).exception() is None
    assert stored(cluster, topic) == each_once(20)
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "older").rename(tmp_path / "checkpoint")
    (tmp_path / "in" / "10.txt").unlink()
    add_file(tmp_path, 30, 40)
    failure = for_each_batch(spark, cluster, tmp_path, **named).exception()
    assert "is decided with rows from other offsets: its checkpoint is a copy" in str(failure)
    assert stored(cluster, topic) == each_once(20)
    assert decisions(cluster) - before == {topic}
    assert prepared(cluster) == []


def test_a_named_write_in_for_each_batch_needs_the_checkpoint(
    spark: SparkSession, cluster: SmallCluster, topic: str, tmp_path: Path
) -> None:
    add_file(tmp_path, 0, 10)
    failure = for_each_batch(spark, cluster, tmp_path, topic=topic, transactionId=topic).exception()
    assert 'needs option "checkpointLocation" of the query' in str(failure)
    with pytest.raises(PySparkException, match="this write is in none: leave option"):
        write(numbers(spark, 2), cluster, topic=topic, transactionId=topic, checkpointLocation=str(tmp_path))
    assert stored(cluster, topic) == Counter()
    assert for_each_batch(spark, cluster, tmp_path, topic=topic).exception() is None, "not named, not repeated"
    assert stored(cluster, topic) == each_once(10)
    assert prepared(cluster) == []


@pytest.mark.parametrize(
    ("columns", "options", "reason"),
    [
        ("payload", {"topik": "x"}, "no option 'topik' for writing: did you mean topic"),
        ("payload", {}, "name the topic by option .topic. or by a column topic"),
        ("id", {"topic": "x"}, "there is no column payload"),
        ("payload, 1 AS number", {"topic": "x"}, "column 'number' can't be written"),
        ("1 AS payload", {"topic": "x"}, "column payload is int: cast it to binary or string"),
        ("payload", {"topic": "x", "transactionId": "a/b"}, "use 1 to 36 letters"),
    ],
)
def test_writes_that_make_no_sense_are_refused(
    spark: SparkSession, cluster: SmallCluster, columns: str, options: dict[str, str], reason: str
) -> None:
    frame = spark.range(1).selectExpr("id", "string(id) AS payload").selectExpr(*columns.split(", "))
    with pytest.raises(PySparkException, match=reason):
        write(frame, cluster, **options)


def test_a_topic_is_not_overwritten(spark: SparkSession, cluster: SmallCluster, topic: str) -> None:
    writer = numbers(spark, 1).write.format("metaq").options(zookeeper=cluster.zookeeper, topic=topic)
    with pytest.raises(PySparkException, match="can't be overwritten"):
        writer.mode("overwrite").save()
