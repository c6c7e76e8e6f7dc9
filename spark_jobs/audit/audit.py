"""Runs every check over one directory: what `metaq audit` and scheduled jobs call.

Reads the journal's bytes once. Spark keeps the result, some hundred bytes a record, in memory, then on disk, for the
checks. The driver sees only counts and a few examples, whatever the journal's size.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j ships no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it
from pyspark.storagelevel import StorageLevel

from journal.errors import StorageFailed
from journal.wal.marks import read_watermark
from journal.wal.storage import DirectoryStorage
from spark_jobs.audit.archive_check import ArchiveResult, check_archive, is_archive
from spark_jobs.audit.checkpoint_check import branch_findings, partition_findings, position_findings
from spark_jobs.audit.checkpoint_files import Checkpoints, read_checkpoints
from spark_jobs.audit.checksums import frame_findings, life_findings, record_findings
from spark_jobs.audit.findings import SUM, all_findings, first_of_each, mark_explained
from spark_jobs.audit.identity_check import batch_findings, id_findings
from spark_jobs.audit.index_check import index_findings
from spark_jobs.audit.index_files import ReadIndexes, read_indexes
from spark_jobs.audit.offset_check import offset_findings, offset_ranges, skips
from spark_jobs.audit.range_check import RangeResult, ReadRange, Vouchers, check_range
from spark_jobs.audit.relocation_check import commit_sum_findings, commit_sums, confirmed, relocated_branch_findings
from spark_jobs.audit.report import CLAIMS, AuditReport, CheckResult, Example, SourcedClaim, Totals
from spark_jobs.audit.transaction_check import assignment_findings, branches, outcome_findings
from spark_jobs.source.data_source import FORMAT, register
from spark_jobs.source.directory import SegmentSlice
from spark_jobs.source.locations import JournalLocation, plan
from spark_jobs.source.schemas import BAD, BranchRow, CheckpointRow, FindingRow, PartitionRow, StartRow, arrow_table

ATTEMPTS: Final = 3  # to read what retention deletes from


def audit_journal(
    spark: SparkSession,
    place: JournalLocation,
    *,
    archive: JournalLocation | None = None,
    with_indexes: bool = False,
    also: Callable[[DataFrame, DataFrame], None] = lambda records, branches: None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> AuditReport:
    """Audit the journal in *place*, live, dead or archived; every worker must see it there. Changes nothing.

    *archive*: of its segments; both are read as one journal, and the archive is compared with its manifest, as one in
    *place* is. *with_indexes*: compare the index files of its partitions, too, as the newest checkpoint names them.
    *also* is called with the records (RecordRow) and branches (`branches` of transaction_check.py) while Spark keeps
    them. Calls *on_progress* with the next step. Begins again, and may call *also* again, when retention deletes what
    Spark is about to read. Raises StorageFailed, ForeignJournal before it reads records.
    """
    register(spark)
    attempt = 1
    while True:
        begin = plan(place)[0].base
        try:
            with ExitStack() as kept:
                audit = _read(spark, place, archive, kept, on_progress, with_indexes=with_indexes)
                report = audit.run(on_progress)
                also(audit.records, audit.branches)
                return report
        except (PySparkException, Py4JError):
            if attempt == ATTEMPTS or plan(place)[0].base == begin:
                raise
        attempt += 1
        on_progress("segments were deleted while they were read: beginning again")


def _read(
    spark: SparkSession,
    place: JournalLocation,
    archive: JournalLocation | None,
    kept: ExitStack,
    on_progress: Callable[[str], None],
    *,
    with_indexes: bool,
) -> "_Audit":
    # First: the records read later then cover what these vouch for, and go on to where index entries point.
    path = place if isinstance(place, Path) else None  # an object store has segments alone
    saved = None if path is None else read_watermark(DirectoryStorage.open_for_reading(path))
    checkpoints, indexes = read_checkpoints(place), None
    if with_indexes:
        if path is None:
            raise StorageFailed(f"{place} is an archive, which has no index files: name a broker's directory")
        on_progress("reading the index files")
        checkpoints, indexes = _read_indexes(spark, path, checkpoints, kept)
    slices, archived = plan(place), None
    _tell_reading(on_progress, slices)
    read = keep(kept, _records(spark, place))
    begin = _first_segment(read, slices[0].base)
    slices = [segment for segment in slices if segment.base >= begin]
    if archive is not None:
        # After the directory: what retention moves meanwhile is in both.
        older = [segment for segment in plan(archive) if segment.base < begin]
        _tell_reading(on_progress, older)
        slices = older + slices
        read = keep(kept, _records(spark, archive).where(F.col("lsn") < begin)).unionAll(read)
        archived = check_archive(spark, archive, begin)
    elif is_archive(place):
        archived = check_archive(spark, place, None)
    vouchers = Vouchers(checkpoints, saved, None if archived is None else archived.listed_end)
    return _Audit(spark, place, vouchers, indexes, archived, slices, read, kept)


def _tell_reading(on_progress: Callable[[str], None], slices: Sequence[SegmentSlice]) -> None:
    size = sum(segment.size for segment in slices)
    on_progress(f"reading {len(slices)} segments, {size / 2**20:,.1f} MiB")


def _first_segment(records: DataFrame, planned: int) -> int:
    """Read *records*, and return where they begin: behind the segments that retention has deleted since they were
    *planned*, for Spark lists a directory once more."""
    row = records.agg(F.min("segment")).first()
    return planned if row is None or row[0] is None else max(planned, int(row[0]))


def _records(spark: SparkSession, place: JournalLocation) -> DataFrame:
    path = str(place.absolute() if isinstance(place, Path) else place)
    return spark.read.format(FORMAT).option("path", path).option("frames", "true").load()


def _read_indexes(
    spark: SparkSession, path: Path, checkpoints: Checkpoints, kept: ExitStack
) -> tuple[Checkpoints, ReadIndexes]:
    """Return the index files, and the checkpoints that name them: a live broker may have written newer ones of both."""
    while True:
        indexes = read_indexes(spark, path, checkpoints, lambda rows: keep(kept, rows))
        newer = read_checkpoints(path) if indexes.damaged else checkpoints
        if newer.newest == checkpoints.newest:
            return checkpoints, indexes
        checkpoints = newer


def keep(kept: ExitStack, rows: DataFrame) -> DataFrame:
    """Persist *rows*, computed once, until *kept* closes."""
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    kept.callback(rows.unpersist)
    return rows


class _Audit:
    """DataFrames that the checks share."""

    def __init__(
        self,
        spark: SparkSession,
        place: JournalLocation,
        vouchers: Vouchers,
        indexes: ReadIndexes | None,
        archived: ArchiveResult | None,
        slices: list[SegmentSlice],
        records: DataFrame,
        kept: ExitStack,
    ) -> None:
        self._spark = spark
        self._place = place
        self._vouchers = vouchers
        self._checkpoints = vouchers.checkpoints
        self._indexes = indexes
        self._archived = archived
        self._pieces = slices
        self._first_lsn = slices[0].base
        self.records = records
        self._ranges = offset_ranges(records)
        self.branches = keep(kept, branches(records))
        # Branches that began before the first record: a journal from its birth on has none.
        self._earlier: DataFrame | None = None
        if self._first_lsn:
            self._earlier = keep(kept, commit_sums(records, self.branches, self._first_lsn))
        self._kept = kept

    def run(self, on_progress: Callable[[str], None]) -> AuditReport:
        totals, bad = self._totals()
        on_progress(f"judging {totals.records:,} records, {totals.branches:,} branches")
        ends = check_range(self._place, self._vouchers, self._read_range(totals))
        found = all_findings(self._findings(totals, ends))
        if bad:
            found = mark_explained(found, self._adjacent())
        # The checks' parts, some twenty times the shuffle's, are nearly all empty.
        found = keep(self._kept, found.coalesce(self._spark.sparkContext.defaultParallelism))
        explained = "count_if(explained)" if bad else "0"
        counts = found.groupBy("check", "problem").agg(F.count("*"), F.expr(explained)).collect()
        examples = first_of_each(found, "explained" if bad else "lsn").collect() if counts else []
        results = tuple(self._results(totals, ends, counts, examples))
        return AuditReport(str(self._place), results, totals, tuple(self._evidence(totals, ends)), ends.vouched_end)

    def _read_range(self, totals: Totals) -> ReadRange:
        return ReadRange(totals.first_lsn, totals.end_lsn, self._pieces[-1].end, self._named)

    def _evidence(self, totals: Totals, ends: RangeResult) -> Iterator[SourcedClaim]:
        """Yield the claims of the audit that have a source of their own, or none."""
        first, end = totals.first_lsn, totals.end_lsn
        yield from ends.evidence
        yield SourcedClaim("records and messages are as they were written", first, end, "their checksums")
        if self._indexes is None:
            claim = "the partition indexes point at these messages"
            yield SourcedClaim(claim, first, end, "not compared: give --indexes", is_vouched=False)
        if self._earlier is None:
            return
        row = confirmed(self._earlier).selectExpr("count(*) AS branches", "count_if(confirmed) AS confirmed").first()
        assert row is not None
        if row["branches"]:
            claim = f"of {row['branches']:,} branches that began before LSN {first} and committed, "
            copies = "relocated copies of their messages"
            yield SourcedClaim(f"{claim}{row['confirmed']:,} published what was put", first, end, copies)
            if others := row["branches"] - row["confirmed"]:
                why = "some of their messages are deleted"
                yield SourcedClaim(f"{claim}{others:,} published what was put", first, end, why, is_vouched=False)

    def _findings(self, totals: Totals, ends: RangeResult) -> dict[str, list[DataFrame]]:
        """Return the findings of each check, without those that can have none by the totals: Spark plans all alike."""
        records, by_branch, first_lsn = self.records, self.branches, self._first_lsn
        is_from_birth, newest = first_lsn == 0, self._checkpoints.newest
        starts = self._rows(StartRow, self._checkpoints.log_starts())
        # From its birth on every partition begins at 0, wherever retention made it begin since. Without the journal's
        # beginning and without a checkpoint, the start of a partition's log is unknown.
        default_start = 0 if is_from_birth or newest is not None else None
        by_check = {
            "records": [record_findings(records)],
            "frames": [frame_findings(records)],
            "offsets": [offset_findings(self._ranges, starts.where(f"{not is_from_birth}"), default_start)],
            "identity": [id_findings(records)],
            "outcomes": [],
        }
        if self._has_lives:
            by_check["records"].append(life_findings(records))
        if self._batches:
            by_check["identity"].append(batch_findings(records))
        if totals.branches:
            by_check["outcomes"].append(outcome_findings(by_branch, first_lsn))
            by_check["outcomes"].append(assignment_findings(records, by_branch, first_lsn))
        if self._earlier is not None:
            by_check["outcomes"].append(commit_sum_findings(self._earlier))
        kept, partitions, live = self._checkpoints.rows(first_lsn)
        if kept and newest is not None:
            checkpoints, branches = self._rows(CheckpointRow, kept), self._rows(BranchRow, live)
            ranges = self._ranges.unionAll(skips(records))
            ends_said = self._rows(PartitionRow, partitions)
            by_check["checkpoints"] = [
                position_findings(records, checkpoints, first_lsn),
                partition_findings(ranges, checkpoints, ends_said, starts, first_lsn),
                branch_findings(records, by_branch, checkpoints, branches, first_lsn, newest),
            ]
            if self._earlier is not None:
                by_check["checkpoints"].append(relocated_branch_findings(records, branches, first_lsn))
        if (indexes := self._indexes) is not None and indexes.entries is not None:
            by_check["indexes"] = [index_findings(records, indexes.entries, indexes.files, indexes.at, indexes.number)]
        archived = [] if self._archived is None else self._archived.findings
        known = {"checkpoints": self._checkpoints.damage(), "range": ends.findings, "archive": archived}
        for check, rows in known.items():
            if rows:
                by_check.setdefault(check, []).append(self._rows(FindingRow, rows))
        return by_check

    def _rows(self, row: Any, rows: list[Any]) -> DataFrame:
        return self._spark.createDataFrame(arrow_table(row, rows))

    def _adjacent(self) -> DataFrame:
        """Return one range a segment: corruption may be in a million places, and explaining findings needs no finer
        answer."""
        bad = self.records.where(f"kind = '{BAD}'").groupBy("segment")
        return bad.agg(F.min("lsn").alias("lsn"), F.max("end").alias("end"))

    def _totals(self) -> tuple[Totals, int]:
        """Return the totals, and the number of unreadable ranges. The action that reads the journal."""
        records = self.records.selectExpr(
            f"count_if(kind NOT IN ('{BAD}', 'PAD')) AS records",
            f"count_if(kind = '{BAD}') AS bad",
            "max(`end`) AS end_lsn",
            "sum(frames) AS frames",
            "count(producer) AS batches",
            "max(epoch) != min(epoch) OR max(incarnation) != min(incarnation) AS has_lives",
            "max(struct(checkpoint, lsn)) AS named",
        )
        ranges = self._ranges.selectExpr(
            "count(*) AS ranges",
            f"sum(CAST(messages AS {SUM})) AS messages",
            "count(DISTINCT topic, partition) AS partitions",
        )
        promised = self._checkpoints.promised_below(self._first_lsn)
        is_prepared = "prepares > 0"
        if promised:
            is_prepared = f"({is_prepared} OR branch_lsn IN ({', '.join(map(str, promised))}))"
        is_open = "commits = 0 AND rollbacks = 0"
        by_branch = self.branches.selectExpr(
            "count(*) AS branches",
            f"count_if({is_prepared}) AS prepared",
            "count_if(commits > 0) AS committed",
            "count_if(rollbacks > 0) AS rolled_back",
            f"count_if({is_open} AND {is_prepared}) AS in_doubt",
            f"count_if({is_open} AND NOT {is_prepared}) AS active",
        )
        row = records.crossJoin(ranges).crossJoin(by_branch).first()
        assert row is not None  # aggregates without a group give one row
        figures: dict[str, Any] = row.asDict()
        named = figures.pop("named")
        self._named = None if named is None or named["checkpoint"] is None else (named["checkpoint"], named["lsn"])
        figures = {name: int(value or 0) for name, value in figures.items()}
        bad, self._frames, self._range_count = figures.pop("bad"), figures.pop("frames"), figures.pop("ranges")
        self._batches, self._has_lives = figures.pop("batches"), bool(figures.pop("has_lives"))
        totals = Totals(
            segments=sum(segment.size > 0 for segment in self._pieces),
            bytes=sum(segment.size for segment in self._pieces),
            first_lsn=self._first_lsn,
            checkpoints=len(self._checkpoints.valid) + len(self._checkpoints.damaged),
            **figures,
        )
        return totals, bad

    def _results(self, totals: Totals, ends: RangeResult, counts: list[Row], examples: list[Row]) -> list[CheckResult]:
        judged = {
            "records": f"{totals.records:,} records",
            "frames": f"{self._frames:,} messages",
            "offsets": f"{self._range_count:,} ranges in {totals.partitions:,} partitions",
            "identity": f"{self._batches:,} batches, {self._frames:,} messages",
            "outcomes": f"{totals.branches:,} branches",
            "checkpoints": f"{totals.checkpoints:,} checkpoints",
            "range": f"LSN {totals.first_lsn} to {totals.end_lsn}",
        }
        unknown = {"range": ends.unknown}
        if self._indexes is not None:
            judged["indexes"] = f"{self._indexes.entry_count:,} entries"
            unknown["indexes"] = self._indexes.unknown
        if self._archived is not None:
            judged["archive"] = f"{self._archived.segments:,} segments"
            unknown["archive"] = self._archived.unknown
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
                tuple(unknown.get(name, ())),
            )
            for name, claim in CLAIMS.items()
            if name in judged
        ]
