"""Checks that nothing which names one thing was given twice: a producer's batch number, a message id. Pure.

A batch number is unique to its producer and partition. Ids are unique to the broker: those of rolled back messages too,
while relocated copies keep theirs.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from spark_jobs.audit.findings import FindingRule, findings

# Ids of one record rise by one, and differ in their lowest twelve bits only (spec 3.4). Equal ids meet in one block,
# which is what was put in a millisecond.
BLOCK_BITS: Final = 12
_PLACES: Final = "at LSN {first_lsn} and at LSN {lsn}"


def batch_findings(records: DataFrame) -> DataFrame:
    """Find numbers of batches that several records have."""
    stored = (
        records.where("producer IS NOT NULL")
        .groupBy("topic", "partition", "producer", "sequence")
        .agg(F.count("*").alias("times"), F.min("lsn").alias("first_lsn"), F.max("lsn").alias("lsn"))
    )
    subject = "batch {sequence} of producer {producer} to {topic}-{partition}"
    return findings(stored, FindingRule("batch twice", subject, f"is stored twice: {_PLACES}", "times > 1"))


def id_findings(records: DataFrame) -> DataFrame:
    """Find message ids that several messages have: one finding for each record that repeats some. Needs option
    frames=true."""
    of_record = records.where("first_id IS NOT NULL AND frames > 0").selectExpr(
        "lsn", "first_id AS first", "first_id + frames - 1 AS last"
    )
    of_message = records.selectExpr("lsn", "explode(ids) AS first").selectExpr("lsn", "first", "first AS last")
    block = f"explode(sequence(shiftright(first, {BLOCK_BITS}), shiftright(last, {BLOCK_BITS}))) AS block"
    before = """
        max(struct(last, lsn)) OVER (
            PARTITION BY block ORDER BY first, lsn ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before
    """
    repeated = (
        of_record.unionAll(of_message)
        .selectExpr("*", block)
        .selectExpr("lsn", "first", before)
        .where("first <= before.last")
        .groupBy(F.expr("least(lsn, before.lsn) AS first_lsn"), F.expr("greatest(lsn, before.lsn) AS lsn"))
        .agg(F.min("first").alias("first"))
    )
    return findings(repeated, FindingRule("id twice", "message id {first}", f"is given twice: {_PLACES}"))
