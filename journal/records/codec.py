"""A record's meta part: `encode` and `decode`, kind by kind. Pure. Drawn in FORMAT.md."""

import struct
from collections.abc import Callable
from typing import Any, Final, get_args

from journal.errors import InvalidRecord
from journal.records.dead_letters import DeadLetter, decode_dead_letter, encode_dead_letter
from journal.records.header import Lsn, Offset, RecordHeader, RecordType, record_type_name
from journal.records.heuristics import WHO_BYTES_MAX, WHY_BYTES_MAX, HeuristicDecision
from journal.records.ledger import LedgerEntry, decode_entry, encode_entry
from journal.records.producer_state import BatchSequence
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
    Put,
    PutBatch,
    Record,
    Relocate,
    RelocatedExtent,
    Rollback,
    RollbackReason,
    TxPut,
)
from journal.records.topic_changes import TopicChange, decode_change, encode_change
from journal.records.xid import KEY_BYTES_MAX, BranchKey, InvalidXid, parse_key

_PUT = struct.Struct("<QII")  # base offset, message count, partition; the topic follows
_SEQUENCE = struct.Struct("<qQB")  # first message id, batch number, producer bytes; producer and topic follow
_BRANCH = struct.Struct("<QH")  # branch LSN, key bytes; the key follows
_RUN = struct.Struct("<II")  # message count, partition; the topic follows
_ASSIGNMENT_COUNT = struct.Struct("<BI")  # one phase, takes
_ASSIGNMENT = struct.Struct("<QQIIB")  # base offset, bytes, message count, partition, topic bytes; the topic follows
_PREPARE = struct.Struct("<QQ")  # messages, bytes
_RELOCATE = struct.Struct("<IIQIB")  # partition, first extent, bytes before, extents, topic bytes; topic, extents
_RELOCATED = struct.Struct("<QQII")  # LSN before, milliseconds, bytes, messages
_HEURISTIC = struct.Struct("<BQQQHH")  # decision, prepared, messages, bytes, who bytes, why bytes; who and why follow
_EPOCH = struct.Struct("<II")
_CHECKPOINT = struct.Struct("<QQ")  # file number, LSN
_END_COUNT = struct.Struct("<I")  # ends
_END = struct.Struct("<QIB")  # offset, partition, topic bytes; the topic follows


def encode(record: Record) -> tuple[RecordType, bytes]:
    """Return the kind and the meta part of *record*. Raises ValueError or struct.error for a record that `decode` would
    refuse."""
    record_type, write = _ENCODERS[type(record)]
    return record_type, write(record)


def commit_bytes_at_most(partitions: int) -> int:
    """Return an upper bound on the meta part of a COMMIT in so many partitions."""
    return _BRANCH.size + 4 * KEY_BYTES_MAX + _ASSIGNMENT_COUNT.size + partitions * (_ASSIGNMENT.size + TOPIC_BYTES_MAX)


def relocate_bytes_at_most(runs: int) -> int:
    """Return an upper bound on the meta part of a CARRY of so many extents."""
    return _BRANCH.size + 4 * KEY_BYTES_MAX + _RELOCATE.size + TOPIC_BYTES_MAX + runs * _RELOCATED.size


def relocate_bytes(key: BranchKey, name: PartitionName, runs: int) -> int:
    """Return the length of a CARRY's meta part."""
    return len(_branch(key, NO_BRANCH)) + _RELOCATE.size + len(_topic_bytes(name)) + runs * _RELOCATED.size


def decode(header: RecordHeader, meta: memoryview) -> Record:
    """Decode a record whose header was checked. Raises InvalidRecord for an invalid meta part."""
    if (read := _DECODERS.get(header.record_type)) is None:
        raise InvalidRecord(
            f"LSN {header.lsn}: a record of kind {record_type_name(header.record_type)}, which this version of metaq "
            f"does not read: open the journal with the version that wrote it"
        )
    try:
        return read(bytes(meta))
    except (struct.error, ValueError) as error:  # InvalidXid and UnicodeDecodeError are ValueErrors
        raise InvalidRecord(
            f"LSN {header.lsn}: a malformed {record_type_name(header.record_type)} record: {error}"
        ) from error


