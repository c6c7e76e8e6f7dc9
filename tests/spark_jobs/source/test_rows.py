"""A record's row, whatever its numbers say, and the frames of its body."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.errors import InvalidRecord
from journal.records.codec import encode
from journal.records.header import HEADER_BYTES, Lsn, Offset, RecordHeader
from journal.records.heuristics import HeuristicDecision
from journal.records.ledger import Disagreement, LedgerEntry
from journal.records.producer_state import BatchSequence
from journal.records.record import (
    CheckpointWritten,
    Commit,
    Heuristic,
    OffsetAssignment,
    PartitionName,
    Prepare,
    PutBatch,
    PutRecord,
    Record,
    Relocate,
    RelocatedExtent,
    Rollback,
    RollbackReason,
    TxPut,
)
from journal.wal.scan import ScannedRecord
from meta_client.protocol.compression import Codec
from meta_client.protocol.messages import FLAG_ATTRIBUTE, encode_body, encode_frame
from spark_jobs.source.directory import LSN_MAX
from spark_jobs.source.rows import TIME_MS_MAX, check_numbers, count_frames, record_row
from spark_jobs.source.schemas import OffsetAssignmentRow, RecordRow, RelocatedExtentRow
from tests.spark_jobs.journals import ORDERS, body, key


def entry(record: Record, frames: bytes = b"", *, time_ms: int = 5, lsn: int = 128) -> ScannedRecord:
    kind, meta = encode(record)
    header = RecordHeader(kind, 0, len(meta), len(frames), 0, 1, 2, Lsn(lsn), Lsn(64), time_ms)
    return ScannedRecord(header, memoryview(bytes(HEADER_BYTES) + meta + frames), 0)


def row(record: Record, frames: bytes = b"", *, with_frames: bool = False, time_ms: int = 5) -> RecordRow:
    return record_row(0, entry(record, frames, time_ms=time_ms), with_frames=with_frames)


def test_a_put() -> None:
    found = row(PutRecord(ORDERS, Offset(700), 3), body(3), with_frames=True)
    meta_bytes = 16 + len("orders")
    assert found == RecordRow(
        segment=0,
        lsn=128,
        end=(128 + HEADER_BYTES + meta_bytes + 300 + 7) // 8 * 8,
        kind="PUT",
        epoch=1,
        incarnation=2,
        durable_lsn=64,
        time_ms=5,
        time=5000,
        topic="orders",
        partition=0,
        base_offset=700,
        messages=3,
        bytes=300,
        body_lsn=128 + HEADER_BYTES + meta_bytes,
        frames=3,
        compressed=0,
        first_id=0,
    )


def test_a_numbered_batch_and_its_ids() -> None:
    batch = PutBatch(ORDERS, Offset(700), 3, 40, BatchSequence("shop", 12))
    found = row(batch, body(3, first_id=40), with_frames=True)
    assert (found.producer, found.sequence, found.first_id, found.frames_error) == ("shop", 12, 40, None)
    other = row(batch, body(3, first_id=41), with_frames=True)
    assert other.frames_error == "frame 1, at byte 0 of the body: id 41 instead of 40"
    assert row(batch).first_id is None


def test_ids_that_do_not_rise_by_one_are_all_named() -> None:
    found = row(PutRecord(ORDERS, Offset(0), 3), body(2, first_id=7) + body(1, first_id=3), with_frames=True)
    assert (found.first_id, found.ids) == (None, (7, 8, 3))


def test_what_a_relocation_copied() -> None:
    extents = (RelocatedExtent(Lsn(64), 200, 2, 5), RelocatedExtent(Lsn(400), 100, 1, 6))
    found = row(Relocate(key("a"), Lsn(64), ORDERS, 3, 700, extents), body(3), with_frames=True)
    assert (found.messages, found.first_extent) == (3, 3)
    assert found.extents == (RelocatedExtentRow(64, 200, 2), RelocatedExtentRow(400, 100, 1))
    assert (found.frames, found.first_id, found.ids) == (3, None, None)


def test_the_first_record_of_a_branch_names_itself() -> None:
    assert row(TxPut(key("a"), Lsn(0), ORDERS, 1)).branch_lsn == 128
    assert row(TxPut(key("a"), Lsn(64), ORDERS, 1)).branch_lsn == 64


def test_the_columns_of_the_other_kinds() -> None:
    assignments = (
        OffsetAssignment(ORDERS, Offset(100), 200, 2),
        OffsetAssignment(PartitionName("a", 1), Offset(0), 100, 1),
    )
    found = row(Commit(key("a"), Lsn(64), True, assignments))
    assert (found.key, found.branch_lsn, found.one_phase) == (str(key("a")), 64, True)
    assert found.assignments == (OffsetAssignmentRow("orders", 0, 100, 200, 2), OffsetAssignmentRow("a", 1, 0, 100, 1))
    assert row(Rollback(key("a"), Lsn(64), RollbackReason.TIMED_OUT)).reason == "TIMED_OUT"
    promised = row(Prepare(key("a"), Lsn(64), 3, 300))
    assert (promised.messages, promised.bytes) == (3, 300)
    decided = row(Heuristic(key("a"), Lsn(64), HeuristicDecision.COMPLETE, 5, 3, 300, "ann", "sent by hand"))
    assert (decided.reason, decided.messages, decided.bytes) == ("COMPLETE", 3, 300)
    finding = row(LedgerEntry(key("a"), Disagreement.MIXED, "ann", "the row is there", "broker 0: rolled back"))
    assert (finding.key, finding.reason) == (str(key("a")), "MIXED")
    mark = row(CheckpointWritten(7, Lsn(100)))
    assert (mark.checkpoint, mark.checkpoint_lsn) == (7, 100)


def test_a_kind_this_version_does_not_read_is_bad_and_says_so() -> None:
    raw = entry(PutRecord(ORDERS, Offset(0), 1))
    found = record_row(0, raw._replace(header=msgspec.structs.replace(raw.header, record_type=99)), with_frames=False)
    assert found.kind == "BAD"
    assert "a record of kind 99, which this version of metaq does not read" in (found.reason or "")


@pytest.mark.parametrize(
    "record",
    [
        PutRecord(ORDERS, Offset(LSN_MAX - 299), 3),
        TxPut(key("a"), Lsn(LSN_MAX + 1), ORDERS, 1),
        Prepare(key("a"), Lsn(64), LSN_MAX + 1, 1),
        Prepare(key("a"), Lsn(64), 1, LSN_MAX + 1),
        Commit(key("a"), Lsn(64), False, (OffsetAssignment(ORDERS, Offset(LSN_MAX), 1, 1),)),
        Rollback(key("a"), Lsn(LSN_MAX + 1), RollbackReason.ASKED),
        CheckpointWritten(LSN_MAX + 1, Lsn(0)),
    ],
)
def test_a_number_that_no_column_holds_makes_the_record_bad(record: Record) -> None:
    written = entry(record, body(3) if isinstance(record, PutRecord) else b"")
    with pytest.raises(InvalidRecord, match="a number beyond 2"):
        check_numbers(written.header, record)
    assert record_row(0, written, with_frames=True).kind == "BAD"


def test_a_time_that_no_calendar_holds_makes_the_record_bad() -> None:
    assert row(PutRecord(ORDERS, Offset(0), 1), body(1), time_ms=TIME_MS_MAX).kind == "PUT"
    assert row(PutRecord(ORDERS, Offset(0), 1), body(1), time_ms=TIME_MS_MAX + 1).kind == "BAD"


def test_frames_are_counted_what_they_hold_is_not_judged() -> None:
    flag, data = encode_body(b"hello", "attr")
    bad_attribute = struct.pack(">i", 99) + b"x"
    frames = [
        encode_frame(1, flag, data),
        encode_frame(-5, FLAG_ATTRIBUTE, bad_attribute),
        encode_frame(2, 0, b""),
        encode_frame(3, Codec.LZ4.flag, b"not what lz4 writes"),
    ]
    assert count_frames(memoryview(b"".join(frames))) == ([1, -5, 2, 3], 1, None)


def test_what_is_no_frame_is_named_with_its_place() -> None:
    good = body(2)
    short = "99 bytes after the last whole frame, at byte 100 of the body"
    assert count_frames(memoryview(good[:-1])) == ([0], 0, short)
    negative = good[:100] + b"\xff" + good[101:]
    ids, _, error = count_frames(memoryview(negative))
    assert (ids, error is not None and error.startswith("frame 2, at byte 100 of the body: ")) == ([0], True)


@given(raw=st.binary(max_size=200))
def test_any_body_is_counted(raw: bytes) -> None:
    ids, compressed, error = count_frames(memoryview(raw))
    assert compressed <= len(ids)
    assert error is not None or len(ids) * 20 <= len(raw)
    assert error is None or error.isprintable()
