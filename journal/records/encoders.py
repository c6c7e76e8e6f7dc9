"""Writes a record's meta part, kind by kind. Pure. decoders.py reads them back; see FORMAT.md."""

from collections.abc import Callable
from typing import Any, Final, get_args

from journal.records.dead_letters import DeadLetter, encode_dead_letter
from journal.records.header import RecordType
from journal.records.heuristics import WHO_BYTES_MAX, WHY_BYTES_MAX
from journal.records.layouts import (
    ASSIGNMENT,
    ASSIGNMENT_COUNT,
    BRANCH,
    CHECKPOINT,
    END,
    END_COUNT,
    EPOCH,
    HEURISTIC,
    PREPARE,
    PUT,
    RELOCATE,
    RELOCATED,
    RUN,
    SEQUENCE,
)
from journal.records.ledger import LedgerEntry, encode_entry
from journal.records.record import (
    NO_BRANCH,
    PRODUCER_BYTES_MAX,
    TOPIC_BYTES_MAX,
    CheckpointWritten,
    Commit,
    Decision,
    DroppedRecords,
    Epoch,
    Forget,
    Heuristic,
    OffsetAssignment,
    Pad,
    PartitionEnd,
    PartitionName,
    Prepare,
    PutBatch,
    PutRecord,
    Record,
    Relocate,
    Rollback,
    TxPut,
)
from journal.records.topic_changes import TopicChange, encode_change
from journal.records.xid import KEY_BYTES_MAX, BranchKey, InvalidXid


def commit_bytes_at_most(partitions: int) -> int:
    """Return an upper bound on the meta part of a COMMIT in so many partitions."""
    return BRANCH.size + 4 * KEY_BYTES_MAX + ASSIGNMENT_COUNT.size + partitions * (ASSIGNMENT.size + TOPIC_BYTES_MAX)


def relocate_bytes_at_most(runs: int) -> int:
    """Return an upper bound on the meta part of a CARRY of so many extents."""
    return BRANCH.size + 4 * KEY_BYTES_MAX + RELOCATE.size + TOPIC_BYTES_MAX + runs * RELOCATED.size


def relocate_bytes(key: BranchKey, name: PartitionName, runs: int) -> int:
    """Return the length of a CARRY's meta part."""
    return len(_branch(key, NO_BRANCH)) + RELOCATE.size + len(_topic_bytes(name)) + runs * RELOCATED.size


def _branch(key: BranchKey, branch_lsn: int) -> bytes:
    text = str(key)
    if len(text) > KEY_BYTES_MAX:
        raise InvalidXid(f"transaction key of {len(text)} characters is longer than {KEY_BYTES_MAX}")
    raw = text.encode()
    return BRANCH.pack(branch_lsn, len(raw)) + raw


def _topic_bytes(name: PartitionName) -> bytes:
    return _bytes_of(name.topic)


def _bytes_of(topic: str) -> bytes:
    raw = topic.encode()
    if not 0 < len(raw) <= TOPIC_BYTES_MAX:
        raise ValueError(f"topic {topic!r} is not 1 to {TOPIC_BYTES_MAX} bytes long")
    return raw


def _producer_bytes(producer: str) -> bytes:
    raw = producer.encode()
    if not 0 < len(raw) <= PRODUCER_BYTES_MAX:
        raise ValueError(f"producer {producer!r} is not 1 to {PRODUCER_BYTES_MAX} bytes long")
    return raw


def _words(text: str, bytes_max: int) -> bytes:
    raw = text.encode()
    if not 0 < len(raw) <= bytes_max:
        raise ValueError(f"{text[:80]!r} is not 1 to {bytes_max} bytes long")
    return raw


def _assignment(assignment: OffsetAssignment) -> bytes:
    topic = _topic_bytes(assignment.name)
    return (
        ASSIGNMENT.pack(assignment.base, assignment.bytes, assignment.count, assignment.name.partition, len(topic))
        + topic
    )


def _encode_end(end: PartitionEnd) -> bytes:
    topic = _topic_bytes(end.name)
    return END.pack(end.end, end.name.partition, len(topic)) + topic


def _write_put(record: PutRecord) -> bytes:
    return PUT.pack(record.base, record.count, record.name.partition) + _topic_bytes(record.name)


def _write_put_batch(record: PutBatch) -> bytes:
    name, sequence = record.name, record.sequence
    producer = _producer_bytes(sequence.producer)
    head = PUT.pack(record.base, record.count, name.partition)
    return head + SEQUENCE.pack(record.first_id, sequence.number, len(producer)) + producer + _topic_bytes(name)


