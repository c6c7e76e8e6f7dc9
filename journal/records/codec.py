"""Bytes of the records' meta parts: of each kind the layout, its writer, then its reader. Pure. FORMAT.md draws them.

Longer than others: what is written and how it is read back are one concept.
"""

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
    PutBatch,
    PutRecord,
    Record,
    Relocate,
    RelocatedExtent,
    Rollback,
    RollbackReason,
    TxPut,
)
from journal.records.topic_changes import TopicChange, decode_change, encode_change
from journal.records.xid import KEY_BYTES_MAX, BranchKey, InvalidXid, parse_key

# -- parts of several kinds -----------------------------------------------------------------------------------

BRANCH: Final = struct.Struct("<QH")  # branch LSN, key bytes; the key follows


def _branch(key: BranchKey, branch_lsn: int) -> bytes:
    text = str(key)
    if len(text) > KEY_BYTES_MAX:
        raise InvalidXid(f"transaction key of {len(text)} characters is longer than {KEY_BYTES_MAX}")
    raw = text.encode()
    return BRANCH.pack(branch_lsn, len(raw)) + raw


def _read_branch(meta: bytes) -> tuple[BranchKey, Lsn, int]:
    branch_lsn, key_bytes = BRANCH.unpack_from(meta)
    end = BRANCH.size + key_bytes
    if end > len(meta):
        raise ValueError("a key longer than the record")
    return parse_key(meta[BRANCH.size : end].decode()), Lsn(branch_lsn), end


def _text(text: str, bytes_max: int, what: str = "") -> bytes:
    raw = text.encode()
    if not 0 < len(raw) <= bytes_max:
        raise ValueError(f"{what}{text[:80]!r} is not 1 to {bytes_max} bytes long")
    return raw


def _topic(topic: str) -> bytes:
    return _text(topic, TOPIC_BYTES_MAX, "topic ")


def _read_topic(raw: bytes) -> str:
    if not 0 < len(raw) <= TOPIC_BYTES_MAX:
        raise ValueError(f"a topic of {len(raw)} bytes")
    return raw.decode()


def _read_named(layout: struct.Struct, meta: bytes, at: int) -> tuple[list[int], PartitionName, int]:
    """Read numbers, the partition, and the topic after its length, at *at*; return also where it ends."""
    *numbers, partition, topic_bytes = layout.unpack_from(meta, at)
    at += layout.size
    end = at + topic_bytes
    return numbers, PartitionName(_read_topic(meta[at:end]), partition), end


# -- puts -----------------------------------------------------------------------------------------------------

PUT: Final = struct.Struct("<QII")  # base offset, message count, partition; the topic follows
SEQUENCE: Final = struct.Struct("<qQB")  # first message id, batch number, producer bytes; producer and topic follow
RUN: Final = struct.Struct("<II")  # message count, partition; the topic follows


def _write_put(record: PutRecord) -> bytes:
    return PUT.pack(record.base, record.count, record.name.partition) + _topic(record.name.topic)


def _read_put(meta: bytes) -> PutRecord:
    base, count, partition = PUT.unpack_from(meta)
    return PutRecord(PartitionName(_read_topic(meta[PUT.size :]), partition), Offset(base), count)


def _write_put_batch(record: PutBatch) -> bytes:
    name, sequence = record.name, record.sequence
    producer = _text(sequence.producer, PRODUCER_BYTES_MAX, "producer ")
    head = PUT.pack(record.base, record.count, name.partition)
    return head + SEQUENCE.pack(record.first_id, sequence.number, len(producer)) + producer + _topic(name.topic)


def _read_put_batch(meta: bytes) -> PutBatch:
    base, count, partition = PUT.unpack_from(meta)
    first_id, number, producer_bytes = SEQUENCE.unpack_from(meta, PUT.size)
    at = PUT.size + SEQUENCE.size
    producer = meta[at : at + producer_bytes]
    if not 0 < len(producer) == producer_bytes <= PRODUCER_BYTES_MAX:
        raise ValueError(f"a producer of {producer_bytes} bytes")
    name = PartitionName(_read_topic(meta[at + producer_bytes :]), partition)
    return PutBatch(name, Offset(base), count, first_id, BatchSequence(producer.decode(), number))