def _branch(key: BranchKey, branch_lsn: int) -> bytes:
    text = str(key)
    if len(text) > KEY_BYTES_MAX:
        raise InvalidXid(f"transaction key of {len(text)} characters is longer than {KEY_BYTES_MAX}")
    raw = text.encode()
    return _BRANCH.pack(branch_lsn, len(raw)) + raw


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
        _ASSIGNMENT.pack(assignment.base, assignment.bytes, assignment.count, assignment.name.partition, len(topic))
        + topic
    )


def _end(end: PartitionEnd) -> bytes:
    topic = _topic_bytes(end.name)
    return _END.pack(end.end, end.name.partition, len(topic)) + topic


def _write_put(record: Put) -> bytes:
    return _PUT.pack(record.base, record.count, record.name.partition) + _topic_bytes(record.name)


def _write_put_batch(record: PutBatch) -> bytes:
    name, sequence = record.name, record.sequence
    producer = _producer_bytes(sequence.producer)
    head = _PUT.pack(record.base, record.count, name.partition)
    return head + _SEQUENCE.pack(record.first_id, sequence.number, len(producer)) + producer + _topic_bytes(name)


def _write_tx_put(record: TxPut) -> bytes:
    name = record.name
    run = _RUN.pack(record.count, name.partition)
    return _branch(record.key, record.branch_lsn) + run + _topic_bytes(name)


def _write_prepare(record: Prepare) -> bytes:
    return _branch(record.key, record.branch_lsn) + _PREPARE.pack(record.messages, record.bytes)


def _write_commit(record: Commit) -> bytes:
    head = _branch(record.key, record.branch_lsn) + _ASSIGNMENT_COUNT.pack(record.one_phase, len(record.assignments))
    return head + b"".join(map(_assignment, record.assignments))


def _write_rollback(record: Rollback) -> bytes:
    return _branch(record.key, record.branch_lsn) + bytes([record.reason])


def _write_heuristic(record: Heuristic) -> bytes:
    who, why = _words(record.who, WHO_BYTES_MAX), _words(record.why, WHY_BYTES_MAX)
    seen = record.prepared_ms, record.messages, record.bytes
    head = _HEURISTIC.pack(record.decision, *seen, len(who), len(why))
    return _branch(record.key, record.branch_lsn) + head + who + why


def _write_epoch(record: Epoch) -> bytes:
    return _EPOCH.pack(record.epoch, record.incarnation) + record.version.encode()


def _write_checkpoint(record: CheckpointWritten) -> bytes:
    return _CHECKPOINT.pack(record.number, record.lsn)


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
    head = _RELOCATE.pack(name.partition, record.first, record.position, len(extents), len(topic)) + topic
    each = [_RELOCATED.pack(extent.lsn, extent.time_ms, extent.bytes, extent.messages) for extent in extents]
    return _branch(record.key, record.branch_lsn) + head + b"".join(each)


def _write_topic_change(record: TopicChange) -> bytes:
    return encode_change(record, _bytes_of(record.topic))


def _write_dead_letter(record: DeadLetter) -> bytes:
    return encode_dead_letter(record, _bytes_of(record.topic))


def _write_ledger_entry(record: LedgerEntry) -> bytes:
    return _branch(record.key, NO_BRANCH) + encode_entry(record)


def _write_dropped_records(record: DroppedRecords) -> bytes:
    return _END_COUNT.pack(len(record.ends)) + b"".join(map(_end, record.ends)) if record.ends else b""


