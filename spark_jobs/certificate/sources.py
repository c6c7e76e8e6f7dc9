"""Names on whose word a transaction's database side is known. Pure. The brokers' side is always their journals'."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from spark_jobs.certificate.sides import begins_with


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
