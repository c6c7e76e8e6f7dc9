"""A stream that is damaged in any way: refused, and the copy is what its own directory says it is, always."""

import os
from collections.abc import Callable
from contextlib import suppress
from random import Random
from zlib import crc32

import pytest

from journal.errors import ForeignStream
from journal.records.codec import encode
from journal.records.header import HEADER_BYTES, Lsn, Offset, RecordType, pack
from journal.records.record import PutRecord
from journal.replica.follower import JournalFollower
from journal.wal.segments import SEGMENT_HEADER_BYTES, JournalIdentity, SegmentHeader
from tests.fixtures.copies import copy_of, feed, image, open_follower, said, stream
from tests.fixtures.faulty_storage import FaultyStorage
from tests.fixtures.histories import write_history
from tests.fixtures.journals import IDENTITY, ORDERS, SEGMENT_BYTES, Index
from tests.fixtures.raw_journal import FIRST_LSN, PUT_RECORD_BYTES, pad_record, put_record

SEEDS = max(30, 10 * int(os.environ.get("METAQ_CRASH_ROUNDS", "0")))
Piece = tuple[int, bytes]


@pytest.fixture(scope="module")
def master() -> FaultyStorage:
    storage = FaultyStorage(Random(1))
    write_history(storage).close()
    return storage


def flip(pieces: list[Piece], at: int, random: Random) -> list[Piece]:
    lsn, data = pieces[at]
    damaged = bytearray(data)
    damaged[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return [*pieces[:at], (lsn, bytes(damaged)), *pieces[at + 1 :]]


def drop(pieces: list[Piece], at: int, random: Random) -> list[Piece]:
    del random
    return pieces[:at] + pieces[at + 1 :]


def drop_unseen(pieces: list[Piece], at: int, random: Random) -> list[Piece]:
    """Drop a piece, and give the next one its position."""
    del random
    missing = len(pieces[at][1])
    return pieces[:at] + [(lsn - missing, data) for lsn, data in pieces[at + 1 :]]


def repeat(pieces: list[Piece], at: int, random: Random) -> list[Piece]:
    return pieces[: at + 1] + pieces[random.randrange(at + 1) :]


def swap(pieces: list[Piece], at: int, random: Random) -> list[Piece]:
    other = random.randrange(len(pieces))
    swapped = list(pieces)
    swapped[at], swapped[other] = (pieces[at][0], pieces[other][1]), (pieces[other][0], pieces[at][1])
    return swapped


def cut_short(pieces: list[Piece], at: int, random: Random) -> list[Piece]:
    lsn, data = pieces[at]
    return [*pieces[:at], (lsn, data[: random.randrange(len(data))]), *pieces[at + 1 :]]


def noise(pieces: list[Piece], at: int, random: Random) -> list[Piece]:
    lsn, data = pieces[at]
    return [*pieces[:at], (lsn, random.randbytes(len(data))), *pieces[at + 1 :]]


DAMAGE: list[Callable[[list[Piece], int, Random], list[Piece]]] = [
    flip,
    drop,
    drop_unseen,
    repeat,
    swap,
    cut_short,
    noise,
]


def judge(follower: JournalFollower, storage: FaultyStorage) -> None:
    """Check that the state in memory is the one a start would find."""
    follower.journal.wait_flushed(follower.end)
    again = open_follower(copy_of(storage))
    assert (again.end, again.epoch_history) == (follower.end, follower.epoch_history)
    assert said(again.state) == said(follower.state)
    again.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_damage_changes_nothing_but_how_long_it_takes(master: FaultyStorage, seed: int) -> None:
    random = Random(seed)
    index, storage = Index(), FaultyStorage(Random(2))
    follower = open_follower(storage)
    for _ in range(8):
        pieces = list(stream(master, follower.end, random, random.choice((50, 700, 5000))))
        if not pieces:
            break
        damaged = random.choice(DAMAGE)(pieces, random.randrange(len(pieces)), random)
        with suppress(ForeignStream):  # a stream that is cut short is not damaged, and a PAD's body is not looked at
            feed(follower, iter(damaged), index)
        judge(follower, storage)
    feed(follower, stream(master, follower.end, random), index)
    judge(follower, storage)
    follower.close()
    assert image(storage) == image(master)
    again = open_follower(storage, sink=(found := Index()))
    again.close()
    assert index.entries == found.entries


def first_segment(identity: JournalIdentity = IDENTITY, base: int = 0, size: int = SEGMENT_BYTES) -> bytes:
    return SegmentHeader(identity, Lsn(base), size).pack()


def pad_that_ends_early() -> bytes:
    return pack(RecordType.PAD, 0, b"", 64, 0, 1, 1, FIRST_LSN, 0, 0)


def longer_than_its_segment() -> bytes:
    meta = encode(PutRecord(ORDERS, Offset(0), 1))[1]
    return pack(RecordType.PUT, 0, meta, SEGMENT_BYTES, 0, 1, 1, FIRST_LSN, 0, 0)


def of_no_known_kind() -> bytes:
    return put_record(FIRST_LSN, 0, kind=99)


def with_something_behind_it() -> bytes:
    record = bytearray(put_record(FIRST_LSN, 0, body=b"x"))
    record[-1] = 1
    return bytes(record)


def with_something_in_its_header() -> bytes:
    head = bytearray(first_segment())
    head[-5] = 1
    head[-4:] = crc32(head[:-4]).to_bytes(4, "little")
    return bytes(head)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(first_segment(JournalIdentity("test", 8)), "is of broker 8", id="another broker"),
        pytest.param(first_segment(JournalIdentity("other", 7)), "of cluster 'other'", id="another cluster"),
        pytest.param(first_segment(base=4096), "at LSN 4096", id="another place"),
        pytest.param(first_segment(size=4096 + 8), "a segment of 4104 bytes", id="an odd size"),
        pytest.param(first_segment(size=1 << 40), "a segment of 1099511627776", id="a size without bound"),
        pytest.param(bytes(SEGMENT_HEADER_BYTES), "no segment header", id="zeros"),
        pytest.param(with_something_in_its_header(), "something but zeros in a segment header", id="a filled header"),
        pytest.param(first_segment() + pad_that_ends_early(), "a segment that ends at", id="a short PAD"),
        pytest.param(first_segment() + longer_than_its_segment(), "leave the segment", id="a long record"),
        pytest.param(first_segment() + of_no_known_kind(), "does not read", id="a kind of a newer metaq"),
        pytest.param(first_segment() + with_something_behind_it(), "but zeros", id="something in the alignment"),
        pytest.param(first_segment() + put_record(FIRST_LSN + 8, 0), "names LSN 136", id="another LSN"),
        pytest.param(first_segment() + put_record(FIRST_LSN, FIRST_LSN + 8), "no metaq writes", id="durable too soon"),
        pytest.param(
            first_segment()
            + put_record(FIRST_LSN, 0, incarnation=2)
            + put_record(FIRST_LSN + PUT_RECORD_BYTES, 0, incarnation=1),
            "epoch and incarnation (1, 1) after (1, 2)",
            id="a life that falls",
        ),
    ],
)
def test_what_no_master_sends_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    follower = open_follower(FaultyStorage(Random(0)))
    with pytest.raises(ForeignStream) as refused:
        follower.receive(0, data.ljust(SEGMENT_HEADER_BYTES + HEADER_BYTES, b"\0"))
    assert reason in str(refused.value)
    assert follower.received_lsn == follower.end
    follower.close()


