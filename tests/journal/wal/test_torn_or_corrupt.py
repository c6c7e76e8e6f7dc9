"""Verdict on the end of the good records: whole, torn or corrupt. Every row of the decision table of FORMAT.md."""

import itertools

import pytest

from journal.errors import InvalidRecord
from journal.records.codec import encode
from journal.records.header import HEADER_BYTES, Offset
from journal.records.record import PutRecord
from journal.state.recovery import NullSink, recover
from journal.wal.scan import EndVerdict, Scanner, judge
from tests.fixtures.journals import ORDERS, SEGMENT_BYTES
from tests.fixtures.raw_journal import FIRST_LSN, PUT_RECORD_BYTES, opened, pad_record, put_record, written

GOOD_END = FIRST_LSN + PUT_RECORD_BYTES  # where every journal below stops being good
LATER = GOOD_END + PUT_RECORD_BYTES
WHOLE = put_record(GOOD_END, FIRST_LSN)

AT_THE_END = {
    "zeros": bytes(PUT_RECORD_BYTES),
    "half a header": WHOLE[:20].ljust(PUT_RECORD_BYTES, b"\0"),
    "a header without its body": WHOLE[:-8].ljust(PUT_RECORD_BYTES, b"\0"),
    "a flipped byte": bytes([WHOLE[0] ^ 1]) + WHOLE[1:],
    "another LSN's record": put_record(GOOD_END + 8, FIRST_LSN),
    "an older incarnation": put_record(GOOD_END, FIRST_LSN, incarnation=0),
}
BEYOND = {
    "nothing": b"",
    "a record that knows of no fsync there": put_record(LATER, GOOD_END),
    "a record that was written after an fsync there": put_record(LATER, LATER),
}


@pytest.mark.parametrize(("trailing_garbage", "was_fsynced"), list(itertools.product((False, True), repeat=2)))
def test_the_rule(trailing_garbage: bool, was_fsynced: bool) -> None:
    expected = EndVerdict.CORRUPT if was_fsynced else EndVerdict.TORN if trailing_garbage else EndVerdict.WHOLE
    assert judge(trailing_garbage, was_fsynced) is expected


@pytest.mark.parametrize("later_segment", [False, True])
@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("at_the_end", AT_THE_END)
def test_every_combination(at_the_end: str, beyond: str, later_segment: bool) -> None:
    pieces = {FIRST_LSN: put_record(FIRST_LSN, 0), GOOD_END: AT_THE_END[at_the_end], LATER: BEYOND[beyond]}
    scanner = Scanner(opened(written(pieces, *[{}] * later_segment)), FIRST_LSN)
    assert [entry.header.lsn for entry in scanner] == [FIRST_LSN]
    end = scanner.judge_end()
    is_fsynced = later_segment or beyond == "a record that was written after an fsync there"
    is_empty = (at_the_end, beyond) == ("zeros", "nothing")
    assert end.verdict is (EndVerdict.CORRUPT if is_fsynced else EndVerdict.WHOLE if is_empty else EndVerdict.TORN)
    assert end.end == GOOD_END
    assert end.trailing_garbage is not is_empty
    if at_the_end not in ("another LSN's record", "an older incarnation"):
        assert end.next_valid_lsn == (None if beyond == "nothing" else LATER)


@pytest.mark.parametrize("padded", [False, True])
def test_a_journal_whose_last_segment_is_still_empty_is_whole(padded: bool) -> None:
    body = bytes(SEGMENT_BYTES - FIRST_LSN - PUT_RECORD_BYTES - (400 if padded else 8))
    record = put_record(FIRST_LSN, 0, body=body)
    pieces = {FIRST_LSN: record}
    if padded:
        pieces[FIRST_LSN + len(record)] = pad_record(FIRST_LSN + len(record))
    scanner = Scanner(opened(written(pieces, {})), FIRST_LSN)
    assert len(list(scanner)) == 1
    assert scanner.judge_end().verdict is EndVerdict.WHOLE
    assert scanner.end == SEGMENT_BYTES + FIRST_LSN


def test_a_scan_goes_on_where_a_writer_has_completed_a_record() -> None:
    storage = written({FIRST_LSN: put_record(FIRST_LSN, 0), GOOD_END: AT_THE_END["half a header"]})
    segments = opened(storage)
    scanner = Scanner(segments, FIRST_LSN)
    assert len(list(scanner)) == 1
    assert scanner.judge_end().verdict is EndVerdict.TORN
    segments.locate(GOOD_END)[1].write(GOOD_END, [WHOLE, put_record(LATER, LATER)])
    assert [entry.header.lsn for entry in scanner] == [GOOD_END, LATER]
    assert scanner.judge_end().verdict is EndVerdict.WHOLE


@pytest.mark.parametrize("kind", [99, 200])
def test_a_whole_record_of_an_unknown_kind_is_refused_and_not_cut(kind: int) -> None:
    storage = written({FIRST_LSN: put_record(FIRST_LSN, 0), GOOD_END: put_record(GOOD_END, FIRST_LSN, kind=kind)})
    before = bytes(storage.files["00000000000000000000.journal"].cached)
    with pytest.raises(InvalidRecord, match=f"LSN {GOOD_END}: a record of kind {kind}, "):
        recover(opened(storage), NullSink())
    assert storage.files["00000000000000000000.journal"].cached == before


def test_the_body_of_a_pad_is_never_looked_at() -> None:
    storage = written({FIRST_LSN: pad_record(FIRST_LSN), FIRST_LSN + 200: b"left over"}, {})
    scanner = Scanner(opened(storage), FIRST_LSN)
    assert list(scanner) == []
    assert scanner.judge_end().verdict is EndVerdict.WHOLE


@pytest.mark.parametrize(
    ("flipped", "verdict"), [(-1, EndVerdict.TORN), (0, EndVerdict.CORRUPT)], ids=["body", "header"]
)
def test_a_record_that_a_client_wrote_into_a_body(flipped: int, verdict: EndVerdict) -> None:
    """A forged record with the right LSN and checksums, which claims an fsync, is ignored as long as the header around
    it is right. FORMAT.md says so, and what follows where it is not."""
    before = len(put_record(GOOD_END, FIRST_LSN, body=bytes(64))) - 64
    inner = GOOD_END + before
    body = (
        b"." * (-(HEADER_BYTES + len(encode(PutRecord(ORDERS, Offset(0), 1))[1])) % 8)
        + put_record(inner, inner)
        + b"end"
    )
    outer = bytearray(put_record(GOOD_END, FIRST_LSN, body=body))
    assert outer.find(put_record(inner, inner)) == before
    outer[flipped - 8 if flipped else 0] ^= 1
    scanner = Scanner(opened(written({FIRST_LSN: put_record(FIRST_LSN, 0), GOOD_END: bytes(outer)})), FIRST_LSN)
    assert len(list(scanner)) == 1
    end = scanner.judge_end()
    assert (end.verdict, end.end, end.trailing_garbage) == (verdict, GOOD_END, True)
    assert end.next_valid_lsn == (None if verdict is EndVerdict.TORN else inner)
