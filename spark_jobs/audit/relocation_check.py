"""Checks branches that began before the first record: what relocated copies of their messages confirm. Pure.

A CARRY record copies extents of a live branch, numbered in put order from 0 on in each partition. Copies, and puts that
were never copied, are what the branch still holds. Retention deletes the messages of a committed branch when their
offsets have expired, so less may be left than a COMMIT takes, never more.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from spark_jobs.audit.findings import SUM, FindingRule, about_checkpoint, findings
from spark_jobs.audit.transaction_check import COMMITTED_ONCE, sums_beside_takes

_MARK = ("number", "at", "branch_lsn")  # what the branch held at LSN *at*, asked for checkpoint *number*


def commit_sums(records: DataFrame, by_branch: DataFrame, first_lsn: int) -> DataFrame:
    """Return what each branch that began below *first_lsn* and committed holds of each partition, and what its COMMIT
    took of it: see `sums_beside_takes`."""
    committed = by_branch.where(f"branch_lsn < {first_lsn} AND {COMMITTED_ONCE}")
    marks = committed.selectExpr("0 AS number", "decided_lsn AS at", "branch_lsn")
    return sums_beside_takes(_held(records, marks), records, committed)


def commit_sum_findings(sums: DataFrame) -> DataFrame:
    """Find commits that take less than their branch still holds. *sums*: `commit_sums`."""
    return findings(
        sums,
        FindingRule(
            "assignment differs",
            "{key}, begun at LSN {branch_lsn}",
            "holds {messages} messages in {bytes} bytes for {topic}-{partition}; its COMMIT takes {taken_messages} in "
            "{taken_bytes}",
            "messages > taken_messages OR bytes > taken_bytes",
            "branch_lsn",
            "decided_lsn",
        ),
    )


def confirmed(sums: DataFrame) -> DataFrame:
    """Return each branch of *sums*, and `confirmed`: it still holds, in every partition, what its COMMIT took."""
    is_equal = "min(messages = taken_messages AND bytes = taken_bytes) AS confirmed"
    return sums.groupBy("branch_lsn").agg(F.expr(is_equal))


def relocated_branch_findings(records: DataFrame, live: DataFrame, first_lsn: int) -> DataFrame:
    """Find live branches (BranchRow) that began below *first_lsn* and differ from what is left of them.

    Only if the checkpoint says that all their messages stand above: else some may be deleted.
    """
    says = live.where(f"branch_lsn < {first_lsn} AND oldest_lsn >= {first_lsn}")
    columns = ("runs", "messages", "bytes")
    left = (
        _held(records, says.select(*_MARK))
        .groupBy(*_MARK)
        .agg(*(F.sum(name).alias(f"left_{name}") for name in columns))
    )
    held = {name: f"coalesce(left_{name}, 0)" for name in columns}
    return findings(
        says.join(left, [*_MARK], "left"),
        about_checkpoint(
            "branch differs",
            first_lsn,
            "says of {key}, begun at LSN {branch_lsn}: {messages} messages in {bytes} bytes and {runs} runs; by copies "
            f"and later puts {{{held['messages']}}} in {{{held['bytes']}}} and {{{held['runs']}}}",
            " OR ".join(f"{name} != {left}" for name, left in held.items()),
        ),
    )


def _held(records: DataFrame, marks: DataFrame) -> DataFrame:
    """Return runs, messages and bytes of each of *marks*' branches in each partition, by the records below `at`."""
    return (
        extents_held(records, F.broadcast(marks))
        .groupBy(*_MARK, "topic", "partition")
        .agg(
            F.count("*").alias("runs"),
            *(F.expr(f"sum(CAST({name} AS {SUM})) AS {name}") for name in ("messages", "bytes")),
        )
    )


def extents_held(records: DataFrame, marks: DataFrame) -> DataFrame:
    """Return the extents that each of *marks*' branches (number, at, branch_lsn) holds by the records below `at`:
    topic, partition, put_order, lsn, messages, bytes."""
    before = """
        sum(extent.bytes) OVER (
            PARTITION BY lsn ORDER BY at_extent ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )
    """
    columns = ("branch_lsn", "lsn", "topic", "partition")
    copies = (
        records.where("kind = 'CARRY'")
        .selectExpr(*columns, "body_lsn", "first_extent", "posexplode(extents) AS (at_extent, extent)")
        .selectExpr(
            *columns,
            "extent",
            "first_extent + at_extent AS extent_number",
            f"body_lsn + coalesce({before}, 0) AS place",
        )
        .join(marks, "branch_lsn")
        .where("lsn < at")
    )
    # A relocation that was interrupted begins again with the first extent: the last copy of each counts.
    newest = "max_by(struct(place AS lsn, extent.messages, extent.bytes), lsn) AS newest"
    copied = (
        copies.groupBy(*_MARK, "topic", "partition", "extent_number")
        .agg(F.expr(newest))
        .selectExpr(
            *(*_MARK, "topic", "partition"), "struct(false AS later, extent_number AS number) AS put_order", "newest.*"
        )
    )
    # Extents that were never copied are always the last ones.
    put = (
        records.where("kind = 'TX_PUT'")
        .select(*columns, "messages", "bytes", "body_lsn")
        .join(marks, "branch_lsn")
        .where("lsn < at")
        .join(copies.selectExpr(*_MARK, "extent.lsn AS body_lsn"), [*_MARK, "body_lsn"], "left_anti")
        .selectExpr(
            *(*_MARK, "topic", "partition"),
            "struct(true AS later, lsn AS number) AS put_order",
            *("body_lsn AS lsn", "messages", "bytes"),
        )
    )
    return copied.unionAll(put)
