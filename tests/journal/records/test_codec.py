"""Records both ways, and what hostile bytes can do to the readers: nothing but their one error."""

import contextlib
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from journal.errors import InvalidRecord
from journal.records.codec import decode, encode, relocate_bytes, relocate_bytes_at_most
from journal.records.dead_letters import DeadLetter, DeadLetterState
from journal.records.header import (
    HEADER_BYTES,
    META_BYTES_MAX,
    ExceedsSegment,
    InvalidHeader,
    Lsn,
    Offset,
    RecordHeader,
    RecordType,
    pack,
    unpack,
)
from journal.records.record import (
    TOPIC_BYTES_MAX,
    CheckpointWritten,
    Commit,
    Decision,
    Epoch,
    Forget,
    OffsetAssignment,
    Pad,
    PartitionName,
    Prepare,
    PutRecord,
    Record,
    Relocate,
    RelocatedExtent,
    Rollback,
    RollbackReason,
    TxPut,
)
from journal.records.topic_changes import TopicChange, TopicState
from journal.records.xid import BranchKey, InvalidXid, LocalKey, XaKey, Xid, parse_key

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
LSNS = U64.map(Lsn)
OFFSETS = U64.map(Offset)
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters=":\r\n\t "), max_size=40)
TOPICS = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda t: len(t.encode()) <= TOPIC_BYTES_MAX)
NAMES = st.builds(PartitionName, TOPICS, U32)
INT32 = st.integers(-(2**31), 2**31 - 1)
KEYS: st.SearchStrategy[BranchKey] = st.one_of(
    st.builds(LocalKey, WORDS, INT32),
    st.builds(XaKey, st.builds(Xid, INT32, st.binary(max_size=64), st.binary(max_size=64)), WORDS.filter(bool)),
)
TAKES = st.builds(OffsetAssignment, NAMES, OFFSETS, U64, U32)
EXTENTS = st.lists(st.builds(RelocatedExtent, LSNS, U32, U32, U64), min_size=1, max_size=5).map(tuple)
RELOCATIONS = st.builds(Relocate, KEYS, LSNS, NAMES, U32, U64, EXTENTS)
RECORDS: st.SearchStrategy[Record] = st.one_of(
    st.builds(PutRecord, NAMES, OFFSETS, U32),
    st.builds(TxPut, KEYS, LSNS, NAMES, U32),
    st.builds(Prepare, KEYS, LSNS, U64, U64),
    st.builds(Commit, KEYS, LSNS, st.booleans(), st.lists(TAKES, max_size=5).map(tuple)),
    st.builds(Rollback, KEYS, LSNS, st.sampled_from(RollbackReason)),
    st.builds(Epoch, U32, U32, TEXT),
    st.builds(CheckpointWritten, U64, LSNS),
    st.just(Pad()),
    st.builds(Decision, KEYS, TEXT),
    st.builds(Forget, KEYS),
    st.builds(
        lambda offset, size, **rest: DeadLetter(offset=offset, next_offset=offset + size, **rest),
        topic=TOPICS,
        broker_id=INT32,
        partition=U32,
        offset=st.integers(0, 2**63),
        size=st.integers(1, 2**21),
        time_ms=U64,
        attempts=U32,
        state=st.sampled_from(DeadLetterState),
        reason=TEXT,
    ),
    RELOCATIONS,
    st.builds(TopicChange, topic=TOPICS, state=st.just(TopicState.SET), section=U32, partitions=U32.filter(bool)),
)


def header_of(kind: int, meta: bytes) -> RecordHeader:
    return RecordHeader(kind, 0, len(meta), 0, 0, 1, 1, Lsn(128), Lsn(0), 0)


@given(RECORDS)
def test_a_record_reads_back(record: Record) -> None:
    kind, meta = encode(record)
    assert decode(header_of(kind, meta), memoryview(meta)) == record


@given(RELOCATIONS)
def test_the_length_of_a_relocation_record_is_known_before_it_is_made(record: Relocate) -> None:
    length = len(encode(record)[1])
    assert (
        length
        == relocate_bytes(record.key, record.name, len(record.extents))
        <= relocate_bytes_at_most(len(record.extents))
    )


@given(st.integers(0, 255), st.binary(max_size=200))
def test_decode_raises_nothing_but_invalid_record(kind: int, meta: bytes) -> None:
    try:
        record = decode(header_of(kind, meta), memoryview(meta))
    except InvalidRecord:
        return
    again = encode(record)
    assert decode(header_of(*again), memoryview(again[1])) == record


@given(RECORDS, st.data())
def test_a_damaged_meta_part_raises_nothing_but_invalid_record(record: Record, data: st.DataObject) -> None:
    kind, meta = encode(record)
    cut = meta[: data.draw(st.integers(0, len(meta)))] + data.draw(st.binary(max_size=8))
    with contextlib.suppress(InvalidRecord):
        decode(header_of(kind, cut), memoryview(cut))


