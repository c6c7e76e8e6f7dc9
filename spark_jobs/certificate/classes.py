"""Joins what both sides say of each transaction, and names what came of it, and on whose word. Pure.

The classes exclude each other, and every transaction is in one: their counts must add up (accounts.py).
"""

from collections.abc import Collection
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from spark_jobs.audit.findings import SUM
from spark_jobs.certificate.sides import begins_with

# Class -> what it means; the last sentence of each is the reader's to act on.
CLASSES: Final = {
    "committed": "committed in both: every branch, and the database",
    "rolled back": "rolled back in both, or never decided and undone",
    "in doubt": "a branch is prepared, and its end is still to come: a resolver, or metaq txn doctor, ends it",
    "open": "a branch is under way, and nothing is promised",
    "unknown": "nothing is left that would tell what one side did, or which database it was",
    "mixed": "one side committed, or was decided to, and another rolled back",
    "orphan": "messages are published, and the database has no row of the transaction, or nobody decided it",
    "missing": "the database has the row, and a broker that should have a branch has none",
    "duplicate": "a row or a branch of one transaction is there twice",
}
BROKEN: Final = ("mixed", "orphan", "missing", "duplicate")


UNREADABLE: Final = -1  # stands for brokers that a decision row names illegibly


def transactions(branches: DataFrame, markers: DataFrame, decisions: DataFrame) -> DataFrame:
    """Return one row a transaction that any side knows, with what each says.

    *branches*: sides.py. *markers*: (marker, gtrid) of each business row. *decisions*: (gtrid, outcome, named,
    database, is_early): the brokers that a commit names; what the database itself says, committed, rolled back or
    prepared, null if nothing; and whether it was decided before the journals were read.
    """
    state = F.col("state")
    of_journals = branches.groupBy("gtrid").agg(
        F.count("*").alias("branches"),
        F.count_if(state == "committed").alias("committed"),
        F.count_if(state == "rolled back").alias("rolled_back"),
        F.count_if(state == "in doubt").alias("in_doubt"),
        F.count_if(state == "open").alias("open"),
        F.count_if(state == "decided twice").alias("twice"),
        F.count_distinct(F.when(state == "committed", F.col("broker"))).alias("brokers"),
        F.collect_set("broker").alias("at"),
        F.sum("messages").cast(SUM).alias("messages"),
        F.max("last_ms").alias("last_ms"),
    )
    of_rows = (
        markers.groupBy("gtrid", "marker")
        .agg(F.count("*").alias("rows"))
        .groupBy("gtrid")
        .agg(F.sum("rows").alias("rows"), F.max("rows").alias("rows_of_one"))
    )
    both = of_journals.join(of_rows, "gtrid", "full").join(
        decisions.select("gtrid", "outcome", "named", "database", "is_early"), "gtrid", "full"
    )
    numbers = [name for name in (*of_journals.columns, *of_rows.columns) if name not in ("gtrid", "last_ms", "at")]
    is_unreadable = (F.col("outcome") == "commit") & F.col("named").isNull()
    absent = F.array_except(
        F.coalesce("named", F.array().cast("array<bigint>")), F.coalesce("at", F.array().cast("array<bigint>"))
    )
    return (
        both.na.fill(0, [name for name in numbers if name != "messages"])
        .withColumn("messages", F.coalesce("messages", F.lit(0).cast(SUM)))
        .withColumn("absent", F.when(is_unreadable, F.array(F.lit(UNREADABLE))).otherwise(absent))
        .drop("named")
    )


