"""Converts a record to its row: decodes it, checks the limits of columns, counts message frames on request. Pure."""

from typing import Final, NamedTuple, assert_never

from journal.errors import InvalidRecord
from journal.records.codec import decode
from journal.records.dead_letters import DeadLetter
from journal.records.header import RecordHeader, record_type_name
from journal.records.ledger import LedgerEntry
from journal.records.record import (
    NO_BRANCH,
    CheckpointWritten,
    Commit,
    Decision,
    DroppedRecords,
    Epoch,
    Forget,
    Heuristic,
    Pad,
    Prepare,
    PutBatch,
    PutRecord,
    Record,
    Relocate,
    Rollback,
    TxPut,
)
from journal.records.topic_changes import TopicChange
from journal.wal.scan import ScannedRecord
from meta_client.protocol.compression import codec_number
from meta_client.protocol.errors import InvalidMessage
from meta_client.protocol.messages import walk_frames
from spark_jobs.source.directory import LSN_MAX, MissingRange
from spark_jobs.source.schemas import BAD, OffsetAssignmentRow, RecordRow, RelocatedExtentRow

TIME_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999: the last moment Python and Spark can show


def bad_row(segment: int, unreadable: MissingRange) -> RecordRow:
    return RecordRow(segment, unreadable.lsn, unreadable.end, BAD, reason=unreadable.reason)


def record_row(segment: int, entry: ScannedRecord, *, with_frames: bool) -> RecordRow:
    """Return the row of a record whose checksums hold; BAD if no metaq of this version writes such a record."""
    header = entry.header
    if header.time_ms > TIME_MS_MAX:
        return RecordRow(segment, header.lsn, header.end, BAD, reason=f"time {header.time_ms} ms is past the year 9999")
    head = RecordRow(
        segment,
        header.lsn,
        header.end,
        record_type_name(header.record_type),
        header.epoch,
        header.incarnation,
        header.durable,
        header.time_ms,
        header.time_ms * 1000,
    )
    try:
        record = decode(header, entry.meta)
        check_numbers(header, record)
    except InvalidRecord as error:
        return head._replace(kind=BAD, reason=str(error))
    row = _fill(head, header, record)
    if with_frames and isinstance(record, PutRecord | PutBatch | TxPut | Relocate):
        counted = count_frames(entry.body)
        row = row._replace(frames=len(counted.ids), compressed=counted.compressed, frames_error=counted.error)
        return row if isinstance(record, Relocate) else _with_ids(row, record, counted)
    return row


def _with_ids(row: RecordRow, record: PutRecord | PutBatch | TxPut, counted: "CountedFrames") -> RecordRow:
    """Add the messages' ids; a CARRY's are those of the records it copies."""
    ids, error = counted.ids, counted.error
    first = ids[0] if ids else None
    if error is None and isinstance(record, PutBatch) and first != record.first_id:
        row = row._replace(frames_error=f"frame 1, at byte 0 of the body: id {first} instead of {record.first_id}")
    if first is None or ids == list(range(first, first + len(ids))):
        return row._replace(first_id=first)
    return row._replace(ids=tuple(ids))


def check_numbers(header: RecordHeader, record: Record) -> None:
    """Check that numbers and their sums fit the signed 64 bits of a column. Raises InvalidRecord."""
    match record:
        case PutBatch(base=base, sequence=sequence):
            largest = max(base + header.body_bytes, sequence.number)
        case PutRecord(base=base):
            largest = base + header.body_bytes
        case TxPut(branch_lsn=branch_lsn) | Rollback(branch_lsn=branch_lsn):
            largest = branch_lsn
        case Prepare(branch_lsn=branch_lsn, messages=messages, bytes=size):
            largest = max(branch_lsn, messages, size)
        case Heuristic(branch_lsn=branch_lsn, messages=messages, bytes=size, prepared_ms=prepared_ms):
            largest = max(branch_lsn, messages, size, prepared_ms)
        case Commit(branch_lsn=branch_lsn, assignments=assignments):
            largest = max([branch_lsn, *(assignment.base + assignment.bytes for assignment in assignments)])
        case Relocate(branch_lsn=branch_lsn, position=position, extents=runs):
            largest = max([branch_lsn, position + header.body_bytes, *(extent.lsn for extent in runs)])
        case CheckpointWritten(number=number, lsn=lsn):
            largest = max(number, lsn)
        case DroppedRecords(ends):
            largest = max((one.end for one in ends), default=0)
        case DeadLetter(next_offset=next_offset, time_ms=time_ms):
            largest = max(next_offset, time_ms)
        case Epoch() | Pad() | Decision() | Forget() | TopicChange() | LedgerEntry():
            return
        case _:
            assert_never(record)
    if largest > LSN_MAX:
        raise InvalidRecord(
            f"LSN {header.lsn}: a number beyond 2^63 in a {record_type_name(header.record_type)} record"
        )


