"""Checks that each checkpoint equals the sum of the records below its LSN. Pure.

Replays by aggregation instead of `journal.state.fold`: it verifies that fold independently, and it scales.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from spark_jobs.audit.findings import SUM, about_checkpoint, findings, or_none


def position_findings(records: DataFrame, checkpoints: DataFrame, first_lsn: int) -> DataFrame:
    """Find checkpoints (CheckpointRow) beyond the records, or of another epoch or incarnation."""
    reaches = (
        records.join(F.broadcast(checkpoints.select("number", "at")), F.expr("`end` <= at"))
        .groupBy("number")
        .agg(F.max("end").alias("reached"), F.max(F.struct("epoch", "incarnation")).alias("life"))
    )
    return findings(
        checkpoints.join(reaches, "number", "left"),
        about_checkpoint(
            "not reached",
            first_lsn,
            f"was taken at LSN {{at}}, the records below it end at LSN {or_none('reached')}",
            "NOT reached <=> at",
        ),
        about_checkpoint(
            "epoch differs",
            first_lsn,
            "says epoch {epoch}, incarnation {incarnation}; the records say {life.epoch}, {life.incarnation}",
            "reached <=> at AND struct(epoch, incarnation) != life",
        ),
    )


def partition_findings(
    ranges: DataFrame, checkpoints: DataFrame, partitions: DataFrame, starts: DataFrame, first_lsn: int
) -> DataFrame:
    """Find partitions (PartitionRow) whose end differs from the ranges below the checkpoint, or that it omits.

    *starts* as in offset_check.py. A partition that ends at or below its log's start cannot be confirmed.
    """
    name = ["number", "at", "topic", "partition"]
    replayed = (
        ranges.join(F.broadcast(checkpoints.select("number", "at")), F.expr("lsn < at"))
        .groupBy(*name)
        .agg(F.max("end").alias("replayed_end"))
    )
    log_starts = starts.selectExpr("topic", "partition", "start AS log_start")
    both = partitions.join(replayed, name, "full").join(log_starts, ["topic", "partition"], "left")
    ends = f"ends at offset {or_none('`end`')}; by the records it ends at {or_none('replayed_end')}"
    is_retired = "replayed_end IS NULL AND coalesce(`end`, 0) <= coalesce(log_start, 0)"
    return findings(
        both,
        about_checkpoint(
            "end differs",
            first_lsn,
            f"says that {{topic}}-{{partition}} {ends}",
            f"NOT ({is_retired}) AND coalesce(`end`, 0) != coalesce(replayed_end, 0)",
        ),
    )


def branch_findings(
    records: DataFrame,
    by_branch: DataFrame,
    checkpoints: DataFrame,
    live: DataFrame,
    first_lsn: int,
    newest: int,
) -> DataFrame:
    """Find live branches (BranchRow) that differ from the replay, that the checkpoint omits, or that are not live.

    One that began below *first_lsn* is left to relocation_check.py. But the messages that the *newest* checkpoint holds
    of it must lie above: retention never deletes a live branch's messages.
    """
    is_live = f"branch_lsn < at AND branch_lsn >= {first_lsn} AND (decided_lsn IS NULL OR decided_lsn >= at)"
    alive = by_branch.join(F.broadcast(checkpoints.select("number", "at")), F.expr(is_live)).select(
        *("number", "at", "branch_lsn", "prepared_lsn"), F.col("key").alias("name")
    )
    sums = f"count(*) AS runs, sum(CAST(messages AS {SUM})) AS messages, sum(CAST(bytes AS {SUM})) AS bytes"
    state = "IF(first(prepared_lsn) < at, 'PREPARED', 'IN_USE') AS state"
    replayed = (
        records.where("kind = 'TX_PUT'")
        .join(alive, "branch_lsn")
        .where("lsn < at")
        .groupBy("number", "at", "branch_lsn")
        .agg(F.expr(f"struct(first(name) AS key, {state}, {sums}) AS replayed"))
    )
    says = f"struct(key, state, runs, CAST(messages AS {SUM}) AS messages, CAST(bytes AS {SUM}) AS bytes)"
    branch = "{key} {state} with {messages} messages in {bytes} bytes and {runs} runs"
    begun = "begun at LSN {branch_lsn}"
    names = f"names the branch {{key}}, {begun}"
    return findings(
        live.join(replayed, ["number", "at", "branch_lsn"], "full"),
        about_checkpoint(
            "branch left out",
            first_lsn,
            f"leaves out the live branch {{replayed.key}}, {begun}",
            "key IS NULL",
        ),
        about_checkpoint(
            "branch not live",
            first_lsn,
            f"{names}, which is not live by the records",
            f"replayed IS NULL AND branch_lsn >= {first_lsn}",
        ),
        about_checkpoint(
            "branch not kept",
            first_lsn,
            f"{names}, some of whose messages stood at LSN {{oldest_lsn}}, which is deleted",
            f"number = {newest} AND oldest_lsn < {first_lsn}",
        ),
        about_checkpoint(
            "branch differs",
            first_lsn,
            f"says of the branch {begun}: {branch}; by the records it is {branch.replace('{', '{replayed.')}",
            f"key IS NOT NULL AND replayed IS NOT NULL AND {says} != replayed",
        ),
    )
