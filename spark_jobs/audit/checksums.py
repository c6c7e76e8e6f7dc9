"""Checks that every byte reads back as written: records by their checksums, message frames by theirs. Pure."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from journal.records.header import RecordType
from spark_jobs.audit.findings import finding, findings, text
from spark_jobs.source.schemas import BAD

# Records of a coordinator and of a consumer: a broker never writes one, and a fold of its journal stops there.
FOREIGN_KINDS: Final = (RecordType.DECISION.name, RecordType.REFUSED.name)


def record_findings(records: DataFrame) -> DataFrame:
    """Find ranges that do not read back, and records that cannot stand in a broker's journal."""
    kind, lsn = F.col("kind"), F.col("lsn")
    subject = text("LSN %s", lsn)
    bad = finding("unreadable", lsn, lsn, subject, text("up to LSN %s: %s", F.col("end"), F.col("reason")))
    foreign = finding("foreign", lsn, lsn, subject, text("is a %s record in a broker's journal", kind))
    return findings(records, (kind == BAD, bad), (kind.isin(*FOREIGN_KINDS), foreign)).unionAll(life_findings(records))


def life_findings(records: DataFrame) -> DataFrame:
    """Find segments that begin in an earlier epoch or incarnation than a previous one ended in."""
    writer_epoch = F.struct("epoch", "incarnation")
    segments = (
        records.where(F.col("epoch").isNotNull())
        .groupBy("segment")
        .agg(F.min(writer_epoch).alias("first"), F.max(writer_epoch).alias("last"))
    )
    # Every pair of segments: a few million comparisons in the largest journal, and no sort of it in one task.
    earlier = segments.select(F.col("segment").alias("earlier"), F.col("last").alias("earlier_last"))
    goes_back = (F.col("earlier") < F.col("segment")) & (F.col("earlier_last") > F.col("first"))
    placed = (
        segments.join(F.broadcast(earlier), goes_back)
        .groupBy("segment", "first")
        .agg(F.max("earlier_last").alias("before"))
    )
    lsn, first, before = F.col("segment"), F.col("first"), F.col("before")
    detail = text(
        "goes back to epoch %s, incarnation %s after %s, %s",
        *(first["epoch"], first["incarnation"], before["epoch"], before["incarnation"]),
    )
    subject = text("the segment at LSN %s", lsn)
    return findings(placed, (F.lit(True), finding("earlier life", lsn, lsn, subject, detail)))


def frame_findings(records: DataFrame) -> DataFrame:
    """Find bodies whose message frames are broken, or differ in number from the record's count. Needs option
    frames=true."""
    lsn, frames, error, messages = (F.col(name) for name in ("lsn", "frames", "frames_error", "messages"))
    subject = text("the %s at LSN %s", F.col("kind"), lsn)
    broken = finding("broken frame", lsn, lsn, subject, text("holds a broken message: %s", error))
    miscounted = finding(
        "message count", lsn, lsn, subject, text("says %s messages, its body holds %s", messages, frames)
    )
    return findings(
        records.where(
            F.col("kind").isin(
                RecordType.PUT.name, RecordType.PUT_BATCH.name, RecordType.TX_PUT.name, RecordType.CARRY.name
            )
        ),
        (error.isNotNull(), broken),
        (error.isNull() & ~frames.eqNullSafe(messages), miscounted),
    )
