"""Both sides of a transaction, as DataFrames: branches of the brokers, rows of the database. Pure.

Transactions are named by the hexadecimal form of their gtrid, which any bytes have.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from spark_jobs.audit.findings import SUM


def gtrid_of_text(column: str) -> Column:
    """Return a gtrid's name from its text."""
    return F.lower(F.hex(F.encode(F.col(column), "UTF-8")))


def branch_states(by_branch: DataFrame, broker: int, qualifier: str, promised: list[int]) -> DataFrame:
    """Return the branches that the database decides: broker, branch_lsn, gtrid, state, messages published, last_ms,
    last_lsn.

    *by_branch*: `branches` of transaction_check.py. *qualifier*: of the database's keys. *promised*: first LSNs of
    branches that a checkpoint calls prepared though their PREPARE is deleted.
    """
    parts = F.split("key", ":")
    commits, rollbacks = F.col("commits"), F.col("rollbacks")
    state = (
        F.when(commits + rollbacks > 1, "decided twice")
        .when(commits == 1, "committed")
        .when(rollbacks == 1, "rolled back")
        .when((F.col("prepares") > 0) | F.col("branch_lsn").isin(promised), "in doubt")
        .otherwise("open")
    )
    return by_branch.where(
        F.col("key").startswith("XID:") & (F.size(parts) == 5) & (F.element_at(parts, 5) == qualifier)
    ).select(
        F.lit(broker).cast("long").alias("broker"),
        "branch_lsn",
        F.lower(F.element_at(parts, 3)).alias("gtrid"),
        state.alias("state"),
        F.when(commits > 0, F.col("taken_messages")).otherwise(0).cast(SUM).alias("messages"),
        "last_ms",
        "last_lsn",
    )


def message_owners(records: DataFrame, qualifier: str) -> DataFrame:
    """Return message ids with the gtrid of their branch. Needs option frames=true."""
    parts = F.split("key", ":")
    ids = F.coalesce(
        F.col("ids"),
        F.when(F.col("frames") > 0, F.sequence(F.col("first_id"), F.col("first_id") + F.col("frames") - 1)),
    )
    return records.where(
        (F.col("kind") == "TX_PUT") & (F.size(parts) == 5) & (F.element_at(parts, 5) == qualifier)
    ).select(F.lower(F.element_at(parts, 3)).alias("gtrid"), F.explode(ids).alias("id"))


def branch_contents(records: DataFrame, broker: int, qualifier: str) -> DataFrame:
    """Return messages by branch and partition: broker, branch_lsn, gtrid, topic, partition, messages, and the offset of
    the first one, null unless committed."""
    parts = F.split("key", ":")
    ours = records.where((F.size(parts) == 5) & (F.element_at(parts, 5) == qualifier))
    named = ("branch_lsn", F.lower(F.element_at(parts, 3)).alias("gtrid"))
    put = ours.where(F.col("kind") == "TX_PUT").select(
        *named, "topic", "partition", "messages", F.lit(None).cast("long").alias("taken"), F.lit(None).alias("offset")
    )
    one = F.col("one")
    taken = (
        ours.where(F.col("kind") == "COMMIT")
        .select(*named, F.explode("assignments").alias("one"))
        .select(
            *("branch_lsn", "gtrid", one["topic"].alias("topic"), one["partition"].alias("partition")),
            F.lit(None).cast("long").alias("messages"),
            *(one["messages"].alias("taken"), one["base"].alias("offset")),
        )
    )
    return (
        put.unionAll(taken)
        .groupBy("branch_lsn", "gtrid", "topic", "partition")
        .agg(F.coalesce(F.max("taken"), F.sum("messages")).alias("messages"), F.max("offset").alias("offset"))
        .withColumn("broker", F.lit(broker).cast("long"))
    )


def writer_epochs(records: DataFrame) -> DataFrame:
    """Return from which to which record each epoch has written: epoch, since_lsn, until_lsn, since_ms, until_ms. Each
    but the first begins with a promotion, or a restoration, which lacks what the epoch before wrote later."""
    return (
        records.where(F.col("epoch").isNotNull())
        .groupBy("epoch")
        .agg(
            F.min("lsn").alias("since_lsn"),
            F.max("end").alias("until_lsn"),
            F.min("time_ms").alias("since_ms"),
            F.max("time_ms").alias("until_ms"),
        )
        .orderBy("epoch")
    )