def _write_tx_put(record: TxPut) -> bytes:
    run = RUN.pack(record.count, record.name.partition)
    return _branch(record.key, record.branch_lsn) + run + _topic(record.name.topic)


def _read_tx_put(meta: bytes) -> TxPut:
    key, branch_lsn, at = _read_branch(meta)
    count, partition = RUN.unpack_from(meta, at)
    return TxPut(key, branch_lsn, PartitionName(_read_topic(meta[at + RUN.size :]), partition), count)


# -- branches -------------------------------------------------------------------------------------------------

PREPARE: Final = struct.Struct("<QQ")  # messages, bytes
ASSIGNMENT_COUNT: Final = struct.Struct("<BI")  # one phase, takes
ASSIGNMENT: Final = struct.Struct("<QQIIB")  # base offset, bytes, message count, partition, topic bytes; the topic
HEURISTIC: Final = struct.Struct("<BQQQHH")  # decision, prepared, messages, bytes, who bytes, why bytes; who and why
RELOCATE: Final = struct.Struct("<IIQIB")  # partition, first extent, bytes before, extents, topic bytes; topic, extents
RELOCATED: Final = struct.Struct("<QQII")  # LSN before, milliseconds, bytes, messages


def _write_prepare(record: Prepare) -> bytes:
    return _branch(record.key, record.branch_lsn) + PREPARE.pack(record.messages, record.bytes)


def _read_prepare(meta: bytes) -> Prepare:
    key, branch_lsn, at = _read_branch(meta)
    return Prepare(key, branch_lsn, *PREPARE.unpack(meta[at:]))


def _write_commit(record: Commit) -> bytes:
    parts = [_branch(record.key, record.branch_lsn), ASSIGNMENT_COUNT.pack(record.one_phase, len(record.assignments))]
    for it in record.assignments:
        topic = _topic(it.name.topic)
        parts += ASSIGNMENT.pack(it.base, it.bytes, it.count, it.name.partition, len(topic)), topic
    return b"".join(parts)


def _read_commit(meta: bytes) -> Commit:
    key, branch_lsn, at = _read_branch(meta)
    one_phase, count = ASSIGNMENT_COUNT.unpack_from(meta, at)
    at += ASSIGNMENT_COUNT.size
    assignments = []
    for _ in range(count):
        (base, size, messages), name, at = _read_named(ASSIGNMENT, meta, at)
        assignments.append(OffsetAssignment(name, Offset(base), size, messages))
    if at != len(meta):
        raise ValueError(f"{len(meta) - at} bytes after the last take")
    if one_phase > 1:
        raise ValueError(f"{one_phase} where 1 or 0 says whether it committed in one phase")
    return Commit(key, branch_lsn, bool(one_phase), tuple(assignments))


def _write_rollback(record: Rollback) -> bytes:
    return _branch(record.key, record.branch_lsn) + bytes([record.reason])


def _read_rollback(meta: bytes) -> Rollback:
    key, branch_lsn, at = _read_branch(meta)
    (reason,) = meta[at:]
    return Rollback(key, branch_lsn, RollbackReason(reason))


def _write_heuristic(record: Heuristic) -> bytes:
    who, why = _text(record.who, WHO_BYTES_MAX), _text(record.why, WHY_BYTES_MAX)
    seen = record.prepared_ms, record.messages, record.bytes
    head = HEURISTIC.pack(record.decision, *seen, len(who), len(why))
    return _branch(record.key, record.branch_lsn) + head + who + why


