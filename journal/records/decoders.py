"""Reads a record's meta part, kind by kind. Pure."""

import struct
from collections.abc import Callable
from typing import Final

from journal.errors import InvalidRecord
from journal.records.dead_letters import DeadLetter, decode_dead_letter
from journal.records.encoders import ENCODERS
from journal.records.header import Lsn, Offset, RecordHeader, RecordType, record_type_name
from journal.records.heuristics import HeuristicDecision
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
from journal.records.ledger import LedgerEntry, decode_entry
from journal.records.producer_state import BatchSequence
from journal.records.record import (
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
    RelocatedExtent,
    Rollback,
    RollbackReason,
    TxPut,
)
from journal.records.topic_changes import TopicChange, decode_change
from journal.records.xid import BranchKey, parse_key


def _read_branch(meta: bytes) -> tuple[BranchKey, Lsn, int]:
    branch_lsn, key_bytes = BRANCH.unpack_from(meta)
    end = BRANCH.size + key_bytes
    if end > len(meta):
        raise ValueError("a key longer than the record")
    return parse_key(meta[BRANCH.size : end].decode()), Lsn(branch_lsn), end


def _topic(raw: bytes) -> str:
    if not 0 < len(raw) <= TOPIC_BYTES_MAX:
        raise ValueError(f"a topic of {len(raw)} bytes")
    return raw.decode()


def _read_put(meta: bytes) -> PutRecord:
    base, count, partition = PUT.unpack_from(meta)
    return PutRecord(PartitionName(_topic(meta[PUT.size :]), partition), Offset(base), count)


def _read_put_batch(meta: bytes) -> PutBatch:
    base, count, partition = PUT.unpack_from(meta)
    first_id, number, producer_bytes = SEQUENCE.unpack_from(meta, PUT.size)
    at = PUT.size + SEQUENCE.size
    producer = meta[at : at + producer_bytes]
    if not 0 < len(producer) == producer_bytes <= PRODUCER_BYTES_MAX:
        raise ValueError(f"a producer of {producer_bytes} bytes")
    name = PartitionName(_topic(meta[at + producer_bytes :]), partition)
    return PutBatch(name, Offset(base), count, first_id, BatchSequence(producer.decode(), number))


def _read_tx_put(meta: bytes) -> TxPut:
    key, branch_lsn, at = _read_branch(meta)
    count, partition = RUN.unpack_from(meta, at)
    return TxPut(key, branch_lsn, PartitionName(_topic(meta[at + RUN.size :]), partition), count)


def _read_prepare(meta: bytes) -> Prepare:
    key, branch_lsn, at = _read_branch(meta)
    messages, size = PREPARE.unpack(meta[at:])
    return Prepare(key, branch_lsn, messages, size)


def _read_commit(meta: bytes) -> Commit:
    key, branch_lsn, at = _read_branch(meta)
    one_phase, takes_left = ASSIGNMENT_COUNT.unpack_from(meta, at)
    at += ASSIGNMENT_COUNT.size
    assignments = []
    for _ in range(takes_left):
        base, size, count, partition, topic_bytes = ASSIGNMENT.unpack_from(meta, at)
        at += ASSIGNMENT.size
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
    decision, prepared_ms, messages, size, who_bytes, why_bytes = HEURISTIC.unpack_from(meta, at)
    at += HEURISTIC.size
    who, why = meta[at : at + who_bytes], meta[at + who_bytes :]
    if len(who) != who_bytes or len(why) != why_bytes or not who or not why:
        raise ValueError(f"{len(meta) - at} bytes where who and why take {who_bytes} and {why_bytes}")
    said = who.decode(), why.decode()
    return Heuristic(key, branch_lsn, HeuristicDecision(decision), prepared_ms, messages, size, *said)


def _read_epoch(meta: bytes) -> Epoch:
    epoch, incarnation = EPOCH.unpack_from(meta)
    return Epoch(epoch, incarnation, meta[EPOCH.size :].decode())


def _read_checkpoint(meta: bytes) -> CheckpointWritten:
    number, lsn = CHECKPOINT.unpack(meta)
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
    partition, first, position, runs, topic_bytes = RELOCATE.unpack_from(meta, at)
    at += RELOCATE.size
    name = PartitionName(_topic(meta[at : at + topic_bytes]), partition)
    at += topic_bytes
    if not runs or len(meta) - at != runs * RELOCATED.size:
        raise ValueError(f"{len(meta) - at} bytes where {runs} runs should be named")
    relocated = tuple(
        RelocatedExtent(Lsn(lsn), size, messages, time_ms)
        for lsn, time_ms, size, messages in RELOCATED.iter_unpack(meta[at:])
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
    (ends_left,) = END_COUNT.unpack_from(meta)
    at = END_COUNT.size
    ends = []
    for _ in range(ends_left):
        end, partition, topic_bytes = END.unpack_from(meta, at)
        at += END.size
        ends.append(PartitionEnd(PartitionName(_topic(meta[at : at + topic_bytes]), partition), Offset(end)))
        at += topic_bytes
    if at != len(meta) or not ends:
        raise ValueError(f"{len(ends)} ends, and {len(meta) - at} bytes after the last")
    return DroppedRecords(tuple(ends))


DECODERS: Final[dict[int, Callable[[bytes], Record]]] = {
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

assert DECODERS.keys() == {record_type for record_type, _ in ENCODERS.values()}, "what is written is read back"


def decode(header: RecordHeader, meta: memoryview) -> Record:
    """Decode a record whose header was checked. Raises InvalidRecord for an invalid meta part."""
    if (read := DECODERS.get(header.record_type)) is None:
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