def _write_tx_put(record: TxPut) -> bytes:
    name = record.name
    run = RUN.pack(record.count, name.partition)
    return _branch(record.key, record.branch_lsn) + run + _topic_bytes(name)


def _write_prepare(record: Prepare) -> bytes:
    return _branch(record.key, record.branch_lsn) + PREPARE.pack(record.messages, record.bytes)


def _write_commit(record: Commit) -> bytes:
    head = _branch(record.key, record.branch_lsn) + ASSIGNMENT_COUNT.pack(record.one_phase, len(record.assignments))
    return head + b"".join(map(_assignment, record.assignments))


def _write_rollback(record: Rollback) -> bytes:
    return _branch(record.key, record.branch_lsn) + bytes([record.reason])


def _write_heuristic(record: Heuristic) -> bytes:
    who, why = _words(record.who, WHO_BYTES_MAX), _words(record.why, WHY_BYTES_MAX)
    seen = record.prepared_ms, record.messages, record.bytes
    head = HEURISTIC.pack(record.decision, *seen, len(who), len(why))
    return _branch(record.key, record.branch_lsn) + head + who + why


def _write_epoch(record: Epoch) -> bytes:
    return EPOCH.pack(record.epoch, record.incarnation) + record.version.encode()


def _write_checkpoint(record: CheckpointWritten) -> bytes:
    return CHECKPOINT.pack(record.number, record.lsn)


def _write_pad(record: Pad) -> bytes:
    del record
    return b""


def _write_decision(record: Decision) -> bytes:
    return _branch(record.key, NO_BRANCH) + record.participants.encode()


def _write_forget(record: Forget) -> bytes:
    return _branch(record.key, NO_BRANCH)


def _write_relocate(record: Relocate) -> bytes:
    name, extents = record.name, record.extents
    topic = _topic_bytes(name)
    head = RELOCATE.pack(name.partition, record.first, record.position, len(extents), len(topic)) + topic
    each = [RELOCATED.pack(extent.lsn, extent.time_ms, extent.bytes, extent.messages) for extent in extents]
    return _branch(record.key, record.branch_lsn) + head + b"".join(each)


def _write_topic_change(record: TopicChange) -> bytes:
    return encode_change(record, _bytes_of(record.topic))


def _write_dead_letter(record: DeadLetter) -> bytes:
    return encode_dead_letter(record, _bytes_of(record.topic))


def _write_ledger_entry(record: LedgerEntry) -> bytes:
    return _branch(record.key, NO_BRANCH) + encode_entry(record)


def _write_dropped_records(record: DroppedRecords) -> bytes:
    return END_COUNT.pack(len(record.ends)) + b"".join(map(_encode_end, record.ends)) if record.ends else b""


ENCODERS: Final[dict[type[Record], tuple[RecordType, Callable[[Any], bytes]]]] = {
    PutRecord: (RecordType.PUT, _write_put),
    PutBatch: (RecordType.PUT_BATCH, _write_put_batch),
    TxPut: (RecordType.TX_PUT, _write_tx_put),
    Prepare: (RecordType.PREPARE, _write_prepare),
    Commit: (RecordType.COMMIT, _write_commit),
    Rollback: (RecordType.ROLLBACK, _write_rollback),
    Heuristic: (RecordType.HEURISTIC, _write_heuristic),
    Epoch: (RecordType.EPOCH, _write_epoch),
    CheckpointWritten: (RecordType.CHECKPOINT, _write_checkpoint),
    Pad: (RecordType.PAD, _write_pad),
    Decision: (RecordType.DECISION, _write_decision),
    Forget: (RecordType.FORGET, _write_forget),
    Relocate: (RecordType.CARRY, _write_relocate),
    TopicChange: (RecordType.TOPIC, _write_topic_change),
    DeadLetter: (RecordType.REFUSED, _write_dead_letter),
    DroppedRecords: (RecordType.LOST, _write_dropped_records),
    LedgerEntry: (RecordType.LEDGER, _write_ledger_entry),
}

assert ENCODERS.keys() == set(get_args(Record)), "every kind of record is written"


def encode(record: Record) -> tuple[RecordType, bytes]:
    """Return the kind and the meta part of *record*. Raises ValueError or struct.error for a record that `decode` would
    refuse."""
    record_type, write = ENCODERS[type(record)]
    return record_type, write(record)
