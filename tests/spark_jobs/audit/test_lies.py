"""Lies that every checksum confirms: each is named by the check that owns it, and no other."""

import shutil
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from journal.archive.keeper import SegmentKeeper
from journal.archive.places import DirectoryPlace
from journal.checksum import crc32
from journal.records.header import Lsn
from journal.records.record import NO_BRANCH, TxPut
from journal.state.checkpoint import Checkpoint, IndexFileEntry
from journal.state.relocation import read_chunk, relocation_chunks
from journal.wal.marks import SavedWatermark, write_watermark
from journal.wal.segments import Segments, segment_name
from journal.wal.storage import DirectoryStorage
from meta_broker.store.checkpoint_taking import checkpoint_stopped
from spark_jobs.audit.audit import audit_journal
from spark_jobs.audit.report import AuditVerdict
from tests.spark_jobs.audit.reports import Audit, verdicts
from tests.spark_jobs.journals import (
    ORDERS,
    REFUNDS,
    SEGMENT_BYTES,
    Pen,
    body,
    edit_checkpoint,
    flip,
    key,
    new_ids,
    segment_bases,
    store_in,
    transaction,
)


def drop_first_segments(path: Path, lsn: int) -> None:
    """Delete the segments below *lsn*, as retention does."""
    segments = Segments.open(DirectoryStorage.open_for_reading(path), None, SEGMENT_BYTES, writable=False)
    assert segments.drop_before(lsn) > 0
    segments.close()


def test_a_journal_without_what_would_miss_its_ends(honest: Path, tmp_path: Path, audit: Audit) -> None:
    """The newest, or the first, segment is gone, and with it every checkpoint that knew it."""
    bases = segment_bases(honest)
    for checkpoint in honest.glob("checkpoint.*"):
        checkpoint.unlink()
    beheaded = shutil.copytree(honest, tmp_path / "beheaded")
    (beheaded / segment_name(bases[0])).unlink()
    (honest / segment_name(bases[-1])).unlink()
    for path, claim, reasons in (
        (
            honest,
            "the journal ends at LSN ",
            ("no checkpoint.2, which the record at LSN ", "the last segment is full, and the next one is not here"),
        ),
        (beheaded, f"nothing but what retention deleted stood below LSN {bases[1]}: ", ("no checkpoint",)),
    ):
        report = audit(path)
        assert not report.holds
        assert verdicts(report, AuditVerdict.FAILS) == set(), report.as_json()
        assert "range" in verdicts(report, AuditVerdict.UNKNOWN)
        unknown = " ".join(f"{one.claim}: {one.source}" for one in report.evidence if not one.is_vouched)
        assert claim in unknown
        for reason in reasons:
            assert reason in unknown
        assert report.sentence.startswith("This journal is NOT proven whole (unknown: range) over ")


def test_a_lost_newest_segment_of_which_a_file_tells(honest: Path, tmp_path: Path, audit: Audit) -> None:
    """The segment prepared after it, or the saved watermark, names bytes that are not there."""
    bases = segment_bases(honest)
    for checkpoint in honest.glob("checkpoint.*"):
        checkpoint.unlink()
    (honest / segment_name(bases[-1])).unlink()
    (honest / f"{segment_name(bases[-1] + SEGMENT_BYTES)}.tmp").write_bytes(bytes(SEGMENT_BYTES))
    storage = DirectoryStorage.open_for_writing(honest)
    write_watermark(storage, SavedWatermark(Lsn(bases[-1] + 500), is_whole=True))
    storage.close()
    report = audit(honest)
    assert verdicts(report, AuditVerdict.FAILS) == {"range"}, report.as_json()
    assert report.check("range").counts == {"acknowledged and missing": 1, "segment missing": 1}


def test_what_a_branch_from_before_the_first_record_still_holds(tmp_path: Path, audit: Audit) -> None:
    """Its relocated copies say what its COMMIT may take."""
    with Pen(tmp_path) as pen:
        names = ("true", "less", "more", "unknown")
        first = {name: pen.write(TxPut(key(name), NO_BRANCH, ORDERS, 3), body(3, first_id=new_ids())) for name in names}
        for base in range(0, 100 * 500, 500):
            pen.put(REFUNDS, base, 5)
        for name in names[:3]:
            pen.relocate(name, ORDERS, first[name])
            pen.prepare(name, first[name].lsn, 3)
        pen.prepare("unknown", first["unknown"].lsn, 3)
        kept = pen.journal.end
        pen.commit("true", first["true"].lsn, (ORDERS, 0, 3))
        pen.commit("less", first["less"].lsn, (ORDERS, 300, 2))
        pen.commit("more", first["more"].lsn, (ORDERS, 500, 4))
        pen.commit("unknown", first["unknown"].lsn, (ORDERS, 900, 3))
    drop_first_segments(tmp_path, kept - SEGMENT_BYTES)
    report = audit(tmp_path)
    assert verdicts(report, AuditVerdict.FAILS) == {"outcomes"}, report.as_json()
    assert report.check("outcomes").counts == {"assignment differs": 1, "promise not kept": 2}
    said = " ".join(str(example) for example in report.check("outcomes").examples)
    assert "holds 3 messages in 300 bytes for orders-0; its COMMIT takes 2 in 200" in said
    assert "promises 3 messages in 300 bytes, but its COMMIT takes 4 in 400" in said
    sources = {one.claim: one.source for one in report.evidence}
    claim = "of 4 branches that began before LSN %d and committed, 1 published what was put"
    assert sources[claim % report.totals.first_lsn] == "relocated copies of their messages"