def _fill(head: RecordRow, header: RecordHeader, record: Record) -> RecordRow:
    match record:
        case PutRecord(name, base, count) | PutBatch(name, base, count):
            row = head._replace(
                topic=name.topic,
                partition=name.partition,
                base_offset=base,
                messages=count,
                bytes=header.body_bytes,
                body_lsn=header.body_lsn,
            )
            if isinstance(record, PutBatch):
                return row._replace(producer=record.sequence.producer, sequence=record.sequence.number)
            return row
        case TxPut(key, branch_lsn, name, count):
            return head._replace(
                key=str(key),
                branch_lsn=header.lsn if branch_lsn == NO_BRANCH else branch_lsn,
                topic=name.topic,
                partition=name.partition,
                messages=count,
                bytes=header.body_bytes,
                body_lsn=header.body_lsn,
            )
        case Prepare(key, branch_lsn, messages, size):
            return head._replace(key=str(key), branch_lsn=branch_lsn, messages=messages, bytes=size)
        case Commit(key, branch_lsn, one_phase, assignments):
            rows = tuple(
                OffsetAssignmentRow(
                    assignment.name.topic,
                    assignment.name.partition,
                    assignment.base,
                    assignment.bytes,
                    assignment.count,
                )
                for assignment in assignments
            )
            return head._replace(key=str(key), branch_lsn=branch_lsn, one_phase=one_phase, assignments=rows)
        case Rollback(key, branch_lsn, reason):
            return head._replace(key=str(key), branch_lsn=branch_lsn, reason=reason.name)
        case Relocate(key, branch_lsn, name, first, _, runs):
            return head._replace(
                key=str(key),
                branch_lsn=branch_lsn,
                topic=name.topic,
                partition=name.partition,
                messages=sum(extent.messages for extent in runs),
                bytes=header.body_bytes,
                body_lsn=header.body_lsn,
                first_extent=first,
                extents=tuple(RelocatedExtentRow(extent.lsn, extent.bytes, extent.messages) for extent in runs),
            )
        case Heuristic(key, branch_lsn, decision, _, messages, size):
            return head._replace(
                key=str(key), branch_lsn=branch_lsn, messages=messages, bytes=size, reason=decision.name
            )
        case LedgerEntry(key, disagreement):
            return head._replace(key=str(key), reason=disagreement.name)
        case Epoch(_, _, version):
            return head._replace(version=version)
        case CheckpointWritten(number, lsn):
            return head._replace(checkpoint=number, checkpoint_lsn=lsn)
        case Decision(key, _) | Forget(key):
            return head._replace(key=str(key))
        case TopicChange(topic=topic, state=state):
            return head._replace(topic=topic, reason=state.name)
        case DeadLetter(topic=topic, partition=partition, offset=offset, state=state):
            return head._replace(topic=topic, partition=partition, base_offset=offset, reason=state.name)
        case DroppedRecords(ends):
            skips = (OffsetAssignmentRow(one.name.topic, one.name.partition, one.end, 0, 0) for one in ends)
            return head._replace(assignments=tuple(skips) or None)
        case Pad():
            return head
    assert_never(record)


class CountedFrames(NamedTuple):
    """The whole frames of a body: their ids, how many are compressed, and what is wrong with the first that is not."""

    ids: list[int]
    compressed: int
    error: str | None


def count_frames(body: memoryview) -> CountedFrames:
    """Count the whole message frames in *body* (spec 3.1).

    Does not look into attribute blocks and compressed payloads, which are the producer's.
    """
    ids: list[int] = []
    compressed = start = 0
    try:
        for frame in walk_frames(body, data_bytes_max=len(body)):
            ids.append(frame.message_id)
            compressed += codec_number(frame.flag) != 0
            start = frame.next_offset
    except InvalidMessage as error:
        return CountedFrames(ids, compressed, f"frame {len(ids) + 1}, at byte {start} of the body: {error}")
    if start < len(body):
        left = len(body) - start
        error_text = f"{left} bytes after the last whole frame, at byte {start} of the body"
        return CountedFrames(ids, compressed, error_text)
    return CountedFrames(ids, compressed, None)
