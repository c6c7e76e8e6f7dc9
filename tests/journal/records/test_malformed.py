"""Each way in which a meta part with right checksums can still say what no metaq writes: refused, with its reason."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from journal.errors import InvalidRecord
from journal.records import codec, topic_changes
from journal.records.codec import decode, encode
from journal.records.dead_letters import REASON_BYTES_MAX, DeadLetter, DeadLetterState
from journal.records.header import HEADER_BYTES, Lsn, Offset, RecordHeader, RecordType, kind_and_time, pack
from journal.records.heuristics import HeuristicDecision
from journal.records.ledger import Disagreement, LedgerEntry
from journal.records.producer_state import BatchSequence
from journal.records.record import (
    PRODUCER_BYTES_MAX,
    Commit,
    DroppedRecords,
    Forget,
    Heuristic,
    OffsetAssignment,
    PartitionEnd,
    PartitionName,
    PutBatch,
    Record,
    Relocate,
    RelocatedExtent,
)
from journal.records.topic_changes import TopicChange, TopicState
from journal.records.xid import InvalidXid, LocalKey, XaKey, Xid, parse_key

KEY = XaKey(Xid.of("g", "b"), "q")
NAME = PartitionName("orders", 1)
BATCH = PutBatch(NAME, Offset(0), 3, 7, BatchSequence("p", 1))
COMMIT = Commit(KEY, Lsn(128), False, (OffsetAssignment(NAME, Offset(0), 300, 3),))
HEURISTIC = Heuristic(KEY, Lsn(128), HeuristicDecision.COMMIT, 5, 3, 300, "ann", "sure")
RELOCATE = Relocate(KEY, Lsn(128), NAME, 0, 0, (RelocatedExtent(Lsn(256), 300, 3, 5),))
DROPPED = DroppedRecords((PartitionEnd(NAME, Offset(300)),))
LETTER = DeadLetter("orders", 0, 1, 100, 200, 5, 1, DeadLetterState.TRIED, "no")
LEDGER = LedgerEntry(KEY, Disagreement.MIXED, "ann", "why", "seen")
SET = TopicChange(topic="orders", state=TopicState.SET, partitions=4, compression=("lz4", "zstd"), index="attribute")

AT_PRODUCER = codec.PUT.size + codec.SEQUENCE.size
AT_FLAG = codec.BRANCH.size + len(str(KEY))  # of a COMMIT: whether it committed in one phase


def decoded(kind: RecordType, meta: bytes) -> Record:
    return decode(RecordHeader(kind, 0, len(meta), 0, 0, 1, 1, Lsn(128), Lsn(0), 0), memoryview(meta))


def more(meta: bytes) -> bytes:
    return meta + b"x"


def less(meta: bytes) -> bytes:
    return meta[:-1]


def put_at(position: int, byte: int) -> Callable[[bytes], bytes]:
    return lambda meta: meta[:position] + bytes([byte]) + meta[position + 1 :]


def without(size: int) -> Callable[[bytes], bytes]:
    return lambda meta: meta[:size]


@pytest.mark.parametrize("record", [BATCH, COMMIT, HEURISTIC, RELOCATE, DROPPED, LETTER, LEDGER, SET])
def test_it_reads_back(record: Record) -> None:
    assert decoded(*encode(record)) == record


@pytest.mark.parametrize(
    ("record", "damage", "reason"),
    [
        (BATCH, without(AT_PRODUCER + 1), "a topic of 0 bytes"),
        (BATCH, lambda meta: meta + b"x" * 255, "a topic of 261 bytes"),
        (BATCH, put_at(AT_PRODUCER - 1, 0), "a producer of 0 bytes"),
        (BATCH, put_at(AT_PRODUCER - 1, 60), "a producer of 60 bytes"),
        (Forget(KEY), less, "a key longer than the record"),
        (Forget(KEY), more, "1 bytes after the key"),
        (COMMIT, more, "1 bytes after the last take"),
        (COMMIT, put_at(AT_FLAG, 2), "2 where 1 or 0 says whether"),
        (HEURISTIC, less, "where who and why take 3 and 4"),
        (HEURISTIC, more, "where who and why take 3 and 4"),
        (RELOCATE, more, "where 1 runs should be named"),
        (DROPPED, more, "1 ends, and 1 bytes after the last"),
        (DROPPED, lambda meta: codec.END_COUNT.pack(0), "0 ends, and 0 bytes after the last"),
        (LETTER, without(codec.PUT.size), "unpack_from requires a buffer"),
        (LETTER, lambda meta: meta[8:16] + meta[:8] + meta[16:], r"a refused message in \[200, 100\)"),
        (LETTER, lambda meta: meta + b"x" * REASON_BYTES_MAX, r"a refused message in \[100, 200\)"),
        (LEDGER, lambda meta: meta[:-4], "and evidence some"),
        (SET, put_at(1, 64), "unknown switches 0x40"),
        (SET, without(topic_changes.HEAD.size), "a topic of 0 bytes"),
        (replace(SET, closed=(1, 2)), without(topic_changes.HEAD.size + 7), "2 closed partitions in a record of 21"),
        (replace(SET, closed=(1, 2)), put_at(topic_changes.HEAD.size, 3), "closed partitions that do not rise"),
        (SET, put_at(0, TopicState.DELETED), "4 partitions in state DELETED"),
        (SET, lambda meta: put_at(0, TopicState.FILE)(put_at(2, 0)(meta)), "switches in state FILE"),
    ],
)
def test_it_is_refused_with_the_reason(record: Record, damage: Callable[[bytes], bytes], reason: str) -> None:
    kind, meta = encode(record)
    with pytest.raises(InvalidRecord, match=f"a malformed {kind.name} record: .*{reason}"):
        decoded(kind, damage(meta))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Xid(2**31, b"", b""),
        lambda: Xid(1, b"x" * 65, b""),
        lambda: Xid(1, b"", b"x" * 65),
        lambda: Xid.parse("1_Z2c="),
        lambda: Xid.parse("1_Z_Zg=="),
        lambda: LocalKey("a session", 1),
        lambda: LocalKey("session", 2**31),
        lambda: XaKey(Xid.of("g", "b"), "two words"),
        lambda: parse_key("TX:" + "x" * 1024 + ":1"),
        lambda: encode(replace_producer("")),
        lambda: encode(replace_producer("p" * (PRODUCER_BYTES_MAX + 1))),
        lambda: replace(SET, section=2**32),
        lambda: replace(SET, compression=("zstd", "lz4")),
        lambda: replace(SET, index="payload"),
        lambda: TopicChange(topic="orders", state=TopicState.DELETED, closed=(1,)),
    ],
)
def test_what_could_not_be_read_back_is_not_made(make: Callable[[], object]) -> None:
    with pytest.raises((InvalidXid, ValueError)):
        make()


def replace_producer(producer: str) -> PutBatch:
    return PutBatch(NAME, Offset(0), 3, 7, BatchSequence(producer, 1))


def test_a_pad_has_no_meta_part() -> None:
    with pytest.raises(InvalidRecord, match="a PAD with a meta part"):
        decoded(RecordType.PAD, b"x")


@pytest.mark.parametrize("size", [0, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 3])
def test_type_and_time_of_a_header_that_is_cut_off_are_unknown(size: int) -> None:
    whole = pack(RecordType.PUT, 0, b"meta", 0, 0, 1, 1, Lsn(128), Lsn(128), 5)
    assert kind_and_time(memoryview(whole), 0, 128) == (RecordType.PUT, 5)
    assert kind_and_time(memoryview(whole)[:size], 0, 128) is None