def test_an_index_that_points_elsewhere(honest: Path, spark: SparkSession) -> None:
    """An honest one holds, with a relocated branch in it; then an entry is exchanged, and a file cut."""
    with store_in(honest) as store:
        moved = transaction(store, "moved", (ORDERS, 2), (REFUNDS, 3), (ORDERS, 1))
        assert moved.branch is not None
        for chunk in relocation_chunks(moved.branch, store.journal.body_bytes_max):
            store.relocate(chunk, read_chunk(store.journal, chunk))
        store.transactional_put(moved, ORDERS, [body(1, first_id=new_ids())], 100, 1)
        store.commit(moved, one_phase=True)
    checkpoint_stopped(honest, "test")
    report = audit_journal(spark, honest, with_indexes=True)
    assert report.holds, report.as_json()
    entries = 20 + 20 + 20 + 1 + 1 + 3 + 4  # a put each, and the extents of three branches
    assert report.check("indexes").judged == f"{entries} entries"

    number = max(int(file.suffix[1:]) for file in honest.glob("checkpoint.*"))
    file = honest / "index" / "orders-0.index"
    data = bytearray(file.read_bytes())
    first, second = data[:32], data[32:64]
    data[:64] = first[:8] + second[8:16] + first[16:] + second[:8] + first[8:16] + second[16:]  # their LSNs exchanged
    data = data[: -2 * 32] + data[-32:]  # the last but one is left out
    file.write_bytes(data)
    crc = crc32(data, crc32(b"orders-0.index 0"))

    def as_written(said: Checkpoint) -> Checkpoint:
        entry = IndexFileEntry(entries=len(data) // 32, crc=crc)
        marks = [msgspec.structs.replace(one, index=entry) if one.topic == "orders" else one for one in said.partitions]
        return msgspec.structs.replace(said, partitions=marks)

    edit_checkpoint(honest, number, number, as_written)
    (honest / "index" / "refunds-1.index").write_bytes(b"")
    report = audit_journal(spark, honest, with_indexes=True)
    assert verdicts(report, AuditVerdict.FAILS) == {"indexes"}, report.as_json()
    assert report.check("indexes").counts == {"entry wrong": 2, "entry missing": 1, "index damaged": 1}
    said = " ".join(str(example) for example in report.check("indexes").examples)
    assert "the index of orders-0 has offset 0 at LSN " in said
    assert f"the index of refunds-1 differs from checkpoint.{number} at entry 0: it ends at entry 0 of " in said


def test_an_archive_and_its_directory_are_one_journal(honest: Path, tmp_path: Path, spark: SparkSession) -> None:
    """Audit an honest archive; then one with a byte changed that no record holds, and one without a segment."""
    archive = tmp_path / "archive"
    storage = DirectoryStorage.open_for_writing(honest)
    segments = Segments.open(storage, None, SEGMENT_BYTES, writable=True)
    bases = segment_bases(honest)
    assert segments.drop_before(bases[2], SegmentKeeper(DirectoryPlace(archive))) == 2
    segments.close()
    storage.close()
    report = audit_journal(spark, honest, archive=archive)
    assert report.holds, report.as_json()
    assert (report.totals.first_lsn, report.totals.messages) == (0, 300 + 1 + 2 + 6)
    assert report.check("archive").judged == "2 segments"
    alone = audit_journal(spark, archive)
    assert alone.holds, alone.as_json()
    assert alone.vouched_end == bases[2], "by its manifest"

    flip(archive, bases[1] - 1)  # in the padding of the first segment: every record still reads back
    (archive / segment_name(bases[1])).unlink()
    (archive / segment_name(bases[2])).write_bytes((honest / segment_name(bases[2])).read_bytes())  # on its way here
    report = audit_journal(spark, honest, archive=archive)
    assert report.check("archive").counts == {"segment exchanged": 1, "segment missing": 1}, report.as_json()
    assert verdicts(report, AuditVerdict.FAILS) == {"archive", "records"}
    manifest = archive / "manifest.jsonl"
    manifest.write_bytes(b"".join(manifest.read_bytes().splitlines(keepends=True)[::2]))
    report = audit_journal(spark, honest, archive=archive)
    assert report.check("archive").counts == {"manifest damaged": 1}
    (example,) = report.check("archive").examples
    assert f"line 2: the chain breaks at segment {bases[1]}" in str(example)