def _read_branch(meta: bytes) -> tuple[BranchKey, Lsn, int]:
    branch_lsn, key_bytes = _BRANCH.unpack_from(meta)
    end = _BRANCH.size + key_bytes
    if end > len(meta):
        raise ValueError("a key longer than the record")
    return parse_key(meta[_BRANCH.size : end].decode()), Lsn(branch_lsn), end


def _topic(raw: bytes) -> str:
    if not 0 < len(raw) <= TOPIC_BYTES_MAX:
        raise ValueError(f"a topic of {len(raw)} bytes")
    return raw.decode()


def _read_put(meta: bytes) -> Put:
    base, count, partition = _PUT.unpack_from(meta)
    return Put(PartitionName(_topic(meta[_PUT.size :]), partition), Offset(base), count)


def _read_put_batch(meta: bytes) -> PutBatch:
    base, count, partition = _PUT.unpack_from(meta)
    first_id, number, producer_bytes = _SEQUENCE.unpack_from(meta, _PUT.size)
    at = _PUT.size + _SEQUENCE.size
    producer = meta[at : at + producer_bytes]
    if not 0 < len(producer) == producer_bytes <= PRODUCER_BYTES_MAX:
        raise ValueError(f"a producer of {producer_bytes} bytes")
    name = PartitionName(_topic(meta[at + producer_bytes :]), partition)
    return PutBatch(name, Offset(base), count, first_id, BatchSequence(producer.decode(), number))


def _read_tx_put(meta: bytes) -> TxPut:
    key, branch_lsn, at = _read_branch(meta)
    count, partition = _RUN.unpack_from(meta, at)
    return TxPut(key, branch_lsn, PartitionName(_topic(meta[at + _RUN.size :]), partition), count)


def _read_prepare(meta: bytes) -> Prepare:
    key, branch_lsn, at = _read_branch(meta)
    messages, size = _PREPARE.unpack(meta[at:])
    return Prepare(key, branch_lsn, messages, size)


def _read_commit(meta: bytes) -> Commit:
    key, branch_lsn, at = _read_branch(meta)
    one_phase, takes_left = _ASSIGNMENT_COUNT.unpack_from(meta, at)
    at += _ASSIGNMENT_COUNT.size
    assignments = []
    for _ in range(takes_left):
        base, size, count, partition, topic_bytes = _ASSIGNMENT.unpack_from(meta, at)
        at += _ASSIGNMENT.size
        name = PartitionName(_topic(meta[at : at + topic_bytes]), partition)
        assignments.append(OffsetAssignment(name, Offset(base), size, count))
        at += topic_bytes
    if at != len(meta):
        raise ValueError(f"{len(meta) - at} bytes after the last take")
    if one_phase > 1:
        raise ValueError(f"{one_phase} where 1 or 0 says whether it committed in one phase")
    return Commit(key, branch_lsn, bool(one_phase), tuple(assignments))


def _read_rollback(meta: bytes) -> Rollback:
    key, branch_lsn, at = _read_branch(meta)
    (reason,) = meta[at:]
    return Rollback(key, branch_lsn, RollbackReason(reason))


def _read_heuristic(meta: bytes) -> Heuristic:
    key, branch_lsn, at = _read_branch(meta)
    decision, prepared_ms, messages, size, who_bytes, why_bytes = _HEURISTIC.unpack_from(meta, at)
    at += _HEURISTIC.size
    who, why = meta[at : at + who_bytes], meta[at + who_bytes :]
    if len(who) != who_bytes or len(why) != why_bytes or not who or not why:
        raise ValueError(f"{len(meta) - at} bytes where who and why take {who_bytes} and {why_bytes}")
    said = who.decode(), why.decode()
    return Heuristic(key, branch_lsn, HeuristicDecision(decision), prepared_ms, messages, size, *said)


def _read_epoch(meta: bytes) -> Epoch:
    epoch, incarnation = _EPOCH.unpack_from(meta)
    return Epoch(epoch, incarnation, meta[_EPOCH.size :].decode())