def _read_heuristic(meta: bytes) -> Heuristic:
    key, branch_lsn, at = _read_branch(meta)
    decision, prepared_ms, messages, size, who_bytes, why_bytes = HEURISTIC.unpack_from(meta, at)
    at += HEURISTIC.size
    who, why = meta[at : at + who_bytes], meta[at + who_bytes :]
    if len(who) != who_bytes or len(why) != why_bytes or not who or not why:
        raise ValueError(f"{len(meta) - at} bytes where who and why take {who_bytes} and {why_bytes}")
    said = who.decode(), why.decode()
    return Heuristic(key, branch_lsn, HeuristicDecision(decision), prepared_ms, messages, size, *said)


def _write_relocate(record: Relocate) -> bytes:
    name, extents, topic = record.name, record.extents, _topic(record.name.topic)
    head = RELOCATE.pack(name.partition, record.first, record.position, len(extents), len(topic)) + topic
    each = [RELOCATED.pack(extent.lsn, extent.time_ms, extent.bytes, extent.messages) for extent in extents]
    return _branch(record.key, record.branch_lsn) + head + b"".join(each)


def _read_relocate(meta: bytes) -> Relocate:
    key, branch_lsn, at = _read_branch(meta)
    partition, first, position, runs, topic_bytes = RELOCATE.unpack_from(meta, at)
    at += RELOCATE.size
    name = PartitionName(_read_topic(meta[at : at + topic_bytes]), partition)
    at += topic_bytes
    if not runs or len(meta) - at != runs * RELOCATED.size:
        raise ValueError(f"{len(meta) - at} bytes where {runs} runs should be named")
    relocated = tuple(
        RelocatedExtent(Lsn(lsn), size, messages, time_ms)
        for lsn, time_ms, size, messages in RELOCATED.iter_unpack(meta[at:])
    )
    return Relocate(key, branch_lsn, name, first, position, relocated)


def _write_decision(record: Decision) -> bytes:
    return _branch(record.key, NO_BRANCH) + record.participants.encode()


def _read_decision(meta: bytes) -> Decision:
    key, _, at = _read_branch(meta)
    return Decision(key, meta[at:].decode())


def _write_forget(record: Forget) -> bytes:
    return _branch(record.key, NO_BRANCH)


def _read_forget(meta: bytes) -> Forget:
    key, _, at = _read_branch(meta)
    if at != len(meta):
        raise ValueError(f"{len(meta) - at} bytes after the key")
    return Forget(key)


def _write_ledger_entry(record: LedgerEntry) -> bytes:
    return _branch(record.key, NO_BRANCH) + encode_entry(record)


def _read_ledger_entry(meta: bytes) -> LedgerEntry:
    key, _, at = _read_branch(meta)
    return decode_entry(key, meta[at:])


# -- the journal itself ---------------------------------------------------------------------------------------

EPOCH: Final = struct.Struct("<II")  # epoch, incarnation; the version follows
CHECKPOINT: Final = struct.Struct("<QQ")  # file number, LSN
END_COUNT: Final = struct.Struct("<I")  # ends
END: Final = struct.Struct("<QIB")  # offset, partition, topic bytes; the topic follows


def _write_epoch(record: Epoch) -> bytes:
    return EPOCH.pack(record.epoch, record.incarnation) + record.version.encode()


def _read_epoch(meta: bytes) -> Epoch:
    epoch, incarnation = EPOCH.unpack_from(meta)
    return Epoch(epoch, incarnation, meta[EPOCH.size :].decode())


def _write_dropped_records(record: DroppedRecords) -> bytes:
    parts = [END_COUNT.pack(len(record.ends))] if record.ends else []
    for it in record.ends:
        topic = _topic(it.name.topic)
        parts += END.pack(it.end, it.name.partition, len(topic)), topic
    return b"".join(parts)


def _read_dropped_records(meta: bytes) -> DroppedRecords:
    if not meta:
        return DroppedRecords()
    (count,) = END_COUNT.unpack_from(meta)
    at, ends = END_COUNT.size, []
    for _ in range(count):
        (end,), name, at = _read_named(END, meta, at)
        ends.append(PartitionEnd(name, Offset(end)))
    if at != len(meta) or not ends:
        raise ValueError(f"{len(ends)} ends, and {len(meta) - at} bytes after the last")
    return DroppedRecords(tuple(ends))


