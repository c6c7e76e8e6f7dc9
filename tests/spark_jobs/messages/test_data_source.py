"""`format("metaq")` on a real Spark with real brokers: the same rows from brokers and from their journals."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from journal.records.xid import Xid
from tests.spark_jobs.conftest import SmallCluster

SHARED_COLUMNS = ("topic", "partition", "offset", "timestamp", "id", "key", "payload", "error")


def read(spark: SparkSession, schema: str | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("metaq").options(**options)
    return (reader if schema is None else reader.schema(schema)).load()


def in_order(frame: DataFrame) -> list[Row]:
    return sorted(frame.select(*SHARED_COLUMNS).collect(), key=lambda row: (row.topic, row.partition, row.offset))


@pytest.fixture
def filled(cluster: SmallCluster, topic: str) -> str:
    """A topic with plain messages, one transaction that is committed, one rolled back, one in doubt."""
    producer = cluster.client.producer()
    for number in range(40):
        producer.send_async(topic, b"plain %d" % number, f"k{number}", f"{number % 2}-{number % 4}")
    producer.flush(30)
    for name, ends in (("committed", producer.tpc_commit), ("rolled-back", producer.tpc_rollback), ("doubt", None)):
        producer.tpc_begin(Xid.of(name, topic), [topic])
        for number in range(3):
            producer.send(topic, f"{name} {number}".encode())
        producer.tpc_prepare()
        if ends is not None:
            ends()
    return topic


def test_brokers_and_journals_say_the_same(spark: SparkSession, cluster: SmallCluster, filled: str) -> None:
    from_brokers = in_order(read(spark, zookeeper=cluster.zookeeper, subscribe=filled, minPartitions=20))
    payloads = [bytes(row.payload) for row in from_brokers]
    assert sorted(payloads) == sorted(
        [b"plain %d" % number for number in range(40)] + [b"committed %d" % number for number in range(3)]
    )
    folder = str(cluster.brokers[0].data.parent)
    assert in_order(read(spark, path=folder, subscribe=filled)) == from_brokers
    addresses = ",".join(f"127.0.0.1:{broker.port}" for broker in cluster.brokers)
    assert in_order(read(spark, brokers=addresses, subscribe=filled)) == from_brokers
    by_pattern = read(spark, zookeeper=cluster.zookeeper, subscribePattern=filled.replace("-", "[-]"))
    assert in_order(by_pattern) == from_brokers
    with_xid = read(spark, path=folder, subscribe=filled).where("xid IS NOT NULL").select("payload", "xid").collect()
    assert {row.xid for row in with_xid} == {row.xid for row in with_xid if bytes(row.payload).startswith(b"committed")}
    assert len(with_xid) == 3
    for options, count in (({"path": folder}, 3), ({"zookeeper": cluster.zookeeper}, 0)):  # brokers tell no transaction
        assert (
            read(spark, subscribe=filled, pushFilters=True, **options).where(f"xid = '{with_xid[0].xid}'").count()
            == count
        )
    age = abs(datetime.now(UTC).timestamp() - from_brokers[0].timestamp.timestamp())
    assert age < 600
    with_headers = read(spark, path=folder, subscribe=filled, includeHeaders="true")
    assert {tuple(row.headers) for row in with_headers.collect()} == {()}


def test_offsets_filters_and_columns(spark: SparkSession, cluster: SmallCluster, filled: str) -> None:
    everything = in_order(read(spark, zookeeper=cluster.zookeeper, subscribe=filled))
    middle = everything[len(everything) // 2]
    for options in ({"zookeeper": cluster.zookeeper}, {"path": str(cluster.brokers[0].data.parent)}):
        start = f'{{"{filled}": {{"{middle.partition}": {middle.offset}}}}}'
        begun = in_order(read(spark, subscribe=filled, startingOffsets=start, **options))
        assert begun == [
            each
            for each in everything
            if (each.partition, each.offset) >= (middle.partition, middle.offset) or each.partition != middle.partition
        ]
        ended = in_order(read(spark, subscribe=filled, endingOffsets=start, **options))
        assert ended == [each for each in everything if each not in begun or each.partition != middle.partition]
        inside = start.replace(str(middle.offset), str(middle.offset + 1))  # of a message: the next one is the first
        assert in_order(read(spark, subscribe=filled, startingOffsets=inside, **options)) == [
            each for each in begun if each != middle
        ]
        filtered = read(spark, subscribe=filled, pushFilters=True, **options).where(
            f"partition = '{middle.partition}' AND offset >= {middle.offset} AND topic LIKE 'spark-%'"
        )
        assert in_order(filtered) == [
            each for each in everything if each.partition == middle.partition and each.offset >= middle.offset
        ]
        late = read(spark, subscribe=filled, pushFilters=True, **options).where("timestamp > '2100-01-01'")
        assert late.count() == 0
        few = read(spark, "offset BIGINT, key STRING", subscribe=filled, **options)
        assert Counter(map(tuple, few.collect())) == Counter((row.offset, row.key) for row in everything)
        nothing = read(spark, subscribe=filled, startingTimestamp=4_000_000_000_000, **options)
        assert nothing.count() == 0
        assert read(spark, subscribe=filled, startingTimestamp=1, **options).count() == len(everything)


def test_queries_of_one_dataframe_have_their_own_rows(spark: SparkSession, cluster: SmallCluster, filled: str) -> None:
    """Spark keeps what one of them has pushed down for all others."""
    for options in ({"zookeeper": cluster.zookeeper}, {"path": str(cluster.brokers[0].data.parent)}):
        frame = read(spark, subscribe=filled, **options)
        everything = in_order(frame)
        one, other = (frame.where(f"partition = '{name}'") for name in ("0-0", "1-1"))
        both = in_order(one.union(other))
        assert both == [row for row in everything if row.partition in ("0-0", "1-1")]
        assert in_order(one) == [row for row in everything if row.partition == "0-0"]
        assert in_order(frame) == everything


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"path": "x", "subscrbe": "orders"}, "no option 'subscrbe' for reading: did you mean subscribe"),
        ({"path": "x", "kafka.bootstrap.servers": "x"}, "no option 'kafka.bootstrap.servers' for reading: it has"),
        ({"subscribe": "orders"}, 'needs option "path" .a journal., "zookeeper" or "brokers"'),
        ({"path": "x", "startingOffsets": "latest"}, "a batch query from there on has no messages"),
        ({"path": "x", "startingOffsets": '{"orders": {"0": 1}}'}, "partitions are named broker-number"),
        ({"path": "x", "startingOffsets": "{" * 100_000}, "use earliest, latest, or offsets as in"),
        ({"path": "x", "minPartitions": "4"}, "a journal is read by one task a segment"),
        ({"brokers": "127.0.0.1:1", "zookeeper": "127.0.0.1:1", "subscribe": "t"}, "one of them"),
        ({"path": "x", "failOnDataLoss": "yes"}, "use true or false"),
        ({"path": "x", "maxOffsetsPerTrigger": "5"}, "is for streams"),
        ({"path": "/nowhere"}, "/nowhere: holds no journal|/nowhere: No such file"),
    ],
)
def test_options_that_make_no_sense_are_refused(spark: SparkSession, options: dict[str, str], reason: str) -> None:
    with pytest.raises(PySparkException, match=reason):
        read(spark, **options).collect()


def test_a_column_that_messages_do_not_have(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="messages have no column 'value'"):
        read(spark, "value STRING", path=str(tmp_path)).collect()
    with pytest.raises(PySparkException, match="column offset is bigint, not string"):
        read(spark, "offset STRING", path=str(tmp_path)).collect()


def test_a_table_takes_its_options_from_the_query(spark: SparkSession, cluster: SmallCluster, filled: str) -> None:
    """Spark hands on none that the table was created with: without them the error says how to give them."""
    spark.sql(f"CREATE TABLE messages USING metaq OPTIONS (zookeeper '{cluster.zookeeper}', subscribe '{filled}')")
    try:
        with pytest.raises(PySparkException, match=r"query it FROM table WITH \(...\)"):
            spark.sql("SELECT * FROM messages").collect()
        given = f"WITH (zookeeper = '{cluster.zookeeper}', subscribe = '{filled}')"
        found = spark.sql(f"SELECT * FROM messages {given} WHERE partition < '1-0'")
        assert in_order(found) == in_order(
            read(spark, zookeeper=cluster.zookeeper, subscribe=filled).where("partition < '1-0'")
        )
        row = f"SELECT '{filled}' AS topic, binary('by SQL') AS payload"
        spark.sql(f"INSERT INTO messages WITH (zookeeper = '{cluster.zookeeper}') BY NAME {row}")
        assert spark.sql(f"SELECT * FROM messages {given} WHERE string(payload) = 'by SQL'").count() == 1
    finally:
        spark.sql("DROP TABLE messages")