@given(RECORDS, st.binary(max_size=100), st.integers(0, 3).map(lambda n: n * 8), U32, U32, st.data())
def test_a_frame_reads_back(
    record: Record, body: bytes, before: int, epoch: int, incarnation: int, data: st.DataObject
) -> None:
    kind, meta = encode(record)
    lsn = data.draw(U64)
    durable, time_ms = data.draw(st.integers(0, lsn)), data.draw(U64)
    raw = pack(kind, 0, meta, len(body), zlib.crc32(body), epoch, incarnation, lsn, durable, time_ms) + body
    header = unpack(memoryview(bytes(before) + raw), before, lsn)
    assert isinstance(header, RecordHeader)
    crc = zlib.crc32(body)
    assert header == RecordHeader(
        kind, 0, len(meta), len(body), crc, epoch, incarnation, Lsn(lsn), Lsn(durable), time_ms
    )
    assert header.bytes_total % 8 == 0
    assert 0 <= header.bytes_total - len(raw) < 8


@given(st.binary(max_size=300), st.integers(0, 320), U64)
@example(b"", 0, 0)
@example(b"\xff" * HEADER_BYTES, 0, 2**64 - 1)
def test_unpack_never_raises(raw: bytes, position: int, lsn: int) -> None:
    assert isinstance(
        unpack(memoryview(raw), position, lsn), InvalidHeader
    )  # a checksum that fits by chance: 1 in 2**32


@given(st.data())
def test_any_flipped_bit_is_seen(data: st.DataObject) -> None:
    kind, meta = encode(data.draw(RECORDS.filter(lambda record: not isinstance(record, Pad))))
    body = data.draw(st.binary(max_size=50))
    raw = bytearray(pack(kind, 0, meta, len(body), zlib.crc32(body), 1, 1, 4096, 128, 0) + body)
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    assert isinstance(unpack(memoryview(raw), 0, 4096), InvalidHeader)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"record_type": 0}, "a header that no metaq writes"),
        ({"durable": 129}, "a header that no metaq writes"),
        ({"body_bytes": 1 << 31}, "lengths that leave the segment"),
        ({"lsn": 136}, "the header names LSN 136"),
        ({"body_crc": 1}, "body checksum"),
    ],
)
def test_a_header_that_lies_is_bad_with_the_reason(change: dict[str, int], reason: str) -> None:
    fields = {"record_type": RecordType.FORGET, "body_bytes": 0, "body_crc": 0, "lsn": 128, "durable": 128} | change
    raw = pack(meta=b"", flags=0, epoch=1, incarnation=1, time_ms=0, **fields)
    invalid = unpack(memoryview(raw), 0, 128)
    assert isinstance(invalid, InvalidHeader)
    assert invalid.reason.startswith(reason)


def test_a_meta_part_of_absurd_length_is_bad() -> None:
    raw = pack(RecordType.FORGET, 0, bytes(META_BYTES_MAX + 1), 0, 0, 1, 1, 128, 0, 0)
    assert unpack(memoryview(raw), 0, 128) == ExceedsSegment("lengths that leave the segment")


LONG = PartitionName("t" * (TOPIC_BYTES_MAX + 1), 0)
NAMELESS = PartitionName("", 0)
KEY = LocalKey("s", 1)


@pytest.mark.parametrize(
    "record",
    [
        *(PutRecord(name, Offset(0), 1) for name in (LONG, NAMELESS)),
        *(TxPut(KEY, Lsn(0), name, 1) for name in (LONG, NAMELESS)),
        *(Commit(KEY, Lsn(128), True, (OffsetAssignment(name, Offset(0), 1, 1),)) for name in (LONG, NAMELESS)),
        Prepare(LocalKey("s" * 1020, 1), Lsn(128), 1, 1),
        Forget(XaKey(Xid.of("g", "b"), "q" * 1024)),
    ],
)
def test_what_could_not_be_read_back_is_not_written(record: Record) -> None:
    with pytest.raises(ValueError, match=r"is not 1 to 255 bytes long|is longer than 1024"):
        encode(record)


@given(KEYS)
def test_a_key_reads_back(key: BranchKey) -> None:
    assert parse_key(str(key)) == key


@given(st.text(max_size=60) | st.from_regex(r"(TX|XID)(:[0-9a-f+-]{0,6}){1,5}", fullmatch=True))
def test_parse_key_raises_nothing_but_invalid_xid(text: str) -> None:
    try:
        key = parse_key(text)
    except InvalidXid:
        return
    assert parse_key(str(key)) == key
