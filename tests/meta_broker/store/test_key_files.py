"""The key index of one partition against a dumb model: joined, damaged, trimmed, and cut off at every storage call."""

import contextlib
import itertools
from array import array
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.checksum import crc32
from journal.errors import StorageFailed
from journal.wal.storage import DirectoryStorage, Storage
from meta_broker.store import key_files
from meta_broker.store.key_block import (
    HEADER_BYTES,
    BlockView,
    DamagedBlock,
    KeyBlock,
    encode_block,
    new_buckets,
    sorted_block,
)
from meta_broker.store.key_files import CoveredOffsets, KeyFiles, first_gap
from tests.fixtures.faulty_storage import FaultyStorage, PowerCut
from tests.fixtures.thoroughness import examples

KEYS = [b"", b"a", b"b", b"536365", "é".encode()]
STEP = 10  # bytes of a message


def block_of(keys: list[bytes | None], first: int) -> KeyBlock:
    """Messages *first*, *first* + 1, ... of STEP bytes each, with *keys*."""
    buckets = new_buckets()
    for number, key in enumerate(keys):
        if key is not None:
            buckets[crc32(key) >> 24].append(crc32(key) << 32 | number * STEP)
    start, end = first * STEP, (first + len(keys)) * STEP
    return KeyBlock(start, end, end - STEP, 1000 + first + len(keys) - 1, buckets)


def view_of(stored: bytes | bytearray, start: int, end: int) -> BlockView:
    return BlockView(lambda position, size: bytes(stored[position : position + size]), len(stored), start, end)


def found(files: KeyFiles, key: bytes, covered: CoveredOffsets, offsets_max: int = 3, blocks_max: int = 2) -> list[int]:
    """All the candidates in a stretch of blocks, few at a time."""
    offsets: list[int] = []
    offset = covered.start
    while offset < covered.end:
        candidates = files.candidates(crc32(key), offset, offsets_max, blocks_max)
        assert candidates.next_offset > offset or candidates.offsets
        offsets += candidates.offsets
        offset = candidates.next_offset
    return [at for at in offsets if at < covered.end]


