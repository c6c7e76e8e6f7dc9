"""Both sides of a transaction, as DataFrames: branches of the brokers, rows of the database. Pure.

Transactions are named by the hexadecimal form of their gtrid, which any bytes have.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from spark_jobs.audit.findings import SUM

BRANCH_COLUMNS: Final = ("broker", "branch_lsn", "gtrid", "state", "messages", "last_ms")


def gtrid_of_text(column: str) -> Column:
    """Return a gtrid's name from its text."""
    return F.lower(F.hex(F.encode(F.col(column), "UTF-8")))


def branch_states(by_branch: DataFrame, broker: int, qualifier: str, promised: list[int]) -> DataFrame:
    """Return the branches that the database decides: broker, branch_lsn, gtrid, state, messages published, last_ms.

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
