"""Run-time decisions about topics: what a record says, what it does to the state, what a restart finds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.errors import InvalidRecord
from journal.records.codec import decode, encode
from journal.records.header import Lsn, Offset, RecordHeader, RecordType
from journal.records.record import NO_BRANCH, PartitionName, PutRecord, Record, TxPut
from journal.records.topic_changes import TopicChange, TopicState, describe_change, format_partitions
from journal.repair.check import differences
from journal.state.checkpoint import checkpoint_of, decode_checkpoint, encode_checkpoint
from journal.state.fold import apply
from journal.state.journal_state import JournalState
from tests.fixtures.journals import ORDERS, STOCK, xa

OTHER = PartitionName("orders-2", 0)
SET = TopicChange(topic="orders", state=TopicState.SET, partitions=8, accept_publish=True, closed=(1, 2, 3, 7))
DELETED = TopicChange(topic="orders", state=TopicState.DELETED, section=7)

U32 = st.integers(0, 2**32 - 1)
CLOSED = st.sets(U32, max_size=5).map(lambda numbers: tuple(sorted(numbers)))
CHANGES = st.one_of(
    st.builds(TopicChange, topic=st.just("t"), state=st.just(TopicState.FILE), section=U32, closed=CLOSED),
    st.builds(TopicChange, topic=st.just("t"), state=st.just(TopicState.DELETED), section=U32),
    st.builds(
        TopicChange,
        topic=st.just("t"),
        state=st.just(TopicState.SET),
        section=U32,
        partitions=st.integers(1, 2**32 - 1),
        accept_publish=st.booleans(),
        accept_subscribe=st.booleans(),
        stat=st.booleans(),
        compression=st.sampled_from([(), ("lz4",), ("zstd",), ("lz4", "zstd")]),
        index=st.sampled_from([None, "attribute"]),
        closed=CLOSED,
    ),
)


def add(state: JournalState, record: Record, body_bytes: int = 0) -> None:
    kind, meta = encode(record)
    lsn = state.lsn
    apply(state, RecordHeader(kind, 0, len(meta), body_bytes, 0, 1, 1, lsn, lsn, 1_000), record)


def read(meta: bytes) -> Record:
    return decode(RecordHeader(RecordType.TOPIC, 0, len(meta), 0, 0, 1, 1, Lsn(128), Lsn(0), 0), memoryview(meta))


@pytest.fixture
def state() -> JournalState:
    state = JournalState(Lsn(128))
    add(state, PutRecord(ORDERS, Offset(0), 1), 10)
    add(state, PutRecord(OTHER, Offset(0), 1), 20)
    return state


@given(CHANGES)
def test_a_change_reads_back_from_a_record_and_from_a_checkpoint(change: TopicChange) -> None:
    assert read(encode(change)[1]) == change
    state = JournalState(Lsn(128))
    add(state, change)
    checkpoint = decode_checkpoint(encode_checkpoint(checkpoint_of(state, {})))
    assert checkpoint.topics == ([] if change.says_nothing else [change])
    assert list(differences(state, checkpoint)) == []


@pytest.mark.parametrize(
    ("at", "byte", "why"),
    [
        (0, 0, "0 is not a valid TopicState"),
        (0, 9, "9 is not a valid TopicState"),
        (0, 1, "8 partitions in state FILE"),
        (0, 3, "8 partitions in state DELETED"),
        (1, 64, "unknown switches 0x40"),
        (2, 0, "0 partitions in state SET"),
        (10, 200, "200 closed partitions"),
        (14, 2, "do not rise"),
    ],
)
def test_a_record_that_no_metaq_writes(at: int, byte: int, why: str) -> None:
    meta = bytearray(encode(SET)[1])
    meta[at] = byte
    with pytest.raises(InvalidRecord, match=why):
        read(bytes(meta))


def test_the_last_change_counts_until_it_says_nothing(state: JournalState) -> None:
    add(state, SET)
    assert state.topics == {"orders": SET}
    closed = TopicChange(topic="orders", state=TopicState.FILE, closed=(0,))
    add(state, closed)
    assert state.topics == {"orders": closed}
    add(state, TopicChange(topic="orders", state=TopicState.FILE))
    assert state.topics == {}


def test_a_deleted_topic_goes_on_at_its_end_when_it_is_made_again(state: JournalState) -> None:
    add(state, DELETED)
    assert state.topics == {"orders": DELETED}
    assert (state.offset_ranges[ORDERS].start, state.offset_ranges[ORDERS].end) == (10, 10)
    assert (state.offset_ranges[OTHER].start, state.offset_ranges[OTHER].end) == (0, 20)
    add(state, SET)
    add(state, PutRecord(ORDERS, Offset(10), 1), 5)
    assert (state.offset_ranges[ORDERS].start, state.offset_ranges[ORDERS].end) == (10, 15)


def test_a_deletion_under_a_live_branch_contradicts(state: JournalState) -> None:
    add(state, TxPut(xa("a"), NO_BRANCH, STOCK, 1), 7)
    add(state, DELETED)
    with pytest.raises(InvalidRecord, match="stock is deleted while branch"):
        add(state, TopicChange(topic="stock", state=TopicState.DELETED))


def test_a_checkpoint_that_forgot_a_decision_is_noticed(state: JournalState) -> None:
    add(state, SET)
    checkpoint = checkpoint_of(state, {})
    add(state, DELETED)
    assert "topic orders is set partitions=8 publish=true subscribe=false stat=false closed=1-3,7, " in "\n".join(
        differences(state, checkpoint)
    )


def test_partitions_are_written_as_ranges() -> None:
    assert format_partitions(()) == ""
    assert format_partitions((4,)) == "4"
    assert format_partitions((0, 1, 2, 4, 6, 7)) == "0-2,4,6-7"
    assert describe_change(DELETED) == "deleted"
    compressed = replace(SET, compression=("lz4", "zstd"))
    assert describe_change(replace(SET, index="attribute")).endswith(" index=attribute closed=1-3,7")
    with pytest.raises(ValueError, match="index 'id'"):
        replace(SET, index="id")
    assert describe_change(compressed) == (
        "set partitions=8 publish=true subscribe=false stat=false compression=lz4,zstd closed=1-3,7"
    )
    for wrong in (("zstd", "lz4"), ("gzip",), ("lz4", "lz4")):
        with pytest.raises(ValueError, match="not some of"):
            replace(SET, compression=wrong)