def check(files: KeyFiles, keys: list[bytes | None]) -> None:
    """Check each block against the messages."""
    covered_ranges = files.covered_ranges
    assert all(one.end <= other.start for one, other in itertools.pairwise(covered_ranges))
    for covered in covered_ranges:
        numbers = range(covered.start // STEP, covered.end // STEP)
        for key in KEYS:
            assert found(files, key, covered) == [number * STEP for number in numbers if keys[number] == key]


def fill(files: KeyFiles, keys: list[bytes | None], start: int, sizes: list[int]) -> None:
    """Index the gaps: blocks of *sizes* messages in turn."""
    for size in itertools.cycle(sizes):
        gap = first_gap(files.covered_ranges, start, len(keys) * STEP)
        if gap.start == gap.end:
            return
        first = gap.start // STEP
        files.add(block_of(keys[first : min(first + size, gap.end // STEP)], first))


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.none() | st.sampled_from(KEYS), min_size=1, max_size=60), st.lists(st.integers(1, 9), min_size=1))
def test_blocks_that_join_say_what_the_messages_say(keys: list[bytes | None], sizes: list[int]) -> None:
    storage = FaultyStorage(Random(0))
    files = KeyFiles(storage)
    fill(files, keys, 0, sizes)
    check(files, keys)
    assert [each.start for each in files.covered_ranges][:1] == [0]
    again = KeyFiles(storage)
    assert again.covered_ranges == files.covered_ranges
    check(again, keys)
    number = len(keys) // 2
    again.trim(number * STEP)
    assert all(covered.end > number * STEP for covered in again.covered_ranges)
    check(again, keys)
    assert len(storage.blobs) == len(again.covered_ranges)


def test_the_number_of_blocks_stays_logarithmic_and_each_entry_is_written_as_often() -> None:
    storage = FaultyStorage(Random(0))
    files = KeyFiles(storage)
    written = 0
    for number in range(256):
        files.add(block_of([b"a"] * 16, number * 16))
        written += sum(
            len(data)
            for name, data in storage.blobs.items()
            if name.endswith(f"{files.covered_ranges[-1].end:019}.keys")
        )
        assert len(files.covered_ranges) <= 9
    entries = 256 * 16
    assert written <= 8 * entries * 10 + 256 * HEADER_BYTES * 2
    assert len(files.covered_ranges) == 1


def test_a_block_is_full_one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_files, "ENTRIES_MAX", 40)
    files = KeyFiles(FaultyStorage(Random(0)))
    keys: list[bytes | None] = [b"a"] * 320
    fill(files, keys, 0, [10])
    assert len(files.covered_ranges) == 8
    check(files, keys)


@pytest.mark.parametrize("cut", [PowerCut.DROPPED, PowerCut.KEPT, PowerCut.SHUFFLED])
def test_a_failure_at_every_storage_call_and_a_power_cut(cut: PowerCut) -> None:
    """Blocks are lost at most; those that are there are right, and the gaps can be filled."""
    random = Random(7)
    keys: list[bytes | None] = [random.choice([None, *KEYS]) for _ in range(80)]
    for nth in itertools.count():
        storage = FaultyStorage(Random(nth), fail_at=nth)
        with contextlib.suppress(StorageFailed):
            work(storage, keys)
        after = storage.after_power_cut(cut, Random(nth))
        files = KeyFiles(after)
        check(files, keys)
        assert len(after.blobs) == len(files.covered_ranges)
        fill(files, keys, 400, [7])
        assert first_gap(files.covered_ranges, 400, len(keys) * STEP).start == len(keys) * STEP
        check(files, keys)
        if not storage.fault_fired:
            assert nth > 40
            break


def work(storage: FaultyStorage, keys: list[bytes | None]) -> None:
    files = KeyFiles(storage)
    fill(files, keys[:50], 0, [5, 3, 8])
    assert files.last_message() == (490, 1049) or storage.fault_fired
    files.trim(200)
    files = KeyFiles(storage)
    fill(files, keys, 200, [5, 3, 8])
    files.candidates(crc32(b"a"), 500, 1000, 10)


def damaged(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    match how:
        case "lost":
            path.unlink()
            return
        case "empty":
            data = bytearray()
        case "short":
            del data[-1]
        case "header":
            data[20] ^= 1
        case "bucket":
            for at in range(HEADER_BYTES, len(data)):
                data[at] ^= 0x10
        case "magic":
            data[0] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["lost", "empty", "short", "header", "bucket", "magic"])
def test_a_damaged_block_is_a_gap_and_no_more(how: str, tmp_path: Path) -> None:
    storage: Storage = DirectoryStorage(tmp_path, None)
    keys: list[bytes | None] = [b"a", b"b"] * 100
    files = KeyFiles(storage)
    for first, size in ((0, 120), (120, 50), (170, 30)):  # each too large for the next to join
        files.add(block_of(keys[first : first + size], first))
    middle = CoveredOffsets(1200, 1700)
    (tmp_path / f"{2000:019}-{2100:019}.keys.tmp").write_bytes(b"half")
    for is_reopened in (False, True):
        damaged(tmp_path / f"{middle.start:019}-{middle.end:019}.keys", how)
        again = KeyFiles(storage) if is_reopened else files
        candidates = again.candidates(crc32(b"a"), 0, 1000, 10)
        assert candidates == (list(range(0, 1200, 20)), 1200)  # up to the gap, and not beyond
        assert again.covered_ranges == (CoveredOffsets(0, 1200), CoveredOffsets(1700, 2000))
        assert first_gap(again.covered_ranges, 0, 2000) == middle
        fill(again, keys, 0, [50])
        check(again, keys)
    assert len(list(tmp_path.iterdir())) == 3
    if how != "bucket":  # which is looked at when it is needed
        damaged(tmp_path / f"{1700:019}-{2000:019}.keys", how)
        assert KeyFiles(storage).last_message() == (1690, 1169)


def test_a_block_under_another_name_is_a_gap(tmp_path: Path) -> None:
    files = KeyFiles(DirectoryStorage(tmp_path, None))
    files.add(block_of([b"a"] * 9, 0))
    (tmp_path / f"{0:019}-{90:019}.keys").rename(tmp_path / f"{0:019}-{100:019}.keys")
    again = KeyFiles(DirectoryStorage(tmp_path, None))
    assert again.last_message() is None
    assert (again.covered_ranges, list(tmp_path.iterdir())) == ((), [])


@given(st.data())
def test_no_damage_gets_through(data: st.DataObject) -> None:
    block = sorted_block(block_of([b"a", b"b", b"c"] * 9, 5))
    stored = bytearray(encode_block(block))
    assert view_of(stored, block.start, block.end).block() == block
    at = data.draw(st.integers(0, len(stored) - 1))
    stored[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedBlock):
        view_of(stored, block.start, block.end).block()


def test_the_form_in_the_file() -> None:
    """Golden: what older brokers have written must stay readable."""
    block = KeyBlock(100, 160, 130, 7, new_buckets())
    block.buckets[0xE8].append(0xE8B7BE43 << 32 | 30)  # CRC-32 of "a"
    stored = encode_block(block)
    assert stored[:8] == b"METAQKEY"
    assert stored[8:12] == b"\1\0\0\0"
    assert stored[16:48] == b"".join(number.to_bytes(8, "little") for number in (100, 160, 130, 7))
    assert stored[48 + 8 * 0xE8 : 52 + 8 * 0xE8] == b"\1\0\0\0"
    assert stored[HEADER_BYTES:] == b"\x1e\0\0\0\x43\xbe\xb7\xe8"
    assert list(view_of(stored, 100, 160).offsets(crc32(b"a"), 0)) == [130]
    assert view_of(stored, 100, 160).block().buckets[0xE8] == array("Q", [0xE8B7BE43 << 32 | 30])
