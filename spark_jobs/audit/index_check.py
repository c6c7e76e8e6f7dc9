"""Checks that the index of each partition points at its messages: each entry at a put or an extent, and none is left
out. Pure.

Compares up to a checkpoint, with the entries that it covers. Not compared: the times of entries, and entries of
branches of whose messages some are deleted.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from journal.records.header import RecordType
from spark_jobs.audit.findings import finding, findings, partition_name, text
from spark_jobs.audit.relocation_check import extents_held

_NAME = ("topic", "partition")
_PLACE = (*_NAME, "start", "lsn", "bytes", "messages")


def index_findings(records: DataFrame, entries: DataFrame, files: DataFrame, at: int, number: int) -> DataFrame:
    """Find damaged index files, entries that point elsewhere, and messages that no entry points at.

    *entries* (IndexEntryRow) and *files* (IndexFileRow) are those of checkpoint *number*, taken at LSN *at*.
    """
    covered = files.select(*_NAME, F.col("start").alias("log_start"))
    is_kept = F.col("start") >= F.col("log_start")
    published, unknown = _published(records.where(F.col("lsn") < at))
    stored = published.join(F.broadcast(covered), [*_NAME]).where(is_kept)
    sound = entries.where(F.col("problem").isNull() & (F.col("bytes") > 0))
    # Damage is one finding; the entries behind it would be a million.
    damaged = entries.where(F.col("problem").isNotNull()).select(*_NAME, "number", "problem")
    is_unknown = (
        (F.col("e.topic") == F.col("u.topic"))
        & (F.col("e.partition") == F.col("u.partition"))
        & (F.col("start") >= F.col("taken"))
        & (F.col("start") < F.col("taken_end"))
    )
    filed = (
        sound.join(F.broadcast(covered), [*_NAME])
        .where(is_kept)
        .alias("e")
        .join(F.broadcast(unknown).alias("u"), is_unknown, "left_anti")
    )
    both = (
        _named(stored, "is")
        .join(_named(filed, "says"), [*_NAME, "start"], "full")
        .join(F.broadcast(damaged.select(*_NAME).distinct()), [*_NAME], "left_anti")
    )
    file = text("the index of %s", partition_name())
    place = F.coalesce("is.lsn", "says.lsn")

    def about(problem: str, detail: str, *columns: str) -> Column:
        # The record that is missing may be the COMMIT, anywhere from the message to the checkpoint.
        return finding(problem, place, F.lit(at), file, text(detail, *(F.col(column) for column in columns)))

    broken = finding(
        "index damaged",
        *(F.lit(at), F.lit(at), file),
        text(f"differs from checkpoint.{number} at entry %s: %s", F.col("number"), F.col("problem")),
    )
    return findings(damaged, (F.lit(True), broken)).unionAll(
        findings(
            both,
            (
                F.col("says").isNull(),
                about("entry missing", "leaves out offset %s, which stands at LSN %s", "start", "is.lsn"),
            ),
            (
                F.col("is").isNull(),
                about("entry wrong", "has offset %s at LSN %s, where it does not begin", "start", "says.lsn"),
            ),
            (
                F.col("is") != F.col("says"),
                about(
                    "entry wrong",
                    "has offset %s at LSN %s, %s bytes, %s messages; it stands at LSN %s: %s bytes, %s messages",
                    *("start", "says.lsn", "says.bytes", "says.messages", "is.lsn", "is.bytes", "is.messages"),
                ),
            ),
        )
    )


def _named(rows: DataFrame, name: str) -> DataFrame:
    return rows.select(*_NAME, "start", F.struct("lsn", "bytes", "messages").alias(name))


def _published(records: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return what was published, extent by extent (_PLACE), and the offsets [taken, taken_end) of commits whose
    messages are not all left."""
    puts = records.where(F.col("kind").isin(RecordType.PUT.name, RecordType.PUT_BATCH.name)).select(
        *_NAME, F.col("base_offset").alias("start"), F.col("body_lsn").alias("lsn"), "bytes", "messages"
    )
    assignments = (
        records.where(F.col("kind") == RecordType.COMMIT.name)
        .select("branch_lsn", F.col("lsn").alias("at"), F.explode("assignments").alias("one"))
        .select(
            "branch_lsn",
            "at",
            *(F.col(f"one.{name}").alias(name) for name in _NAME),
            F.col("one.base").alias("taken"),
            (F.col("one.base") + F.col("one.bytes")).alias("taken_end"),
        )
    )
    marks = assignments.select(F.lit(0).alias("number"), "at", "branch_lsn").distinct()
    extents = extents_held(records, marks)
    of_branch = Window.partitionBy("at", "branch_lsn", *_NAME)
    in_order = of_branch.orderBy("put_order")
    before = F.coalesce(F.sum("bytes").over(in_order.rowsBetween(Window.unboundedPreceding, -1)), F.lit(0))
    all_bytes = F.sum("bytes").over(of_branch)
    placed = assignments.join(
        extents.withColumns({"before": before, "all_bytes": all_bytes}).drop("number"),
        ["at", "branch_lsn", *_NAME],
        "left",
    )
    is_whole = F.col("all_bytes").eqNullSafe(F.col("taken_end") - F.col("taken"))
    committed = placed.where(is_whole).select(
        *_NAME, (F.col("taken") + F.col("before")).alias("start"), "lsn", "bytes", "messages"
    )
    return puts.unionAll(committed), placed.where(~is_whole).select(*_NAME, "taken", "taken_end").distinct()
