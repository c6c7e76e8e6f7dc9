"""Runs every check over one directory: what `metaq audit` and scheduled jobs call.

Reads the journal's bytes once. Spark keeps the result, some hundred bytes a record, in memory, then on disk, for the
checks. The driver sees only counts and a few examples, whatever the journal's size.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it
from pyspark.storagelevel import StorageLevel

from journal.records.header import RecordType
from spark_jobs.audit import transforms
from spark_jobs.audit.checkpoint_files import Checkpoints, read_checkpoints
from spark_jobs.audit.report import CLAIMS, AuditReport, CheckResult, Example, Totals
from spark_jobs.source.data_source import FORMAT, register
from spark_jobs.source.directory import SegmentSlice, plan
from spark_jobs.source.schemas import BAD, StartRow, arrow_table

EXAMPLES_MAX: Final = 10  # a check


def audit_journal(
    spark: SparkSession, path: Path, *, on_progress: Callable[[str], None] = lambda _: None
) -> AuditReport:
    """Audit the journal in *path*, live, dead or archived; every worker must see it there. Changes nothing.

    Calls *on_progress* with the next step. Raises StorageFailed, ForeignJournal before it reads records.
    """
    register(spark)
    checkpoints = read_checkpoints(path)  # first: the records read later then cover every checkpoint
    slices = plan(path)
    size = sum(segment.size for segment in slices)
    on_progress(f"reading {len(slices)} segments, {size / 2**20:,.1f} MiB")
    read = spark.read.format(FORMAT).option("path", str(path.absolute())).option("frames", "true").load()
    with ExitStack() as kept:
        return _Audit(spark, path, checkpoints, slices, _keep(kept, read), kept).run(on_progress)


def _keep(kept: ExitStack, rows: DataFrame) -> DataFrame:
    """Persist *rows*, computed once, until *kept* closes."""
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    kept.callback(rows.unpersist)
    return rows


class _Audit:
    """DataFrames that the checks share."""

    def __init__(
        self,
        spark: SparkSession,
        path: Path,
        checkpoints: Checkpoints,
        slices: list[SegmentSlice],
        records: DataFrame,
        kept: ExitStack,
    ) -> None:
        self._spark = spark
        self._path = path
        self._checkpoints = checkpoints
        self._pieces = slices
        self._first_lsn = slices[0].base
        self._records = records
        self._ranges = transforms.offset_ranges(records)
        self._branches = _keep(kept, transforms.branches(records))
        self._kept = kept

    def run(self, on_progress: Callable[[str], None]) -> AuditReport:
        totals, bad = self._totals()
        on_progress(f"judging {totals.records:,} records, {totals.branches:,} branches")
        found = transforms.all_findings(self._findings())
        if bad:
            found = transforms.mark_explained(found, self._adjacent())
        else:
            found = found.withColumn("explained", F.lit(False))
        found = _keep(self._kept, found)
        counts = found.groupBy("check", "problem").agg(F.count("*"), F.count_if("explained")).collect()
        examples = _first_of_each(found).collect() if counts else []
        return AuditReport(str(self._path), tuple(self._results(totals, counts, examples)), totals)

    def _findings(self) -> dict[str, DataFrame]:
        records, ranges, by_branch, first_lsn = self._records, self._ranges, self._branches, self._first_lsn
        starts = self._spark.createDataFrame(arrow_table(StartRow, self._checkpoints.log_starts()))
        is_from_birth = first_lsn == 0
        # Without the journal's beginning and without a checkpoint, the start of a partition's log is unknown.
        default_start = 0 if is_from_birth or self._checkpoints.newest is not None else None
        kept, partitions, live = self._checkpoints.rows(self._spark, first_lsn)
        newest = self._checkpoints.newest
        return {
            "records": transforms.record_findings(records),
            "frames": transforms.frame_findings(records),
            "offsets": transforms.offset_findings(ranges, starts, default_start),
            "outcomes": transforms.outcome_findings(by_branch, first_lsn).unionAll(
                transforms.assignment_findings(records, by_branch, first_lsn)
            ),
            "checkpoints": transforms.position_findings(records, kept, first_lsn)
            .unionAll(transforms.partition_findings(ranges, kept, partitions, starts, first_lsn))
            .unionAll(transforms.branch_findings(records, by_branch, kept, live, first_lsn, newest))
            .unionAll(self._checkpoints.damage(self._spark)),
        }

    def _adjacent(self) -> DataFrame:
        """Return one range a segment: corruption may be in a million places, and explaining findings needs no finer
        answer."""
        bad = self._records.where(F.col("kind") == BAD).groupBy("segment")
        return bad.agg(F.min("lsn").alias("lsn"), F.max("end").alias("end")).select("lsn", "end")

    def _totals(self) -> tuple[Totals, int]:
        """Return the totals, and the number of unreadable ranges. The action that reads the journal."""
        is_record = ~F.col("kind").isin(BAD, RecordType.PAD.name)
        records = self._records.agg(
            _number(F.count_if(is_record), "records"),
            _number(F.count_if(F.col("kind") == BAD), "bad"),
            _number(F.max("end"), "end_lsn"),
            _number(F.sum("frames"), "frames"),
        )
        ranges = self._ranges.agg(
            _number(F.count("*"), "ranges"),
            _number(F.sum(F.col("messages").cast("decimal(38,0)")), "messages"),
            _number(F.count_distinct("topic", "partition"), "partitions"),
        )
        is_open = (F.col("commits") == 0) & (F.col("rollbacks") == 0)
        promised = self._checkpoints.promised_below(self._first_lsn)
        is_prepared = (F.col("prepares") > 0) | F.col("branch_lsn").isin(promised)
        by_branch = self._branches.agg(
            _number(F.count("*"), "branches"),
            _number(F.count_if(is_prepared), "prepared"),
            _number(F.count_if(F.col("commits") > 0), "committed"),
            _number(F.count_if(F.col("rollbacks") > 0), "rolled_back"),
            _number(F.count_if(is_open & is_prepared), "in_doubt"),
            _number(F.count_if(is_open & ~is_prepared), "active"),
        )
        row = records.crossJoin(ranges).crossJoin(by_branch).first()
        assert row is not None  # aggregates without a group give one row
        figures: dict[str, Any] = {name: int(value) for name, value in row.asDict().items()}
        bad, self._frames, self._range_count = figures.pop("bad"), figures.pop("frames"), figures.pop("ranges")
        totals = Totals(
            segments=sum(segment.size > 0 for segment in self._pieces),
            bytes=sum(segment.size for segment in self._pieces),
            first_lsn=self._first_lsn,
            checkpoints=len(self._checkpoints.valid) + len(self._checkpoints.damaged),
            **figures,
        )
        return totals, bad

    def _results(self, totals: Totals, counts: list[Row], examples: list[Row]) -> list[CheckResult]:
        judged = {
            "records": f"{totals.records:,} records",
            "frames": f"{self._frames:,} messages",
            "offsets": f"{self._range_count:,} ranges in {totals.partitions:,} partitions",
            "outcomes": f"{totals.branches:,} branches",
            "checkpoints": f"{totals.checkpoints:,} checkpoints",
        }
        return [
            CheckResult(
                name,
                claim,
                judged[name],
                {problem: number for check, problem, number, _ in sorted(counts) if check == name},
                sum(explained for check, _, _, explained in counts if check == name),
                tuple(
                    Example(row["problem"], row["lsn"], row["subject"], row["detail"])
                    for row in examples
                    if row["check"] == name
                ),
            )
            for name, claim in CLAIMS.items()
        ]


def _number(column: Column, name: str) -> Column:
    return F.coalesce(column, F.lit(0)).alias(name)


def _first_of_each(found: DataFrame) -> DataFrame:
    order = Window.partitionBy("check").orderBy("explained", "lsn", "problem", "subject")
    ranked = found.withColumn("rank", F.row_number().over(order)).where(F.col("rank") <= EXAMPLES_MAX)
    return ranked.orderBy("check", "rank")
