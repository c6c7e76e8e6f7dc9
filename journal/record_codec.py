"""A record's meta part: `encode` and `decode`, kind by kind. Pure. Drawn in FORMAT.md."""

import struct
from collections.abc import Callable
from typing import Any, Final, get_args

from journal.batches import BatchSequence
from journal.errors import InvalidRecord
from journal.frame import Header, Kind, Lsn, Offset, kind_name
from journal.heuristics import WHO_BYTES_MAX, WHY_BYTES_MAX, HeuristicDecision
from journal.records import (
    NO_BRANCH,
    PRODUCER_BYTES_MAX,
    TOPIC_BYTES_MAX,
    CarriedRun,
    Carry,
    CheckpointMark,
    Commit,
    Decision,
    Epoch,
    Forget,
    Heuristic,
    Lost,
    Pad,
    PartitionEnd,
    PartitionName,
    Prepare,
    Put,
    PutBatch,
    Record,
    Rollback,
    RollbackReason,
    Take,
    TxPut,
)
from journal.refusals import Refused, decode_refused, encode_refused
from journal.topic_changes import TopicChange, decode_change, encode_change
from journal.xid import KEY_BYTES_MAX, BranchKey, InvalidXid, parse_key

_PUT = struct.Struct("<QII")  # base offset, message count, partition; the topic follows
_SEQUENCE = struct.Struct("<qQB")  # first message id, batch number, producer bytes; producer and topic follow
_BRANCH = struct.Struct("<QH")  # branch LSN, key bytes; the key follows
_RUN = struct.Struct("<II")  # message count, partition; the topic follows
_TAKE_COUNT = struct.Struct("<BI")  # one phase, takes
_TAKE = struct.Struct("<QQIIB")  # base offset, bytes, message count, partition, topic bytes; the topic follows
_PREPARE = struct.Struct("<QQ")  # messages, bytes
_CARRY = struct.Struct("<IIQIB")  # partition, first run, bytes before it, runs, topic bytes; topic and runs follow
_CARRIED = struct.Struct("<QQII")  # LSN before, milliseconds, bytes, messages
_HEURISTIC = struct.Struct("<BQQQHH")  # decision, prepared, messages, bytes, who bytes, why bytes; who and why follow
_EPOCH = struct.Struct("<II")
_CHECKPOINT = struct.Struct("<QQ")  # file number, LSN
_END_COUNT = struct.Struct("<I")  # ends
_END = struct.Struct("<QIB")  # offset, partition, topic bytes; the topic follows


def encode(record: Record) -> tuple[Kind, bytes]:
    """The kind and the meta part of *record*. Raises ValueError or struct.error for what
    `decode` would not take back."""
    kind, write = _ENCODERS[type(record)]
    return kind, write(record)


def commit_bytes_at_most(partitions: int) -> int:
    """No COMMIT that takes in so many partitions has a longer meta part."""
    return _BRANCH.size + 4 * KEY_BYTES_MAX + _TAKE_COUNT.size + partitions * (_TAKE.size + TOPIC_BYTES_MAX)


def carry_bytes_at_most(runs: int) -> int:
    """No CARRY of so many runs has a longer meta part."""
    return _BRANCH.size + 4 * KEY_BYTES_MAX + _CARRY.size + TOPIC_BYTES_MAX + runs * _CARRIED.size


def carry_bytes(key: BranchKey, name: PartitionName, runs: int) -> int:
    """The length of a CARRY's meta part."""
    return len(_branch(key, NO_BRANCH)) + _CARRY.size + len(_topic_bytes(name)) + runs * _CARRIED.size


def decode(header: Header, meta: memoryview) -> Record:
    """Read a record whose header was checked. Raises InvalidRecord for a meta part that cannot be."""
    if (read := _DECODERS.get(header.kind)) is None:
        raise InvalidRecord(
            f"LSN {header.lsn}: a record of kind {kind_name(header.kind)}, which this version of metaq does not "
            f"read: open the journal with the version that wrote it"
        )
    try:
        return read(bytes(meta))
    except (struct.error, ValueError) as error:  # InvalidXid and UnicodeDecodeError are ValueErrors
        raise InvalidRecord(f"LSN {header.lsn}: a malformed {kind_name(header.kind)} record: {error}") from error


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


def _take(take: Take) -> bytes:
    topic = _topic_bytes(take.name)
    return _TAKE.pack(take.base, take.bytes, take.count, take.name.partition, len(topic)) + topic


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
    head = _branch(record.key, record.branch_lsn) + _TAKE_COUNT.pack(record.one_phase, len(record.takes))
    return head + b"".join(map(_take, record.takes))


def _write_rollback(record: Rollback) -> bytes:
    return _branch(record.key, record.branch_lsn) + bytes([record.reason])


def _write_heuristic(record: Heuristic) -> bytes:
    who, why = _words(record.who, WHO_BYTES_MAX), _words(record.why, WHY_BYTES_MAX)
    seen = record.prepared_ms, record.messages, record.bytes
    head = _HEURISTIC.pack(record.decision, *seen, len(who), len(why))
    return _branch(record.key, record.branch_lsn) + head + who + why


def _write_epoch(record: Epoch) -> bytes:
    return _EPOCH.pack(record.epoch, record.incarnation) + record.version.encode()


