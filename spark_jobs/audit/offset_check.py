"""Checks that every offset of every partition is assigned exactly once. Pure.

A PUT takes the offsets of its body, a COMMIT those it assigns. Within a partition they must be contiguous in LSN
order: a gap is a lost message, an overlap a doubled one.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from journal.records.header import RecordType
from spark_jobs.audit.findings import finding, findings, partition_name, text


def offset_ranges(records: DataFrame) -> DataFrame:
    """Return every assigned range: topic, partition, start, end (exclusive), messages, lsn of the record."""
    puts = records.where(F.col("kind").isin(RecordType.PUT.name, RecordType.PUT_BATCH.name)).select(
        "topic",
        "partition",
        F.col("base_offset").alias("start"),
        (F.col("base_offset") + F.col("bytes")).alias("end"),
        "messages",
        "lsn",
    )
    assignments = (
        records.where(F.col("kind") == RecordType.COMMIT.name)
        .select("lsn", F.explode("assignments").alias("assignment"))
        .select(
            "assignment.topic",
            "assignment.partition",
            F.col("assignment.base").alias("start"),
            (F.col("assignment.base") + F.col("assignment.bytes")).alias("end"),
            "assignment.messages",
            "lsn",
        )
    )
    return puts.unionAll(assignments)


def offset_findings(ranges: DataFrame, starts: DataFrame, default_start: int | None) -> DataFrame:
    """Find gaps and overlaps of *ranges*, as `offset_ranges` gives them.

    *starts* (topic, partition, start): start of a partition's log. *default_start*: start of all others; None: unknown,
    accept that of the first range. Ranges below a start are those that retention has yet to delete.
    """
    earlier = (
        Window.partitionBy("topic", "partition")
        .orderBy("lsn", "start")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow - 1)
    )
    placed = (
        ranges.withColumn("before", F.max("end").over(earlier))
        .withColumn("before_lsn", F.max("lsn").over(earlier))
        .join(starts.withColumnRenamed("start", "log_start"), ["topic", "partition"], "left")
    )
    start, lsn, before = F.col("start"), F.col("lsn"), F.col("before")
    expected = F.coalesce(before, F.col("log_start"), F.lit(default_start).cast("long"))
    lost = text("offsets [%s, %s) are lost: no record holds them", expected, start)
    doubled = text("offsets [%s, %s) are doubled: an earlier record took them", start, F.least(before, F.col("end")))
    since = F.coalesce(F.col("before_lsn"), F.lit(0))
    return findings(
        placed,
        (start > expected, finding("gap", since, lsn, partition_name(), lost)),
        (start < before, finding("overlap", lsn, lsn, partition_name(), doubled)),
    )
