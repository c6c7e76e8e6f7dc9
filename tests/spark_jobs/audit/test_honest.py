"""An honest journal passes, whole, live, torn or shortened by retention; and the totals are right."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from journal.records.codec import decode
from journal.records.record import Commit, PutRecord
from journal.replica.follower import JournalFollower
from journal.state.checkpoint import Checkpoint, decode_checkpoint
from journal.state.relocation import read_chunk, relocation_chunks
from journal.wal.open_journal import JournalConfig
from journal.wal.segments import Segments
from journal.wal.storage import DirectoryStorage
from spark_jobs.audit.audit import audit_journal
from spark_jobs.audit.offset_check import offset_findings, offset_ranges
from spark_jobs.audit.report import AuditVerdict, Totals
from spark_jobs.source.locations import plan
from spark_jobs.source.schemas import StartRow, arrow_table
from tests.fixtures.replicas import wait_until
from tests.spark_jobs.audit.reports import Audit
from tests.spark_jobs.journals import (
    IDENTITY,
    ORDERS,
    REFUNDS,
    SEGMENT_BYTES,
    checkpoint,
    edit_checkpoint,
    put,
    records_of,
    segment_bases,
    store_in,
    transaction,
)


def test_an_honest_journal_holds_and_its_totals_are_right(honest: Path, audit: Audit) -> None:
    records = records_of(honest)
    report = audit(honest)
    assert report.holds, report.as_json()
    assert [check.counts for check in report.checks] == [{}] * 7
    assert report.totals == Totals(
        records=len(records),
        segments=len(segment_bases(honest)),
        bytes=SEGMENT_BYTES * len(segment_bases(honest)),
        first_lsn=0,
        end_lsn=records[-1].header.end,
        partitions=2,
        # 20 + 20 + 20 puts of 5, one of 1; one-phase 2, two-phase 6
        messages=300 + 1 + 2 + 6,
        branches=7,
        prepared=3,
        committed=2,
        rolled_back=2,  # undone, and active: presumed when the second life began
        in_doubt=2,
        active=1,
        checkpoints=3,
    )
    (*_, newest) = sorted(honest.glob("checkpoint.*"))
    said = decode_checkpoint(newest.read_bytes())
    assert isinstance(said, Checkpoint)
    assert report.vouched_end == said.lsn < report.totals.end_lsn
    assert report.sentence.startswith(
        f"Nothing is lost and nothing is doubled from LSN 0 to LSN {said.lsn}: all 7 checks hold over "
    )
    assert [(one.since, one.until, one.is_vouched) for one in report.evidence] == [
        (0, 0, True),
        (0, said.lsn, True),
        (said.lsn, report.totals.end_lsn, False),  # nothing vouches for what comes behind the newest checkpoint
        (0, report.totals.end_lsn, True),
        (0, report.totals.end_lsn, False),  # indexes: not compared
    ]
    assert "2 branches are in doubt" in report.sentence


def test_a_torn_tail_is_no_loss(honest: Path, audit: Audit) -> None:
    records = records_of(honest)
    last = records[-1].header
    base = segment_bases(honest)[-1]
    with (honest / f"{base:020d}.journal").open("r+b") as file:
        file.seek(last.end - base - 40)  # inside the last record: its fsync never returned
        file.write(b"\xff" * 4000)
    report = audit(honest)
    assert report.holds, report.as_json()
    assert report.totals.records == len(records) - 1
    assert report.totals.end_lsn == last.lsn


def test_a_live_broker_is_audited_while_it_writes(tmp_path: Path, audit: Audit) -> None:
    stop = threading.Event()
    with store_in(tmp_path / "live") as store:
        put(store, ORDERS, 1)
        checkpoint(store)

        def work() -> None:
            for number in range(100_000):
                if stop.wait(0.02):  # a broker is busy elsewhere: this thread shares its interpreter with the driver
                    return
                put(store, ORDERS, 3)
                branch = transaction(store, f"b{number}", (ORDERS, 1), (REFUNDS, 2))
                if number % 3:
                    store.prepare(branch)
                    store.commit(branch, one_phase=False)
                if number % 50 == 0:
                    checkpoint(store)

        writer = threading.Thread(target=work)
        writer.start()
        try:
            reports = [audit(tmp_path / "live")]
            deadline = time.monotonic() + 60
            while store.journal.flushed < reports[0].totals.end_lsn + 2 * SEGMENT_BYTES:
                assert time.monotonic() < deadline, "nothing more was written"
                time.sleep(0.01)
            reports.append(audit(tmp_path / "live"))
        finally:
            stop.set()
            writer.join()
    assert [report.holds for report in reports] == [True] * 2, [report.as_json() for report in reports]
    assert reports[1].totals.end_lsn > reports[0].totals.end_lsn, "the second audit saw more"
    assert reports[1].totals.segments > 2


def nodes(plan: Any) -> Iterator[Any]:
    """Yield the nodes of Spark's plan, a Java object."""
    yield plan
    for number in range(plan.children().size()):
        yield from nodes(plan.children().apply(number))


