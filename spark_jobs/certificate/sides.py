"""Both sides of a transaction, as DataFrames: branches of the brokers, rows of the database. Pure.

Transactions are named by the hexadecimal form of their gtrid, which any bytes have.
"""

from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from meta_client.batches.names import QUALIFIER as SPARK
from meta_client.coordinator.names import BROKER, GTRID_PATTERN
from spark_jobs.audit.findings import SUM

_PARTS = 5  # of a branch key: XID, format id, gtrid, bqual, unique qualifier


def _part(number: int) -> Column:
    return F.element_at(F.split("key", ":"), number)


def _gtrid() -> Column:
    return F.lower(_part(3))


def _is_xa() -> Column:
    return F.col("key").startswith("XID:") & (F.size(F.split("key", ":")) == _PARTS)


class Deciders(NamedTuple):
    """Deciders of the branches that are joined: the decision table, by its *qualifier*, if there is one, and
    coordinators, whose gtrids begin with one of *prefixes*."""

    qualifier: str | None
    prefixes: tuple[bytes, ...] = ()

    def decides(self) -> Column:
        """Return the condition on column `key`."""
        is_ours = F.lit(False) if self.qualifier is None else _part(5) == self.qualifier
        is_coordinated = (F.lower(_part(4)) == BROKER.hex()) & begins_with(_gtrid(), self.prefixes)
        return _is_xa() & (is_ours | is_coordinated)


def begins_with(gtrid: Column, prefixes: tuple[bytes, ...]) -> Column:
    """Return the condition that *gtrid*, in hexadecimal, begins with one of *prefixes*."""
    found = F.lit(False)
    for prefix in prefixes:
        found |= gtrid.startswith(prefix.hex())
    return found


def gtrid_of_text(column: str) -> Column:
    """Return a gtrid's name from its text."""
    return F.lower(F.hex(F.encode(F.col(column), "UTF-8")))


def branch_states(by_branch: DataFrame, broker: int, deciders: Deciders, promised: list[int]) -> DataFrame:
    """Return the branches that *deciders* decide: broker, branch_lsn, gtrid, state, messages published, last_ms,
    last_lsn.

    *by_branch*: `branches` of transaction_check.py. *promised*: first LSNs of branches that a checkpoint calls prepared
    though their PREPARE is deleted.
    """
    commits, rollbacks = F.col("commits"), F.col("rollbacks")
    state = (
        F.when(commits + rollbacks > 1, "decided twice")
        .when(commits == 1, "committed")
        .when(rollbacks == 1, "rolled back")
        .when((F.col("prepares") > 0) | F.col("branch_lsn").isin(promised), "in doubt")
        .otherwise("open")
    )
    return by_branch.where(deciders.decides()).select(
        F.lit(broker).cast("long").alias("broker"),
        "branch_lsn",
        _gtrid().alias("gtrid"),
        state.alias("state"),
        F.when(commits > 0, F.col("taken_messages")).otherwise(0).cast(SUM).alias("messages"),
        "last_ms",
        "last_lsn",
    )


def other_branches(by_branch: DataFrame, deciders: Deciders) -> DataFrame:
    """Return the XA branches that others decide: decider, and number of branches."""
    gtrid = F.decode(F.unhex(_part(3)), "ISO-8859-1")
    coordinator = F.regexp_extract(gtrid, f"^{GTRID_PATTERN}$", 1)
    decider = (
        F.when((F.lower(_part(4)) == BROKER.hex()) & (coordinator != ""), F.concat(F.lit("coordinator "), coordinator))
        .when(_part(5) == SPARK, "Spark queries")
        .otherwise(F.concat(F.lit("programs of unique qualifier "), _part(5)))
    )
    return (
        by_branch.where(_is_xa() & ~deciders.decides())
        .groupBy(decider.alias("decider"))
        .agg(F.count("*").alias("branches"))
    )


def message_owners(records: DataFrame, deciders: Deciders) -> DataFrame:
    """Return message ids with the gtrid of their branch. Needs option frames=true."""
    ids = F.coalesce(
        F.col("ids"),
        F.when(F.col("frames") > 0, F.sequence(F.col("first_id"), F.col("first_id") + F.col("frames") - 1)),
    )
    return records.where((F.col("kind") == "TX_PUT") & deciders.decides()).select(
        _gtrid().alias("gtrid"), F.explode(ids).alias("id")
    )


def branch_contents(records: DataFrame, broker: int, deciders: Deciders) -> DataFrame:
    """Return messages by branch and partition: broker, branch_lsn, gtrid, topic, partition, messages, and the offset of
    the first one, null unless committed."""
    ours = records.where(deciders.decides())
    named = ("branch_lsn", _gtrid().alias("gtrid"))
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