def judged(
    joined: DataFrame,
    *,
    read: Collection[int],
    has_markers: bool,
    by_message: bool,
    is_complete: bool,
    coordinators: tuple[bytes, ...] = (),
    partial: tuple[bytes, ...] = (),
) -> DataFrame:
    """Add column `class`. *read*: ids of the brokers whose journals were read. *has_markers*: rows of the database mark
    every transaction; *by_message*: every message. *is_complete*: the journals were read from their birth on, so that a
    branch which is not there never was. *coordinators*: beginnings of the gtrids that logs decide; *partial*: of those
    whose decisions may have been dropped, of whatever database they were."""
    branches, rows, outcome = F.col("branches"), F.col("rows"), F.col("outcome")
    committed, rolled_back = F.col("committed"), F.col("rolled_back")
    database = F.coalesce("database", F.lit(""))
    is_decided = F.coalesce(outcome == "commit", F.lit(False))
    is_committed = (rows > 0) | (database == "committed")
    was_promised = (rows > 0) | (is_decided & F.coalesce("is_early", F.lit(False)))  # before journals were read
    contradicts = (
        (F.col("twice") > 0)
        | ((committed > 0) & (rolled_back > 0))
        | ((is_committed | is_decided) & (rolled_back > 0))
        | (was_promised & (F.col("open") > 0))
        | ((database == "rolled back") & (is_decided | (committed > 0) | (rows > 0)))
    )
    lacks_rows = (rows == 0) | ((rows < F.col("messages")) if by_message else F.lit(False))
    # Brokers that the decision names and that have no branch: of one that was not read, nobody knows.
    lacks_branch = F.size("absent") > 0
    was_read = F.size(F.array_except("absent", F.array(*(F.lit(number).cast("long") for number in read)))) == 0
    lacking: Column = F.when(was_read & F.lit(is_complete), "missing").otherwise("unknown")
    is_published_alone = (committed > 0) & ~is_committed & ~is_decided
    is_partial = begins_with(F.col("gtrid"), partial)
    repeats = (F.col("rows_of_one") > 1) | (committed > F.col("brokers"))
    verdict: Column = (
        F.when((branches == 0) & is_committed & ~lacks_branch, "missing" if is_complete else "unknown")
        .when(contradicts, "mixed")
        .when(lacks_branch, lacking)
        .when(is_published_alone & is_partial, "unknown")
        .when(is_published_alone & begins_with(F.col("gtrid"), coordinators), "orphan")
        .when(database == "prepared", "in doubt")
        .when(repeats, "duplicate")
        .when((committed > 0) & lacks_rows & F.lit(has_markers), "orphan")
        .when(F.col("in_doubt") > 0, "in doubt")
        .when((committed > 0) & is_committed, "committed")
        .when(committed > 0, "unknown")
        .when(F.col("open") > 0, "open")
        .when(is_partial & F.lit(not has_markers), "unknown")
        .otherwise("rolled back")
    )
    return joined.withColumn("class", verdict)


def with_sources(
    rows: DataFrame, *, has_markers: bool, coordinators: tuple[bytes, ...], partial: tuple[bytes, ...]
) -> DataFrame:
    """Add column `source` to judged transactions. *coordinators*: beginnings of the gtrids that logs decide; *partial*:
    of those whose log may have had other decisions, too."""
    database, outcome, gtrid = F.col("database"), F.col("outcome"), F.col("gtrid")
    unmarked = ", no marked row" if has_markers else ""
    of_log: Column = (
        F.when(database.isNotNull() & outcome.isNull(), "pg_prepared_xacts")
        .when(database.isNotNull(), "pg_xact_status, for the id in the coordinator's log")
        .when(outcome.isNotNull(), f"nothing but the decision in the coordinator's log{unmarked}")
        .when(~begins_with(gtrid, partial), f"no decision in the coordinator's log, which is whole{unmarked}")
        .otherwise(f"no decision in what is left of the coordinator's log, and other databases may use it{unmarked}")
    )
    of_table: Column = F.when(outcome.isNotNull(), f"decision row{unmarked}").otherwise(f"no decision row{unmarked}")
    return rows.withColumn(
        "source",
        F.when(F.col("rows") > 0, "marked rows").when(begins_with(gtrid, coordinators), of_log).otherwise(of_table),
    )
