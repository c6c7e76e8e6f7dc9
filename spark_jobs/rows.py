"""From a record to its row: decoded, bounded to what a column can hold, message frames counted if asked for. Pure."""

from typing import Final, assert_never

from journal.errors import InvalidRecord
from journal.frame import Header, kind_name
from journal.record_codec import decode
from journal.records import (
    NO_BRANCH,
    Carry,
    CheckpointMark,
    Commit,
    Decision,
    Epoch,
    Forget,
    Heuristic,
    Lost,
    Pad,
    Prepare,
    Put,
    PutBatch,
    Record,
    Rollback,
    TxPut,
)
from journal.refusals import Refused
from journal.scan import Entry
from journal.topic_changes import TopicChange
from meta_client.protocol.compression import codec_number
from meta_client.protocol.errors import InvalidMessage
from meta_client.protocol.messages import walk_frames
from spark_jobs.directory import LSN_MAX, Stretch
from spark_jobs.schemas import BAD, RecordRow, TakeRow

TIME_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999: the last moment Python and Spark can show


def bad_row(segment: int, stretch: Stretch) -> RecordRow:
    return RecordRow(segment, stretch.lsn, stretch.end, BAD, reason=stretch.reason)


def record_row(segment: int, entry: Entry, *, with_frames: bool) -> RecordRow:
    """The row of a record whose checksums hold; BAD if it says something that no metaq of this version writes."""
    header = entry.header
    if header.time_ms > TIME_MS_MAX:
        return RecordRow(segment, header.lsn, header.end, BAD, reason=f"time {header.time_ms} ms is past the year 9999")
    head = RecordRow(
        segment,
        header.lsn,
        header.end,
        kind_name(header.kind),
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
    if with_frames and isinstance(record, Put | PutBatch | TxPut | Carry):
        frames, compressed, frames_error = count_frames(entry.body)
        return row._replace(frames=frames, compressed=compressed, frames_error=frames_error)
    return row


def check_numbers(header: Header, record: Record) -> None:
    """Refuse numbers beyond the signed 64 bits of a column, sums included. Raises InvalidRecord."""
    match record:
        case Put(base=base) | PutBatch(base=base):
            largest = base + header.body_bytes
        case TxPut(branch_lsn=branch_lsn) | Rollback(branch_lsn=branch_lsn):
            largest = branch_lsn
        case Prepare(branch_lsn=branch_lsn, messages=messages, bytes=size):
            largest = max(branch_lsn, messages, size)
        case Heuristic(branch_lsn=branch_lsn, messages=messages, bytes=size, prepared_ms=prepared_ms):
            largest = max(branch_lsn, messages, size, prepared_ms)
        case Commit(branch_lsn=branch_lsn, takes=takes):
            largest = max([branch_lsn, *(take.base + take.bytes for take in takes)])
        case Carry(branch_lsn=branch_lsn, position=position, runs=runs):
            largest = max([branch_lsn, position + header.body_bytes, *(run.lsn for run in runs)])
        case CheckpointMark(number=number, lsn=lsn):
            largest = max(number, lsn)
        case Lost(ends):
            largest = max((one.end for one in ends), default=0)
        case Refused(next_offset=next_offset, time_ms=time_ms):
            largest = max(next_offset, time_ms)
        case Epoch() | Pad() | Decision() | Forget() | TopicChange():
            return
        case _:
            assert_never(record)
    if largest > LSN_MAX:
        raise InvalidRecord(f"LSN {header.lsn}: a number beyond 2^63 in a {kind_name(header.kind)} record")


def _fill(head: RecordRow, header: Header, record: Record) -> RecordRow:
    match record:
        case Put(name, base, count) | PutBatch(name, base, count):
            return head._replace(
                topic=name.topic,
                partition=name.partition,
                base_offset=base,
                messages=count,
                bytes=header.body_bytes,
                body_lsn=header.body_lsn,
            )
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
        case Commit(key, branch_lsn, one_phase, takes):
            rows = tuple(
                TakeRow(take.name.topic, take.name.partition, take.base, take.bytes, take.count) for take in takes
            )
            return head._replace(key=str(key), branch_lsn=branch_lsn, one_phase=one_phase, takes=rows)
        case Rollback(key, branch_lsn, reason):
            return head._replace(key=str(key), branch_lsn=branch_lsn, reason=reason.name)
        case Carry(key, branch_lsn, name, _, _, runs):
            return head._replace(
                key=str(key),
                branch_lsn=branch_lsn,
                topic=name.topic,
                partition=name.partition,
                messages=sum(run.messages for run in runs),
                bytes=header.body_bytes,
                body_lsn=header.body_lsn,
            )
        case Heuristic(key, branch_lsn, decision, _, messages, size):
            return head._replace(
                key=str(key), branch_lsn=branch_lsn, messages=messages, bytes=size, reason=decision.name
            )
        case Epoch(_, _, version):
            return head._replace(version=version)
        case CheckpointMark(number, lsn):
            return head._replace(checkpoint=number, checkpoint_lsn=lsn)
        case Decision(key, _) | Forget(key):
            return head._replace(key=str(key))
        case TopicChange(topic=topic, state=state):
            return head._replace(topic=topic, reason=state.name)
        case Refused(topic=topic, partition=partition, offset=offset, state=state):
            return head._replace(topic=topic, partition=partition, base_offset=offset, reason=state.name)
        case Pad() | Lost():
            return head
    assert_never(record)


def count_frames(body: memoryview) -> tuple[int, int, str | None]:
    """How many message frames stand whole in *body* (spec 3.1), how many of them compressed, and what is wrong with
    the first that does not.

    A message's attribute block and its compressed payload are the producer's affair: they are not looked into.
    """
    frames = compressed = start = 0
    try:
        for frame in walk_frames(body, data_bytes_max=len(body)):
            frames += 1
            compressed += codec_number(frame.flag) != 0
            start = frame.next_offset
    except InvalidMessage as error:
        return frames, compressed, f"frame {frames + 1}, at byte {start} of the body: {error}"
    if start < len(body):
        left = len(body) - start
        return frames, compressed, f"{left} bytes after the last whole frame, at byte {start} of the body"
    return frames, compressed, None
