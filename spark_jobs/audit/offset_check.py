"""Checks that every offset of every partition is assigned exactly once. Pure.

A PUT takes the offsets of its body, a COMMIT those it assigns. Within a partition they must be contiguous in LSN
order: a gap is a lost message, an overlap a doubled one. A task sorts what one segment holds of a partition; then only
the borders of segments are left to compare.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from journal.records.header import RecordType
from spark_jobs.audit.findings import finding, findings, partition_name, text


def offset_ranges(records: DataFrame) -> DataFrame:
    """Return every assigned range: topic, partition, start, end (exclusive), messages, and the record's segment and
    lsn."""
    puts = records.where(F.col("kind").isin(RecordType.PUT.name, RecordType.PUT_BATCH.name)).select(
        "topic",
        "partition",
        F.col("base_offset").alias("start"),
        (F.col("base_offset") + F.col("bytes")).alias("end"),
        "messages",
        "segment",
        "lsn",
    )
    return puts.unionAll(_assigned(records, RecordType.COMMIT))


def skips(records: DataFrame) -> DataFrame:
    """Return, as `offset_ranges` does, the empty range at which each partition goes on after a repair or a restoration:
    the offsets before it are given up."""
    return _assigned(records, RecordType.LOST)


def _assigned(records: DataFrame, kind: RecordType) -> DataFrame:
    return (
        records.where(F.col("kind") == kind.name)
        .select("segment", "lsn", F.explode("assignments").alias("assignment"))
        .select(
            "assignment.topic",
            "assignment.partition",
            F.col("assignment.base").alias("start"),
            (F.col("assignment.base") + F.col("assignment.bytes")).alias("end"),
            "assignment.messages",
            "segment",
            "lsn",
        )
    )


def offset_findings(ranges: DataFrame, starts: DataFrame, default_start: int | None) -> DataFrame:
    """Find gaps and overlaps of *ranges*, as `offset_ranges` gives them.

    *starts* (topic, partition, start): start of a partition's log. *default_start*: start of all others; None: unknown,
    accept that of the first range. Ranges below a start are those that retention has yet to delete.
    """
    log_starts = F.broadcast(starts.withColumnRenamed("start", "log_start"))  # or a task gets all of a partition
    placed = _after_what(ranges).join(log_starts, ["topic", "partition"], "left")
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


def _after_what(ranges: DataFrame) -> DataFrame:
    """Add `before` and `before_lsn`: the highest end and LSN of the partition's earlier ranges, null for the first."""
    place = ["topic", "partition", "segment"]
    until_now = (Window.unboundedPreceding, Window.currentRow - 1)
    in_segment = Window.partitionBy(*place).orderBy("lsn", "start").rowsBetween(*until_now)
    segments = Window.partitionBy("topic", "partition").orderBy("segment").rowsBetween(*until_now)
    borders = (
        ranges.groupBy(*place)
        .agg(F.max("end").alias("end"), F.max("lsn").alias("lsn"))
        .select(*place, F.max("end").over(segments).alias("border"), F.max("lsn").over(segments).alias("border_lsn"))
    )
    return (
        ranges.withColumns({"inside": F.max("end").over(in_segment), "inside_lsn": F.max("lsn").over(in_segment)})
        .join(borders, place)
        .withColumns({"before": F.greatest("inside", "border"), "before_lsn": F.greatest("inside_lsn", "border_lsn")})
    )
