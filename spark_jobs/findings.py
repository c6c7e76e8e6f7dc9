"""What a check reports: rows of one shape, whoever found them, and which of them rot explains.

A finding names an interval of LSNs, [since, lsn]: the records between them would have had to say otherwise. If bytes
in there do not read back, the missing record may have said it: the finding proves nothing but that the journal is
damaged, which another check reports. since == lsn: no missing record could excuse it.
"""

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from spark_jobs.schemas import FindingRow


def finding(problem: str, since: Column, lsn: Column, subject: Column, detail: Column) -> Column:
    """One finding as a struct column. *detail* ends a sentence that *subject* begins."""
    return F.struct(
        F.lit(problem).alias("problem"),
        since.alias("since"),
        lsn.alias("lsn"),
        subject.alias("subject"),
        detail.alias("detail"),
    )


def findings(rows: DataFrame, *cases: tuple[Column, Column]) -> DataFrame:
    """One finding a row and case that holds. *cases*: (condition, `finding(...)`); a null condition does not hold."""
    found = F.array_compact(F.array(*(F.when(condition, column) for condition, column in cases)))
    return rows.select(F.explode(found).alias("finding")).select("finding.*")


def all_findings(by_check: dict[str, DataFrame]) -> DataFrame:
    """The findings of every check, each with the name of its own in column `check`."""
    named = [rows.select(F.lit(check).alias("check"), *FindingRow._fields) for check, rows in by_check.items()]
    return reduce(DataFrame.unionAll, named)


def partition_name() -> Column:
    """`<topic>-<partition>` of a row."""
    return F.format_string("%s-%s", "topic", "partition")


def text(template: str, *columns: Column) -> Column:
    """*template* with each %s replaced by a column. One call into the JVM, where a concatenation is a dozen."""
    return F.format_string(template, *columns)


def or_none(column: Column) -> Column:
    """The text of a column that may be null."""
    return F.coalesce(column.cast("string"), F.lit("none"))


def mark_explained(found: DataFrame, stretches: DataFrame) -> DataFrame:
    """Adds `explained`: whether a stretch (StretchRow) that does not read back touches [since, lsn]."""
    gathered = stretches.agg(F.collect_list(F.struct("lsn", "end")).alias("stretches"))
    touched = F.exists("stretches", lambda stretch: (stretch["lsn"] < F.col("lsn")) & (stretch["end"] > F.col("since")))
    return found.crossJoin(F.broadcast(gathered)).withColumn("explained", touched).drop("stretches")