def _read_pad(meta: bytes) -> Pad:
    if meta:
        raise ValueError("a PAD with a meta part")
    return Pad()


# -- all kinds ------------------------------------------------------------------------------------------------

_KINDS: Final[tuple[tuple[RecordType, type[Record], Callable[[Any], bytes], Callable[[bytes], Record]], ...]] = (
    (RecordType.PUT, PutRecord, _write_put, _read_put),
    (RecordType.PUT_BATCH, PutBatch, _write_put_batch, _read_put_batch),
    (RecordType.TX_PUT, TxPut, _write_tx_put, _read_tx_put),
    (RecordType.PREPARE, Prepare, _write_prepare, _read_prepare),
    (RecordType.COMMIT, Commit, _write_commit, _read_commit),
    (RecordType.ROLLBACK, Rollback, _write_rollback, _read_rollback),
    (RecordType.HEURISTIC, Heuristic, _write_heuristic, _read_heuristic),
    (RecordType.CARRY, Relocate, _write_relocate, _read_relocate),
    (RecordType.DECISION, Decision, _write_decision, _read_decision),
    (RecordType.FORGET, Forget, _write_forget, _read_forget),
    (RecordType.LEDGER, LedgerEntry, _write_ledger_entry, _read_ledger_entry),
    (RecordType.EPOCH, Epoch, _write_epoch, _read_epoch),
    (
        RecordType.CHECKPOINT,
        CheckpointWritten,
        lambda record: CHECKPOINT.pack(record.number, record.lsn),
        lambda meta: CheckpointWritten(*CHECKPOINT.unpack(meta)),
    ),
    (RecordType.LOST, DroppedRecords, _write_dropped_records, _read_dropped_records),
    (RecordType.PAD, Pad, lambda _: b"", _read_pad),
    (
        RecordType.TOPIC,
        TopicChange,
        lambda change: encode_change(change, _topic(change.topic)),
        lambda meta: decode_change(meta, _read_topic),
    ),
    (
        RecordType.REFUSED,
        DeadLetter,
        lambda letter: encode_dead_letter(letter, _topic(letter.topic)),
        lambda meta: decode_dead_letter(meta, _read_topic),
    ),
)
_WRITERS: Final = {kind: (record_type, write) for record_type, kind, write, _ in _KINDS}
READERS: Final = {int(record_type): read for record_type, _, _, read in _KINDS}
assert _WRITERS.keys() == set(get_args(Record)), "every kind of record is written, and read back"


def encode(record: Record) -> tuple[RecordType, bytes]:
    """Return the kind and the meta part of *record*. Raises ValueError or struct.error for a record that `decode` would
    refuse."""
    record_type, write = _WRITERS[type(record)]
    return record_type, write(record)


def decode(header: RecordHeader, meta: memoryview) -> Record:
    """Decode a record whose header was checked. Raises InvalidRecord for an invalid meta part."""
    if (read := READERS.get(header.record_type)) is None:
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


def commit_bytes_at_most(partitions: int) -> int:
    """Return an upper bound on the meta part of a COMMIT in so many partitions."""
    return BRANCH.size + 4 * KEY_BYTES_MAX + ASSIGNMENT_COUNT.size + partitions * (ASSIGNMENT.size + TOPIC_BYTES_MAX)


def relocate_bytes_at_most(runs: int) -> int:
    """Return an upper bound on the meta part of a CARRY of so many extents."""
    return BRANCH.size + 4 * KEY_BYTES_MAX + RELOCATE.size + TOPIC_BYTES_MAX + runs * RELOCATED.size


def relocate_bytes(key: BranchKey, name: PartitionName, runs: int) -> int:
    """Return the length of a CARRY's meta part."""
    return len(_branch(key, NO_BRANCH)) + RELOCATE.size + len(_topic(name.topic)) + runs * RELOCATED.size
