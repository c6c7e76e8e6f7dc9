"""Walking a segment: the journal's own verdict on every byte, and nothing passed over in silence."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.records.header import HEADER_BYTES, RecordType
from journal.wal.scan import ScannedRecord
from journal.wal.segments import SEGMENT_HEADER_BYTES
from spark_jobs.source import segment_reader
from spark_jobs.source.directory import MissingRange
from spark_jobs.source.record_block import BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, RecordBlock
from spark_jobs.source.segment_reader import SegmentReader
from tests.fixtures.faulty_storage import SECTOR_BYTES, FaultyStorage, MemoryFile
from tests.spark_jobs.journals import ORDERS, Pen, records_of

SEGMENT = 8192


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The first of two segments: filled up, every record durable."""
    path = tmp_path_factory.mktemp("walk")
    with Pen(path, SEGMENT) as pen:
        for number in range(40):
            pen.put(ORDERS, number * 300, 3)
    return (path / f"{0:020d}.journal").read_bytes()


def file_of(raw: bytes) -> MemoryFile:
    return MemoryFile(FaultyStorage(Random(1)), "a segment", raw)


def walk(raw: bytes, *, is_last: bool = False) -> list[ScannedRecord | MissingRange]:
    found = list(SegmentReader(file_of(raw), len(raw), 0, is_last=is_last))
    assert contents(in_blocks(file_of(raw), is_last=is_last)) == contents(found)
    return found


def in_blocks(file: MemoryFile, *, is_last: bool) -> list[RecordBlock | ScannedRecord | MissingRange]:
    return list(SegmentReader(file, file.size, 0, is_last=is_last).blocks())


def contents(found: Sequence[RecordBlock | ScannedRecord | MissingRange]) -> list[object]:
    """Every header, meta part and body, and every range that does not read back, however they were read."""
    said: list[object] = []
    for each in found:
        if isinstance(each, MissingRange):
            said.append(each)
        elif isinstance(each, ScannedRecord):
            header = each.header
            said_by = (header.record_type, header.flags, *header.writer_epoch, header.durable, header.time_ms)
            said.append((header.lsn, said_by, bytes(each.meta), bytes(each.body)))
        else:
            names = ("kind", "flags", "epoch", "incarnation", "durable", "time_ms")
            for head, meta, body in zip(each.headers, each.meta_at.tolist(), each.body_at.tolist(), strict=True):
                end = body + int(head["body_bytes"])
                numbers = tuple(int(head[name]) for name in names)
                said.append((int(head["lsn"]), numbers, bytes(each.data[meta:body]), bytes(each.data[body:end])))
    return said


@pytest.fixture(autouse=True, params=[512, BLOCK_BYTES_MAX])
def _block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of few records, too: their borders are places like any other."""
    monkeypatch.setattr(segment_reader, "BLOCK_BYTES_MIN", min(request.param, BLOCK_BYTES_MIN))
    monkeypatch.setattr(segment_reader, "BLOCK_BYTES_MAX", request.param)


def lsns(found: list[ScannedRecord | MissingRange]) -> list[tuple[int, int]]:
    return [(one.lsn, one.end) if isinstance(one, MissingRange) else (one.header.lsn, one.header.end) for one in found]


def test_an_undamaged_segment_is_its_records_and_its_pad(segment: bytes) -> None:
    found = walk(segment)
    kinds = [entry.header.record_type for entry in found if isinstance(entry, ScannedRecord)]
    assert len(kinds) == len(found)
    assert kinds == [RecordType.EPOCH, *[RecordType.PUT] * (len(kinds) - 2), RecordType.PAD]
    assert lsns(found)[-1][1] == SEGMENT


@given(data=st.data())
def test_any_flipped_bit_is_found_and_costs_one_record(segment: bytes, data: st.DataObject) -> None:
    records = lsns(walk(segment))
    index = data.draw(st.integers(0, len(records) - 2), label="record")
    start, end = records[index]
    # The last bytes of a record may be padding, which no checksum covers: stay within header, meta and body.
    position = data.draw(st.integers(start, end - 8), label="position")
    raw = bytearray(segment)
    raw[position] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    found = walk(bytes(raw))
    assert [one for one in found if isinstance(one, MissingRange)] == [found[index]]
    assert lsns(found) == records  # everything before and after it is still read


@given(raw=st.binary(min_size=SEGMENT_HEADER_BYTES, max_size=4096), is_last=st.booleans())
def test_any_bytes_are_walked_to_their_end(raw: bytes, *, is_last: bool) -> None:
    found = walk(raw, is_last=is_last)
    if is_last or len(raw) < SEGMENT_HEADER_BYTES + HEADER_BYTES:
        assert found == []
    else:
        assert lsns(found) == [(SEGMENT_HEADER_BYTES, len(raw))]


def test_a_bad_record_is_corruption_only_below_what_was_durable(segment: bytes) -> None:
    records = lsns(walk(segment))
    start, _ = records[5]
    raw = bytearray(segment)
    raw[start + 60] ^= 1
    assert [one for one in walk(bytes(raw), is_last=True) if isinstance(one, MissingRange)] != []
    # The same record as the last one: nobody was told that it was durable, and the journal ends before it.
    torn = bytes(raw[: records[5][1]]).ljust(SEGMENT, b"\0")
    assert lsns(walk(torn, is_last=True)) == records[:5]
    # In a segment that another follows, it and the emptiness behind it cannot be.
    assert walk(torn)[5:] == [MissingRange(start, SEGMENT, "header checksum")]


def test_a_record_that_becomes_whole_while_it_is_judged(segment: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A live broker: the record is half written when it is read, whole when a later one proves it durable."""
    records = lsns(walk(segment))
    start, end = records[5]
    file = file_of(segment[:start] + bytes(end - start) + segment[end:])

    def finish_writing(position: int) -> int:
        file.write(start, [segment[start:end]])
        return position

    monkeypatch.setattr(file, "next_data", finish_writing)
    found = list(SegmentReader(file, file.size, 0, is_last=True))
    assert lsns(found) == records