def _read_checkpoint(meta: bytes) -> CheckpointWritten:
    number, lsn = _CHECKPOINT.unpack(meta)
    return CheckpointWritten(number, Lsn(lsn))


def _read_pad(meta: bytes) -> Pad:
    if meta:
        raise ValueError("a PAD with a meta part")
    return Pad()


def _read_decision(meta: bytes) -> Decision:
    key, _, at = _read_branch(meta)
    return Decision(key, meta[at:].decode())


def _read_forget(meta: bytes) -> Forget:
    key, _, at = _read_branch(meta)
    if at != len(meta):
        raise ValueError(f"{len(meta) - at} bytes after the key")
    return Forget(key)


def _read_relocate(meta: bytes) -> Relocate:
    key, branch_lsn, at = _read_branch(meta)
    partition, first, position, runs, topic_bytes = _RELOCATE.unpack_from(meta, at)
    at += _RELOCATE.size
    name = PartitionName(_topic(meta[at : at + topic_bytes]), partition)
    at += topic_bytes
    if not runs or len(meta) - at != runs * _RELOCATED.size:
        raise ValueError(f"{len(meta) - at} bytes where {runs} runs should be named")
    relocated = tuple(
        RelocatedExtent(Lsn(lsn), size, messages, time_ms)
        for lsn, time_ms, size, messages in _RELOCATED.iter_unpack(meta[at:])
    )
    return Relocate(key, branch_lsn, name, first, position, relocated)


def _read_topic_change(meta: bytes) -> TopicChange:
    return decode_change(meta, _topic)


def _read_dead_letter(meta: bytes) -> DeadLetter:
    return decode_dead_letter(meta, _topic)


def _read_ledger_entry(meta: bytes) -> LedgerEntry:
    key, _, at = _read_branch(meta)
    return decode_entry(key, meta[at:])


def _read_dropped_records(meta: bytes) -> DroppedRecords:
    if not meta:
        return DroppedRecords()
    (ends_left,) = _END_COUNT.unpack_from(meta)
    at = _END_COUNT.size
    ends = []
    for _ in range(ends_left):
        end, partition, topic_bytes = _END.unpack_from(meta, at)
        at += _END.size
        ends.append(PartitionEnd(PartitionName(_topic(meta[at : at + topic_bytes]), partition), Offset(end)))
        at += topic_bytes
    if at != len(meta) or not ends:
        raise ValueError(f"{len(ends)} ends, and {len(meta) - at} bytes after the last")
    return DroppedRecords(tuple(ends))


_ENCODERS: Final[dict[type[Record], tuple[RecordType, Callable[[Any], bytes]]]] = {
    Put: (RecordType.PUT, _write_put),
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
_DECODERS: Final[dict[int, Callable[[bytes], Record]]] = {
    RecordType.PUT: _read_put,
    RecordType.PUT_BATCH: _read_put_batch,
    RecordType.TX_PUT: _read_tx_put,
    RecordType.PREPARE: _read_prepare,
    RecordType.COMMIT: _read_commit,
    RecordType.ROLLBACK: _read_rollback,
    RecordType.HEURISTIC: _read_heuristic,
    RecordType.EPOCH: _read_epoch,
    RecordType.CHECKPOINT: _read_checkpoint,
    RecordType.PAD: _read_pad,
    RecordType.DECISION: _read_decision,
    RecordType.FORGET: _read_forget,
    RecordType.TOPIC: _read_topic_change,
    RecordType.CARRY: _read_relocate,
    RecordType.LOST: _read_dropped_records,
    RecordType.REFUSED: _read_dead_letter,
    RecordType.LEDGER: _read_ledger_entry,
}
assert _ENCODERS.keys() == set(get_args(Record)), "every kind of record is written"
assert _DECODERS.keys() == {record_type for record_type, _ in _ENCODERS.values()}, "and read back"