def check_no_task_gets_a_partition(spark: SparkSession, path: Path) -> None:
    """Of a journal too large to be broadcast, records are sent and sorted by segment: only a segment's sum goes by
    partition alone."""
    records = spark.read.format("metaq-journal").load(str(path))
    starts = spark.createDataFrame(arrow_table(StartRow, [StartRow("orders", 0, 0)]))
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", -1)
    try:
        found = offset_findings(offset_ranges(records), starts, None)
        plan = found._jdf.queryExecution().executedPlan()
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")
    shuffles = [each for each in nodes(plan) if each.nodeName() == "Exchange"]
    by_partition = [each for each in shuffles if "segment#" not in each.outputPartitioning().toString()]
    assert len(shuffles) > len(by_partition) == 1, plan.toString()
    assert by_partition[0].child().nodeName() == "HashAggregate"
    assert "segment#" in by_partition[0].child().groupingExpressions().toString()
    sorts = [each.sortOrder().toString() for each in nodes(plan) if each.nodeName() == "Sort"]
    assert sorts
    assert all("segment#" in each for each in sorts), plan.toString()


def test_what_retention_deleted_is_not_lost(honest: Path, audit: Audit, spark: SparkSession) -> None:
    check_no_task_gets_a_partition(spark, honest)
    storage = DirectoryStorage.open_for_reading(honest)
    segments = Segments.open(storage, None, SEGMENT_BYTES, writable=False)
    second = segment_bases(honest)[1]
    segments.drop_before(second)
    segments.close()
    # Nothing has said yet that the partitions begin later: the deleted messages count as lost.
    report = audit(honest)
    assert report.check("offsets").verdict is AuditVerdict.FAILS
    assert set(report.check("offsets").counts) == {"gap"}

    held = {name: _first_offset(honest, second, name.topic) for name in (ORDERS, REFUNDS)}

    def start_later(said: Checkpoint) -> Checkpoint:
        starts = {name.topic: start for name, start in held.items()}
        marks = [msgspec.structs.replace(entry, start=starts[entry.topic]) for entry in said.partitions]
        return msgspec.structs.replace(said, partitions=marks)

    edit_checkpoint(honest, 3, 3, start_later)
    assert audit(honest).check("offsets").holds


@contextmanager
def _cores_taken(spark: SparkSession, until: Path) -> Iterator[None]:
    """Let no other task of Spark run until the file *until* is there."""

    def wait(_: int) -> None:
        while not until.exists():
            time.sleep(0.02)

    context = spark.sparkContext
    cores = context.parallelize(range(2), 2)
    taking = threading.Thread(target=cores.foreach, args=(wait,))
    taking.start()
    try:
        wait_until(lambda: _active_tasks(spark) == 2, "both cores are taken")
        yield
    finally:
        until.touch()
        taking.join()


def _active_tasks(spark: SparkSession) -> int:
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def _trimmable(path: Path) -> tuple[int, Callable[[], None]]:
    """Write a journal whose checkpoint says that it begins with the second segment; return that, and what deletes the
    first."""
    with store_in(path) as store:
        branch = transaction(store, "long", (ORDERS, 1), (REFUNDS, 1))
        store.prepare(branch)
        while len(segment_bases(path)) < 2:
            put(store, ORDERS, 5)
        store.commit(branch, one_phase=False)
        put(store, ORDERS, 5)
        put(store, REFUNDS, 5)
        checkpoint(store)
    second = segment_bases(path)[1]
    held = {name.topic: _first_offset(path, second, name.topic) for name in (ORDERS, REFUNDS)}

    def start_later(said: Checkpoint) -> Checkpoint:
        return msgspec.structs.replace(
            said, partitions=[msgspec.structs.replace(entry, start=held[entry.topic]) for entry in said.partitions]
        )

    def trim() -> None:
        segments = Segments.open(DirectoryStorage.open_for_reading(path), None, SEGMENT_BYTES, writable=False)
        segments.drop_before(second)
        segments.close()

    edit_checkpoint(path, 1, 1, start_later)
    return second, trim


def test_what_retention_deletes_once_an_audit_has_begun_is_not_lost(tmp_path: Path, spark: SparkSession) -> None:
    """Spark lists the directory after the audit has."""
    second, trim = _trimmable(tmp_path / "trimmed")
    report = audit_journal(
        spark, tmp_path / "trimmed", on_progress=lambda step: trim() if step.startswith("reading") else None
    )
    assert report.holds, report.as_json()
    assert report.totals.first_lsn == second