def _write_checkpoint(record: CheckpointMark) -> bytes:
    return _CHECKPOINT.pack(record.number, record.lsn)


def _write_pad(record: Pad) -> bytes:
    del record
    return b""


def _write_decision(record: Decision) -> bytes:
    return _branch(record.key, NO_BRANCH) + record.participants.encode()


def _write_forget(record: Forget) -> bytes:
    return _branch(record.key, NO_BRANCH)


def _write_carry(record: Carry) -> bytes:
    name, runs = record.name, record.runs
    topic = _topic_bytes(name)
    head = _CARRY.pack(name.partition, record.first, record.position, len(runs), len(topic)) + topic
    each = [_CARRIED.pack(run.lsn, run.time_ms, run.bytes, run.messages) for run in runs]
    return _branch(record.key, record.branch_lsn) + head + b"".join(each)


def _write_topic_change(record: TopicChange) -> bytes:
    return encode_change(record, _bytes_of(record.topic))


def _write_refused(record: Refused) -> bytes:
    return encode_refused(record, _bytes_of(record.topic))


def _write_lost(record: Lost) -> bytes:
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
    one_phase, takes_left = _TAKE_COUNT.unpack_from(meta, at)
    at += _TAKE_COUNT.size
    takes = []
    for _ in range(takes_left):
        base, size, count, partition, topic_bytes = _TAKE.unpack_from(meta, at)
        at += _TAKE.size
        name = PartitionName(_topic(meta[at : at + topic_bytes]), partition)
        takes.append(Take(name, Offset(base), size, count))
        at += topic_bytes
    if at != len(meta):
        raise ValueError(f"{len(meta) - at} bytes after the last take")
    if one_phase > 1:
        raise ValueError(f"{one_phase} where 1 or 0 says whether it committed in one phase")
    return Commit(key, branch_lsn, bool(one_phase), tuple(takes))


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


def _read_checkpoint(meta: bytes) -> CheckpointMark:
    number, lsn = _CHECKPOINT.unpack(meta)
    return CheckpointMark(number, Lsn(lsn))


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


def _read_carry(meta: bytes) -> Carry:
    key, branch_lsn, at = _read_branch(meta)
    partition, first, position, runs, topic_bytes = _CARRY.unpack_from(meta, at)
    at += _CARRY.size
    name = PartitionName(_topic(meta[at : at + topic_bytes]), partition)
    at += topic_bytes
    if not runs or len(meta) - at != runs * _CARRIED.size:
        raise ValueError(f"{len(meta) - at} bytes where {runs} runs should be named")
    carried = tuple(
        CarriedRun(Lsn(lsn), size, messages, time_ms)
        for lsn, time_ms, size, messages in _CARRIED.iter_unpack(meta[at:])
    )
    return Carry(key, branch_lsn, name, first, position, carried)


def _read_topic_change(meta: bytes) -> TopicChange:
    return decode_change(meta, _topic)


def _read_refused(meta: bytes) -> Refused:
    return decode_refused(meta, _topic)


def _read_lost(meta: bytes) -> Lost:
    if not meta:
        return Lost()
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
    return Lost(tuple(ends))


_ENCODERS: Final[dict[type[Record], tuple[Kind, Callable[[Any], bytes]]]] = {
    Put: (Kind.PUT, _write_put),
    PutBatch: (Kind.PUT_BATCH, _write_put_batch),
    TxPut: (Kind.TX_PUT, _write_tx_put),
    Prepare: (Kind.PREPARE, _write_prepare),
    Commit: (Kind.COMMIT, _write_commit),
    Rollback: (Kind.ROLLBACK, _write_rollback),
    Heuristic: (Kind.HEURISTIC, _write_heuristic),
    Epoch: (Kind.EPOCH, _write_epoch),
    CheckpointMark: (Kind.CHECKPOINT, _write_checkpoint),
    Pad: (Kind.PAD, _write_pad),
    Decision: (Kind.DECISION, _write_decision),
    Forget: (Kind.FORGET, _write_forget),
    Carry: (Kind.CARRY, _write_carry),
    TopicChange: (Kind.TOPIC, _write_topic_change),
    Refused: (Kind.REFUSED, _write_refused),
    Lost: (Kind.LOST, _write_lost),
}
_DECODERS: Final[dict[int, Callable[[bytes], Record]]] = {
    Kind.PUT: _read_put,
    Kind.PUT_BATCH: _read_put_batch,
    Kind.TX_PUT: _read_tx_put,
    Kind.PREPARE: _read_prepare,
    Kind.COMMIT: _read_commit,
    Kind.ROLLBACK: _read_rollback,
    Kind.HEURISTIC: _read_heuristic,
    Kind.EPOCH: _read_epoch,
    Kind.CHECKPOINT: _read_checkpoint,
    Kind.PAD: _read_pad,
    Kind.DECISION: _read_decision,
    Kind.FORGET: _read_forget,
    Kind.TOPIC: _read_topic_change,
    Kind.CARRY: _read_carry,
    Kind.LOST: _read_lost,
    Kind.REFUSED: _read_refused,
}
assert _ENCODERS.keys() == set(get_args(Record)), "every kind of record is written"
assert _DECODERS.keys() == {kind for kind, _ in _ENCODERS.values()}, "and read back"
