"""Checks that nothing which names one thing was given twice: a producer's batch number, a message id. Pure.

A batch number is unique to its producer and partition. Ids are unique to the broker: those of rolled back messages too,
while relocated copies keep theirs.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from spark_jobs.audit.findings import finding, findings, partition_name, text

# Ids of one record rise by one, and differ in their lowest twelve bits only (spec 3.4). Equal ids meet in one block,
# which is what was put in a millisecond.
BLOCK_BITS: Final = 12


def batch_findings(records: DataFrame) -> DataFrame:
    """Find numbers of batches that several records have."""
    name = ("topic", "partition", "producer", "sequence")
    stored = (
        records.where(F.col("producer").isNotNull())
        .groupBy(*name)
        .agg(F.count("*").alias("times"), F.min("lsn").alias("first_lsn"), F.max("lsn").alias("lsn"))
    )
    subject = text("batch %s of producer %s to %s", F.col("sequence"), F.col("producer"), partition_name())
    twice = finding("batch twice", F.col("lsn"), F.col("lsn"), subject, _places("stored"))
    return findings(stored, (F.col("times") > 1, twice))


def id_findings(records: DataFrame) -> DataFrame:
    """Find message ids that several messages have: one finding for each record that repeats some. Needs option
    frames=true."""
    of_record = records.where(F.col("first_id").isNotNull() & (F.col("frames") > 0)).select(
        "lsn", F.col("first_id").alias("first"), (F.col("first_id") + F.col("frames") - 1).alias("last")
    )
    of_message = (
        records.where(F.col("ids").isNotNull())
        .select("lsn", F.explode("ids").alias("first"))
        .select("lsn", "first", F.col("first").alias("last"))
    )
    block = F.explode(F.sequence(F.shiftright("first", BLOCK_BITS), F.shiftright("last", BLOCK_BITS)))
    by_id = Window.partitionBy("block").orderBy("first", "lsn").rowsBetween(Window.unboundedPreceding, -1)
    before = F.max(F.struct("last", "lsn")).over(by_id)
    met = of_record.unionAll(of_message).select("*", block.alias("block")).withColumn("before", before)
    repeated = (
        met.where(F.col("first") <= F.col("before.last"))
        .groupBy(F.greatest("lsn", "before.lsn").alias("lsn"), F.least("lsn", "before.lsn").alias("first_lsn"))
        .agg(F.min("first").alias("first"))
    )
    twice = finding("id twice", F.col("lsn"), F.col("lsn"), text("message id %s", F.col("first")), _places("given"))
    return findings(repeated, (F.lit(True), twice))


def _places(verb: str) -> Column:
    return text(f"is {verb} twice: at LSN %s and at LSN %s", F.col("first_lsn"), F.col("lsn"))
