"""Checks that every byte reads back as written: records by their checksums, message frames by theirs. Pure."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from spark_jobs.audit.findings import FindingRule, findings
from spark_jobs.source.schemas import BAD


def record_findings(records: DataFrame) -> DataFrame:
    """Find ranges that do not read back, and records that cannot stand in a broker's journal."""
    return findings(
        records,
        FindingRule("unreadable", "LSN {lsn}", "up to LSN {`end`}: {reason}", f"kind = '{BAD}'"),
        # Of a coordinator and of a consumer: a broker never writes one, and a fold of its journal stops there.
        FindingRule(
            "foreign", "LSN {lsn}", "is a {kind} record in a broker's journal", "kind IN ('DECISION', 'REFUSED')"
        ),
    )


def life_findings(records: DataFrame) -> DataFrame:
    """Find segments that begin in an earlier epoch or incarnation than a previous one ended in."""
    writer_epoch = F.struct("epoch", "incarnation")
    segments = (
        records.where("epoch IS NOT NULL")
        .groupBy("segment")
        .agg(F.min(writer_epoch).alias("first"), F.max(writer_epoch).alias("last"))
    )
    # Every pair of segments: a few million comparisons in the largest journal, and no sort of it in one task.
    earlier = segments.selectExpr("segment AS earlier", "last AS earlier_last")
    placed = (
        segments.join(F.broadcast(earlier), F.expr("earlier < segment AND earlier_last > first"))
        .groupBy("segment", "first")
        .agg(F.max("earlier_last").alias("before"))
    )
    goes_back = (
        "goes back to epoch {first.epoch}, incarnation {first.incarnation} after {before.epoch}, {before.incarnation}"
    )
    return findings(placed, FindingRule("earlier life", "the segment at LSN {segment}", goes_back, lsn="segment"))


def frame_findings(records: DataFrame) -> DataFrame:
    """Find bodies whose message frames are broken, or differ in number from the record's count. Needs option
    frames=true."""
    subject = "the {kind} at LSN {lsn}"
    return findings(
        records.where("kind IN ('PUT', 'PUT_BATCH', 'TX_PUT', 'CARRY')"),
        FindingRule("broken frame", subject, "holds a broken message: {frames_error}", "frames_error IS NOT NULL"),
        FindingRule(
            "message count",
            subject,
            "says {messages} messages, its body holds {frames}",
            "frames_error IS NULL AND NOT frames <=> messages",
        ),
    )
