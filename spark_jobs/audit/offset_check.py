"""Checks that every offset of every partition is assigned exactly once. Pure.

A PUT takes the offsets of its body, a COMMIT those it assigns. Within a partition they must be contiguous in LSN
order: a gap is a lost message, an overlap a doubled one. A task sorts what one segment holds of a partition; then only
the borders of segments are left to compare.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from spark_jobs.audit.findings import FindingRule, findings


def offset_ranges(records: DataFrame) -> DataFrame:
    """Return every assigned range: topic, partition, start, end (exclusive), messages, and the record's segment and
    lsn."""
    start, end = "base_offset AS start", "base_offset + bytes AS `end`"
    puts = records.where("kind IN ('PUT', 'PUT_BATCH')").selectExpr(
        *("topic", "partition", start, end, "messages", "segment", "lsn")
    )
    return puts.unionAll(_assigned(records, "COMMIT"))


def skips(records: DataFrame) -> DataFrame:
    """Return, as `offset_ranges` does, the empty range at which each partition goes on after a repair or a restoration:
    the offsets before it are given up."""
    return _assigned(records, "LOST")


def _assigned(records: DataFrame, kind: str) -> DataFrame:
    start, end = "one.base AS start", "one.base + one.bytes AS `end`"
    return (
        records.where(f"kind = '{kind}'")
        .selectExpr("segment", "lsn", "explode(assignments) AS one")
        .selectExpr("one.topic", "one.partition", start, end, "one.messages", "segment", "lsn")
    )


def offset_findings(ranges: DataFrame, starts: DataFrame, default_start: int | None) -> DataFrame:
    """Find gaps and overlaps of *ranges*, as `offset_ranges` gives them.

    *starts* (topic, partition, start): start of a partition's log. *default_start*: start of all others; None: unknown,
    accept that of the first range. Ranges below a start are those that retention has yet to delete.
    """
    # Broadcast: or a task gets all of a partition.
    log_starts = F.broadcast(starts.selectExpr("topic", "partition", "start AS log_start"))
    default = "NULL" if default_start is None else default_start
    expected = f"coalesce(before, log_start, {default})"
    subject = "{topic}-{partition}"
    return findings(
        _after_what(ranges).join(log_starts, ["topic", "partition"], "left"),
        FindingRule(
            "gap",
            subject,
            f"offsets [{{{expected}}}, {{start}}) are lost: no record holds them",
            f"start > {expected}",
            "coalesce(before_lsn, 0)",
        ),
        FindingRule(
            "overlap",
            subject,
            "offsets [{start}, {least(before, `end`)}) are doubled: an earlier record took them",
            "start < before",
        ),
    )


def _after_what(ranges: DataFrame) -> DataFrame:
    """Add `before` and `before_lsn`: the highest end and LSN of the partition's earlier ranges, null for the first."""
    place = ["topic", "partition", "segment"]
    until_now = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    in_segment = f"OVER (PARTITION BY topic, partition, segment ORDER BY lsn, start {until_now})"
    segments = f"OVER (PARTITION BY topic, partition ORDER BY segment {until_now})"
    borders = (
        ranges.groupBy(*place)
        .agg(F.max("end").alias("end"), F.max("lsn").alias("lsn"))
        .selectExpr(*place, f"max(`end`) {segments} AS border", f"max(lsn) {segments} AS border_lsn")
    )
    return (
        ranges.selectExpr("*", f"max(`end`) {in_segment} AS inside", f"max(lsn) {in_segment} AS inside_lsn")
        .join(borders, place)
        .selectExpr("*", "greatest(inside, border) AS before", "greatest(inside_lsn, border_lsn) AS before_lsn")
    )