def test_a_record_that_contradicts_the_state_stops_the_copy_and_none_of_it_is_kept() -> None:
    storage = FaultyStorage(Random(0))
    follower = open_follower(storage)
    begin = first_segment() + put_record(FIRST_LSN, 0)
    (first,) = follower.receive(0, begin)
    again = put_record(FIRST_LSN + PUT_RECORD_BYTES, 0)  # at offset 0, which is taken
    for _ in range(2):
        with pytest.raises(ForeignStream, match="do not follow the end") as refused:
            follower.receive(follower.end, again)
        assert refused.value.is_final
    follower.journal.wait_flushed(first.lsn)
    follower.close()
    reopened = open_follower(storage)
    assert reopened.end == first.lsn
    reopened.close()


def test_what_a_refused_call_had_found_comes_with_the_next_one() -> None:
    follower = open_follower(FaultyStorage(Random(0)))
    with pytest.raises(ForeignStream):
        follower.receive(0, first_segment() + put_record(FIRST_LSN, 0) + b"noise" * 100)
    assert follower.end == FIRST_LSN + PUT_RECORD_BYTES
    (found,) = follower.receive(follower.end, b"")
    assert found.lsn == follower.end
    follower.close()


def test_no_more_than_a_record_is_held() -> None:
    follower = open_follower(FaultyStorage(Random(0)))
    record = put_record(FIRST_LSN, 0, body=b"x" * 3000)
    data = first_segment() + record
    for at, byte in enumerate(data[:-1]):
        assert follower.receive(at, bytes([byte])) == []
    assert (follower.end, follower.received_lsn) == (0, len(data) - 1)
    assert follower.journal.queued_bytes == 0
    assert [found.lsn for found in follower.receive(len(data) - 1, data[-1:])] == [len(data)]
    follower.close()


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_pads_body_may_be_sent_or_left_out(is_sent: bool) -> None:
    storage = FaultyStorage(Random(0))
    follower = open_follower(storage)
    body = SEGMENT_BYTES - FIRST_LSN - HEADER_BYTES
    data = first_segment() + pad_record(FIRST_LSN) + (b"#" * body if is_sent else b"")
    follower.receive(0, data)
    assert follower.end == SEGMENT_BYTES
    follower.receive(SEGMENT_BYTES, first_segment(base=SEGMENT_BYTES))
    follower.receive(SEGMENT_BYTES + SEGMENT_HEADER_BYTES, put_record(SEGMENT_BYTES + SEGMENT_HEADER_BYTES, 0))
    follower.close()
    assert b"#" not in image(storage)[0]
    assert sorted(image(storage)) == [0, SEGMENT_BYTES]


@pytest.mark.parametrize("seed", range(5))
def test_a_stream_may_restart_where_the_copy_ends(master: FaultyStorage, seed: int) -> None:
    random = Random(seed)
    storage = FaultyStorage(Random(2))
    follower = open_follower(storage)
    while pieces := list(stream(master, follower.end, random, 300)):
        feed(follower, iter(pieces[: random.randrange(1, 40)]))
    follower.close()
    assert image(storage) == image(master)
