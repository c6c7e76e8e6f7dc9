"""Checks branches that began before the first record: what relocated copies of their messages confirm. Pure.

A CARRY record copies extents of a live branch, numbered in put order from 0 on in each partition. Copies, and puts that
were never copied, are what the branch still holds. Retention deletes the messages of a committed branch when their
offsets have expired, so less may be left than a COMMIT takes, never more.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from journal.records.header import RecordType
from spark_jobs.audit.findings import SUM, about_checkpoint, finding, findings, partition_name, text
from spark_jobs.audit.transaction_check import assigned

_MARK = ("number", "at", "branch_lsn")  # what the branch held at LSN *at*, asked for checkpoint *number*


def commit_sums(records: DataFrame, by_branch: DataFrame, first_lsn: int) -> DataFrame:
    """Return held_* and taken_* messages and bytes of each partition of each branch that began below *first_lsn* and
    committed, with its key and decided_lsn."""
    committed = by_branch.where(
        (F.col("branch_lsn") < first_lsn) & (F.col("commits") == 1) & (F.col("rollbacks") == 0)
    ).select("branch_lsn", "key", "decided_lsn")
    marks = committed.select(F.lit(0).alias("number"), F.col("decided_lsn").alias("at"), "branch_lsn")
    zero = F.lit(0).cast(SUM)
    name = ("branch_lsn", "topic", "partition")
    held = _held(records, marks).select(
        *name,
        *(F.col(column).cast(SUM).alias(f"held_{column}") for column in ("messages", "bytes")),
        *(zero.alias(f"taken_{column}") for column in ("messages", "bytes")),
    )
    taken = assigned(records).select(
        *name,
        *(zero.alias(f"held_{column}") for column in ("messages", "bytes")),
        *(F.col(column).cast(SUM).alias(f"taken_{column}") for column in ("messages", "bytes")),
    )
    sums = ("held_messages", "held_bytes", "taken_messages", "taken_bytes")
    return (
        held.unionAll(taken)
        .groupBy(*name)
        .agg(*(F.sum(column).alias(column) for column in sums))
        .join(committed, "branch_lsn")
    )


def commit_sum_findings(sums: DataFrame) -> DataFrame:
    """Find commits that take less than their branch still holds. *sums*: `commit_sums`."""
    branch, decided = F.col("branch_lsn"), F.col("decided_lsn")
    detail = text(
        "holds %s messages in %s bytes for %s; its COMMIT takes %s in %s",
        *(F.col("held_messages"), F.col("held_bytes"), partition_name()),
        *(F.col("taken_messages"), F.col("taken_bytes")),
    )
    subject = text("%s, begun at LSN %s", F.col("key"), branch)
    exceeds = (F.col("held_messages") > F.col("taken_messages")) | (F.col("held_bytes") > F.col("taken_bytes"))
    return findings(sums, (exceeds, finding("assignment differs", branch, decided, subject, detail)))


def confirmed(sums: DataFrame) -> DataFrame:
    """Return each branch of *sums*, and `confirmed`: it still holds, in every partition, what its COMMIT took."""
    is_equal = (F.col("held_messages") == F.col("taken_messages")) & (F.col("held_bytes") == F.col("taken_bytes"))
    return sums.groupBy("branch_lsn").agg(F.min(is_equal).alias("confirmed"))


def relocated_branch_findings(records: DataFrame, live: DataFrame, first_lsn: int) -> DataFrame:
    """Find live branches (BranchRow) that began below *first_lsn* and differ from what is left of them.

    Only if the checkpoint says that all their messages stand above: else some may be deleted.
    """
    says = live.where((F.col("branch_lsn") < first_lsn) & (F.col("oldest_lsn") >= first_lsn))
    columns = ("runs", "messages", "bytes")
    left = (
        _held(records, says.select(*_MARK))
        .groupBy(*_MARK)
        .agg(*(F.sum(name).alias(f"held_{name}") for name in columns))
    )
    both = says.join(left, [*_MARK], "left")
    held = {name: F.coalesce(f"held_{name}", F.lit(0).cast(SUM)) for name in columns}

    differs = F.lit(False)
    for name in columns:
        differs = differs | (F.col(name) != held[name])
    detail = about_checkpoint(
        "branch differs",
        first_lsn,
        "says of %s, begun at LSN %s: %s messages in %s bytes and %s runs; by copies and later puts %s in %s and %s",
        *(F.col("key"), F.col("branch_lsn"), F.col("messages"), F.col("bytes"), F.col("runs")),
        *(held["messages"], held["bytes"], held["runs"]),
    )
    return findings(both, (differs, detail))


def _held(records: DataFrame, marks: DataFrame) -> DataFrame:
    """Return runs, messages and bytes of each of *marks*' branches in each partition, by the records below `at`."""
    return (
        extents_held(records, F.broadcast(marks))
        .groupBy(*_MARK, "topic", "partition")
        .agg(F.count("*").alias("runs"), *(F.sum(F.col(name).cast(SUM)).alias(name) for name in ("messages", "bytes")))
    )


def extents_held(records: DataFrame, marks: DataFrame) -> DataFrame:
    """Return the extents that each of *marks*' branches (number, at, branch_lsn) holds by the records below `at`:
    topic, partition, put_order, lsn, messages, bytes."""
    by_place = Window.partitionBy("lsn").orderBy("at_extent").rowsBetween(Window.unboundedPreceding, -1)
    copies = (
        records.where(F.col("kind") == RecordType.CARRY.name)
        .select(
            *("branch_lsn", "lsn", "topic", "partition", "body_lsn", "first_extent"),
            F.posexplode("extents").alias("at_extent", "extent"),
        )
        .withColumn("place", F.col("body_lsn") + F.coalesce(F.sum("extent.bytes").over(by_place), F.lit(0)))
        .join(marks, "branch_lsn")
        .where(F.col("lsn") < F.col("at"))
    )
    # A relocation that was interrupted begins again with the first extent: the last copy of each counts.
    newest = F.max_by(F.struct(F.col("place").alias("lsn"), "extent.messages", "extent.bytes"), "lsn").alias("newest")
    copied = (
        copies.groupBy(
            *_MARK, "topic", "partition", (F.col("first_extent") + F.col("at_extent")).alias("extent_number")
        )
        .agg(newest)
        .select(
            *_MARK,
            *("topic", "partition"),
            F.struct(F.lit(False).alias("later"), F.col("extent_number").alias("number")).alias("put_order"),
            "newest.*",
        )
    )
    # Extents that were never copied are always the last ones.
    put = (
        records.where(F.col("kind") == RecordType.TX_PUT.name)
        .select("branch_lsn", "lsn", "topic", "partition", "messages", "bytes", "body_lsn")
        .join(marks, "branch_lsn")
        .where(F.col("lsn") < F.col("at"))
        .join(copies.select(*_MARK, F.col("extent.lsn").alias("body_lsn")), [*_MARK, "body_lsn"], "left_anti")
        .select(
            *_MARK,
            *("topic", "partition"),
            F.struct(F.lit(True).alias("later"), F.col("lsn").alias("number")).alias("put_order"),
            F.col("body_lsn").alias("lsn"),
            *("messages", "bytes"),
        )
    )
    return copied.unionAll(put)