def test_an_audit_begins_again_when_retention_deletes_what_spark_was_to_read(
    tmp_path: Path, spark: SparkSession
) -> None:
    second, trim = _trimmable(tmp_path / "trimmed")
    steps: list[str] = []

    def trim_what_is_planned() -> None:
        wait_until(lambda: len(spark.sparkContext.statusTracker().getActiveJobsIds()) == 2, "the audit's tasks wait")
        trim()
        (tmp_path / "trimmed.now").touch()

    def follow(step: str) -> None:
        if not steps:
            trimming.start()
        steps.append(step)

    trimming = threading.Thread(target=trim_what_is_planned)
    with _cores_taken(spark, tmp_path / "trimmed.now"):
        report = audit_journal(spark, tmp_path / "trimmed", on_progress=follow)
    trimming.join()
    assert report.holds, report.as_json()
    assert report.totals.first_lsn == second
    assert [step for step in steps if "again" in step] == [
        "segments were deleted while they were read: beginning again"
    ]


def test_a_relocated_branch_outlives_the_segments_it_was_put_into(tmp_path: Path, audit: Audit) -> None:
    path = tmp_path / "carried"
    with store_in(path) as store:
        store.prepare(doubtful := transaction(store, "doubtful", (REFUNDS, 4), (ORDERS, 2), (REFUNDS, 1)))
        store.prepare(transaction(store, "left-behind", (REFUNDS, 1)))
        for _ in range(100):
            put(store, ORDERS, 5)
        assert doubtful.branch is not None
        for chunk in relocation_chunks(doubtful.branch, store.journal.body_bytes_max):
            store.relocate(chunk, read_chunk(store.journal, chunk))
        put(store, ORDERS, 1)
        kept = doubtful.branch.oldest_lsn
        checkpoint(store)
        checkpoint(store)
    segments = Segments.open(DirectoryStorage.open_for_reading(path), None, SEGMENT_BYTES, writable=False)
    assert segments.drop_before(kept) > 1
    segments.close()
    start = _first_offset(path, segment_bases(path)[0], ORDERS.topic)

    def start_later(said: Checkpoint) -> Checkpoint:
        marks = [msgspec.structs.replace(entry, start=start) for entry in said.partitions]
        return msgspec.structs.replace(said, partitions=marks)

    edit_checkpoint(path, 2, 2, start_later)
    report = audit(path)
    assert report.check("checkpoints").counts == {"branch not kept": 1}
    assert "XID:1:6c6566742d626568696e64" in str(report.check("checkpoints"))
    assert (report.totals.in_doubt, report.totals.active) == (1, 0), "its PREPARE is deleted, its promise is not"
    edit_checkpoint(
        path,
        2,
        2,
        lambda said: msgspec.structs.replace(said, branches=[b for b in said.branches if b.first_lsn == 200]),
    )
    with store_in(path) as store:
        (live,) = store.recover()
        store.commit(live, one_phase=False)
    report = audit(path)
    assert report.holds, report.as_json()


def _first_offset(path: Path, base: int, topic: str) -> int:
    """The first offset of *topic* that a record from LSN *base* on takes."""
    for entry in records_of(path):
        if entry.header.lsn < base:
            continue
        record = decode(entry.header, entry.meta)
        if isinstance(record, PutRecord) and record.name.topic == topic:
            return record.base
        if isinstance(record, Commit):
            for assignment in record.assignments:
                if assignment.name.topic == topic:
                    return assignment.base
    raise AssertionError(topic)


def test_a_copy_that_is_being_received_holds(honest: Path, tmp_path: Path, audit: Audit) -> None:
    """A slave's directory is audited as any other, also after it was killed."""
    records = records_of(honest)
    storage = DirectoryStorage.open_for_writing(tmp_path / "copy")
    follower = JournalFollower.open(storage, IDENTITY, JournalConfig(segment_bytes=SEGMENT_BYTES))
    segments = Segments.open(DirectoryStorage.open_for_reading(honest), IDENTITY, SEGMENT_BYTES, writable=False)
    for base, file in segments:
        follower.receive(base, file.reader().read(0, min(records[-1].header.end - base, file.size)))
        follower.write_checkpoint(follower.snapshot(), {})
    segments.close()
    killed = shutil.copytree(tmp_path / "copy", tmp_path / "killed")
    follower.close()
    storage.close()
    assert (killed / "copy").exists()
    assert {piece.fsynced is None for piece in plan(killed)} == {False}
    report = audit(killed)
    assert report.holds, report.as_json()
    totals = report.totals
    assert (totals.records, totals.messages, totals.checkpoints) == (len(records), 300 + 1 + 2 + 6, 3)
    assert (totals.in_doubt, totals.active) == (2, 1)
