"""Checks that each checkpoint equals the sum of the records below its LSN. Pure.

Replays by aggregation instead of `journal.state.fold`: it verifies that fold independently, and it scales.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from journal.records.header import RecordType
from journal.records.states import BranchState
from spark_jobs.audit.findings import SUM, about_checkpoint, findings, or_none, partition_name

_BRANCH: Final = "%s %s with %s messages in %s bytes and %s runs"  # _branch_columns


def position_findings(records: DataFrame, checkpoints: DataFrame, first_lsn: int) -> DataFrame:
    """Find checkpoints (CheckpointRow) beyond the records, or of another epoch or incarnation."""
    at, reached = F.col("at"), F.col("reached")
    is_below = F.col("end") <= at
    reaches = (
        records.join(F.broadcast(checkpoints.select("number", "at")), is_below)
        .groupBy("number")
        .agg(F.max("end").alias("reached"), F.max(F.struct("epoch", "incarnation")).alias("life"))
    )
    says, writer_epoch = F.struct("epoch", "incarnation"), F.col("life")
    short = about_checkpoint(
        "not reached",
        first_lsn,
        "was taken at LSN %s, the records below it end at LSN %s",
        *(at, or_none(reached)),
    )
    other_life = about_checkpoint(
        "epoch differs",
        first_lsn,
        "says epoch %s, incarnation %s; the records say %s, %s",
        *(F.col("epoch"), F.col("incarnation"), writer_epoch["epoch"], writer_epoch["incarnation"]),
    )
    return findings(
        checkpoints.join(reaches, "number", "left"),
        (~reached.eqNullSafe(at), short),
        (reached.eqNullSafe(at) & (says != writer_epoch), other_life),
    )


def partition_findings(
    ranges: DataFrame, checkpoints: DataFrame, partitions: DataFrame, starts: DataFrame, first_lsn: int
) -> DataFrame:
    """Find partitions (PartitionRow) whose end differs from the ranges below the checkpoint, or that it omits.

    *starts* as in offset_check.py. A partition that ends at or below its log's start cannot be confirmed.
    """
    name = ["number", "at", "topic", "partition"]
    replayed = (
        ranges.withColumnRenamed("end", "range_end")
        .join(F.broadcast(checkpoints.select("number", "at")), F.col("lsn") < F.col("at"))
        .groupBy(*name)
        .agg(F.max("range_end").alias("replayed_end"))
    )
    both = partitions.join(replayed, name, "full").join(
        starts.withColumnRenamed("start", "log_start"), ["topic", "partition"], "left"
    )
    end, replayed_end = F.col("end"), F.col("replayed_end")
    says = F.coalesce(end, F.lit(0))
    is_retired = replayed_end.isNull() & (says <= F.coalesce("log_start", F.lit(0)))
    other_end = about_checkpoint(
        "end differs",
        first_lsn,
        "says that %s ends at offset %s; by the records it ends at %s",
        *(partition_name(), or_none(end), or_none(replayed_end)),
    )
    return findings(both, (~is_retired & (says != F.coalesce(replayed_end, F.lit(0))), other_end))


def branch_findings(
    records: DataFrame,
    by_branch: DataFrame,
    checkpoints: DataFrame,
    live: DataFrame,
    first_lsn: int,
    newest: int | None,
) -> DataFrame:
    """Find live branches (BranchRow) that differ from the replay, that the checkpoint omits, or that are not live.

    One that began below *first_lsn* is left to relocation_check.py. But the messages that the *newest* checkpoint holds
    of it must lie above: retention never deletes a live branch's messages.
    """
    at, branch, decided = F.col("at"), F.col("branch_lsn"), F.col("decided_lsn")
    alive = by_branch.join(
        F.broadcast(checkpoints.select("number", "at")),
        (branch < at) & (branch >= first_lsn) & (decided.isNull() | (decided >= at)),
    ).select("number", "at", "branch_lsn", "key", "prepared_lsn")
    state = F.when(F.first("prepared_lsn") < at, BranchState.PREPARED.name).otherwise(BranchState.IN_USE.name)
    replayed = (
        records.where(F.col("kind") == RecordType.TX_PUT.name)
        .select("branch_lsn", "lsn", "messages", "bytes")
        .join(alive, "branch_lsn")
        .where(F.col("lsn") < at)
        .groupBy("number", "at", "branch_lsn")
        .agg(
            F.struct(
                F.first("key").alias("key"),
                state.alias("state"),
                F.count("*").alias("runs"),
                F.sum(F.col("messages").cast(SUM)).alias("messages"),
                F.sum(F.col("bytes").cast(SUM)).alias("bytes"),
            ).alias("replayed")
        )
    )
    says = F.struct(
        "key", "state", "runs", F.col("messages").cast(SUM).alias("messages"), F.col("bytes").cast(SUM).alias("bytes")
    )
    both = live.join(replayed, ["number", "at", "branch_lsn"], "full")
    is_named, is_replayed = F.col("key").isNotNull(), F.col("replayed").isNotNull()
    left_out = about_checkpoint(
        "branch left out",
        first_lsn,
        "leaves out the live branch %s, begun at LSN %s",
        *(F.col("replayed.key"), branch),
    )
    not_live = about_checkpoint(
        "branch not live",
        first_lsn,
        "names the branch %s, begun at LSN %s, which is not live by the records",
        *(F.col("key"), branch),
    )
    differs = about_checkpoint(
        "branch differs",
        first_lsn,
        f"says of the branch begun at LSN %s: {_BRANCH}; by the records it is {_BRANCH}",
        *(branch, *_branch_columns(""), *_branch_columns("replayed.")),
    )
    not_kept = about_checkpoint(
        "branch not kept",
        first_lsn,
        "names the branch %s, begun at LSN %s, some of whose messages stood at LSN %s, which is deleted",
        *(F.col("key"), branch, F.col("oldest_lsn")),
    )
    return findings(
        both,
        (~is_named, left_out),
        (~is_replayed & (branch >= first_lsn), not_live),
        ((F.col("number") == F.lit(newest)) & (F.col("oldest_lsn") < first_lsn), not_kept),
        (is_named & is_replayed & (says != F.col("replayed")), differs),
    )


def _branch_columns(prefix: str) -> list[Column]:
    return [F.col(f"{prefix}{name}") for name in ("key", "state", "messages", "bytes", "runs")]
