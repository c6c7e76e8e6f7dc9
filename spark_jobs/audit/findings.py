"""Findings of the checks: rows of one shape, and the marking of those that corruption may explain.

A finding names an interval of LSNs, [since, lsn], in which a missing record could explain it. If bytes in there do not
read back, the finding proves only that the journal is damaged, which another check reports. since == lsn: no missing
record could explain it.
"""

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from spark_jobs.source.schemas import FindingRow

SUM: Final = "decimal(38,0)"  # numbers come from disk: their sums must not overflow


def finding(problem: str, since: Column, lsn: Column, subject: Column, detail: Column) -> Column:
    """Return one finding as a struct column. *subject* and *detail* make a sentence."""
    return F.struct(
        F.lit(problem).alias("problem"),
        since.alias("since"),
        lsn.alias("lsn"),
        subject.alias("subject"),
        detail.alias("detail"),
    )


def findings(rows: DataFrame, *cases: tuple[Column, Column]) -> DataFrame:
    """Return a finding for each row and each case that holds. *cases*: (condition, `finding(...)`); null does not
    hold."""
    found = F.array_compact(F.array(*(F.when(condition, column) for condition, column in cases)))
    return rows.select(F.explode(found).alias("finding")).select("finding.*")


def about_checkpoint(problem: str, first_lsn: int, detail: str, *columns: Column) -> Column:
    """Return a finding about a checkpoint (columns number, at), which any record below it could explain."""
    subject = text("checkpoint.%s", F.col("number"))
    return finding(problem, F.lit(first_lsn), F.col("at"), subject, text(detail, *columns))


def all_findings(by_check: dict[str, DataFrame]) -> DataFrame:
    """Unite the findings of all checks, with the check's name in column `check`."""
    named = [rows.select(F.lit(check).alias("check"), *FindingRow._fields) for check, rows in by_check.items()]
    return reduce(DataFrame.unionAll, named)


def partition_name() -> Column:
    """Return `<topic>-<partition>` of a row."""
    return F.format_string("%s-%s", "topic", "partition")


def text(template: str, *columns: Column) -> Column:
    """Replace each %s of *template* by a column. One call into the JVM, where a concatenation takes a dozen."""
    return F.format_string(template, *columns)


def or_none(column: Column) -> Column:
    """Return the text of a column that may be null."""
    return F.coalesce(column.cast("string"), F.lit("none"))


def mark_explained(found: DataFrame, unreadable: DataFrame) -> DataFrame:
    """Add `explained`: true if a row of *unreadable*, a range [lsn, end), touches [since, lsn]."""
    gathered = unreadable.agg(F.collect_list(F.struct("lsn", "end")).alias("unreadable"))
    touched = F.exists(
        "unreadable", lambda unreadable: (unreadable["lsn"] < F.col("lsn")) & (unreadable["end"] > F.col("since"))
    )
    return found.crossJoin(F.broadcast(gathered)).withColumn("explained", touched).drop("unreadable")
