"""Does every byte read back as it was written? Records by their own checksums, message frames by theirs. Pure."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from journal.frame import Kind
from spark_jobs.findings import finding, findings, text
from spark_jobs.schemas import BAD

# A coordinator's and a consumer's record: an honest broker never writes one, and a fold of the journal stops there.
FOREIGN_KINDS: Final = (Kind.DECISION.name, Kind.REFUSED.name)


def record_findings(records: DataFrame) -> DataFrame:
    """Stretches that do not read back, and records that cannot stand in a broker's journal."""
    kind, lsn = F.col("kind"), F.col("lsn")
    subject = text("LSN %s", lsn)
    bad = finding("unreadable", lsn, lsn, subject, text("up to LSN %s: %s", F.col("end"), F.col("reason")))
    foreign = finding("foreign", lsn, lsn, subject, text("is a %s record in a broker's journal", kind))
    return findings(records, (kind == BAD, bad), (kind.isin(*FOREIGN_KINDS), foreign)).unionAll(life_findings(records))


def life_findings(records: DataFrame) -> DataFrame:
    """Segments that begin in an earlier epoch or incarnation than one before them ended in."""
    life = F.struct("epoch", "incarnation")
    segments = (
        records.where(F.col("epoch").isNotNull())
        .groupBy("segment")
        .agg(F.min(life).alias("first"), F.max(life).alias("last"))
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
    """Bodies whose message frames are broken, or are not as many as the record says. Needs option frames=true."""
    lsn, frames, error, messages = (F.col(name) for name in ("lsn", "frames", "frames_error", "messages"))
    subject = text("the %s at LSN %s", F.col("kind"), lsn)
    broken = finding("broken frame", lsn, lsn, subject, text("holds a broken message: %s", error))
    miscounted = finding(
        "message count", lsn, lsn, subject, text("says %s messages, its body holds %s", messages, frames)
    )
    return findings(
        records.where(F.col("kind").isin(Kind.PUT.name, Kind.PUT_BATCH.name, Kind.TX_PUT.name, Kind.CARRY.name)),
        (error.isNotNull(), broken),
        (error.isNull() & ~frames.eqNullSafe(messages), miscounted),
    )