@given(data=st.data(), is_last=st.booleans())
def test_blocks_are_the_same_records_whatever_is_damaged(segment: bytes, data: st.DataObject, *, is_last: bool) -> None:
    raw = bytearray(segment)
    for _ in range(data.draw(st.integers(0, 4), label="places")):
        at = data.draw(st.integers(SEGMENT_HEADER_BYTES, SEGMENT - 1), label="place")
        scribble = data.draw(st.binary(min_size=1, max_size=300) | st.integers(1, 3000).map(bytes), label="bytes")
        raw[at : at + len(scribble)] = scribble[: SEGMENT - at]
    walk(bytes(raw), is_last=is_last)


def test_blocks_are_used(segment: bytes) -> None:
    """Else every comparison here would compare one reader with itself."""
    kinds = [type(found) for found in in_blocks(file_of(segment), is_last=False)]
    assert kinds[-1] is ScannedRecord  # the PAD
    assert set(kinds[:-1]) == {RecordBlock}


@pytest.mark.parametrize("is_last", [False, True])
def test_a_sector_that_cannot_be_read_costs_the_records_in_it(segment: bytes, *, is_last: bool) -> None:
    records = lsns(walk(segment))
    for sector in range(SECTOR_BYTES, records[-1][0], SECTOR_BYTES):
        file = file_of(segment)
        file.bad_sectors.add(sector)
        found = list(SegmentReader(file, file.size, 0, is_last=is_last))
        assert contents(in_blocks(file, is_last=is_last)) == contents(found)
        ((lsn, end, reason),) = [(one.lsn, one.end, one.reason) for one in found if isinstance(one, MissingRange)]
        assert f"bytes {sector} to {sector + SECTOR_BYTES} cannot be read" in reason
        assert lsn <= sector < sector + SECTOR_BYTES <= end
        others = [each for each in lsns(found) if each != (lsn, end)]
        assert others == [each for each in records if not lsn <= each[0] < end]


def test_an_older_incarnation_is_no_successor(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with Pen(first, SEGMENT) as pen:
        pen.put(ORDERS, 0, 3)
    with Pen(second, SEGMENT, incarnation=2) as pen:
        pen.put(ORDERS, 0, 3)
        pen.put(ORDERS, 300, 3)
    end = records_of(first)[-1].header.lsn
    spliced = (second / f"{0:020d}.journal").read_bytes()[:end] + (first / f"{0:020d}.journal").read_bytes()[end:]
    found = walk(spliced)
    assert found[1:] == [MissingRange(end, SEGMENT, "incarnation 1 after 2")]


def test_in_a_copy_the_mark_says_what_was_fsynced_and_records_do_not(segment: bytes) -> None:
    """They name what their writer had fsynced, on its own disk: here that may be what a crash tore."""
    records = lsns(walk(segment))
    start, end = records[10]
    raw = bytearray(segment)
    raw[start + HEADER_BYTES] ^= 1

    def found(fsynced: int | None) -> list[ScannedRecord | MissingRange]:
        return list(SegmentReader(file_of(bytes(raw)), len(raw), 0, is_last=True, fsynced=fsynced))

    assert [one for one in lsns(found(None)) if one == (start, end)]
    assert lsns(found(start)) == records[:10]
    assert lsns(found(start + 1)) == records
