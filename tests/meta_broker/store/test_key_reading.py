"""Gathering keys and looking at messages, against the plain reading of every message; with gaps that a repair left."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.checksum import crc32
from meta_broker.store import key_reading
from meta_broker.store.key_block import SPAN_MAX, KeyBlock, new_buckets
from meta_broker.store.key_reading import gather, is_message, look_at
from meta_broker.store.partition_index import StoredExtent
from meta_broker.store.search import NotAMessageStart
from meta_client.protocol.answers import FoundAt
from meta_client.protocol.messages import encode_body, encode_frame, iter_frames

attributes = st.none() | st.sampled_from(["", "a", "b", "é"])
messages = st.lists(st.tuples(attributes, st.binary(max_size=20)), min_size=1, max_size=5)
stored_runs = st.lists(st.tuples(messages, st.sampled_from([0, 0, 7])), min_size=1, max_size=7)  # and the gap before


@settings(deadline=None)
@given(stored_runs, st.integers(1, 4), st.integers(1, 200), st.integers(0, 30))
def test_as_a_plain_reading_says(
    stored: list[tuple[list[tuple[str | None, bytes]], int]], frames: int, size: int, rest: int
) -> None:
    journal, runs, expected = b"", list[StoredExtent](), dict[int, tuple[int, str | None, int]]()
    offset, message_id = 0, 1000
    for contents, gap in stored:
        offset += gap
        data = b"".join(encode_frame(message_id + n, *encode_body(it, key)) for n, (key, it) in enumerate(contents))
        message_id += len(contents)
        journal += b"\xff" * 5
        runs.append(StoredExtent(offset, len(journal), len(data), len(contents)))
        expected |= {at: (after - at, it.attribute, it.id) for at, after, it in iter_frames(data, offset)}
        journal += data
        offset += len(data)
    limit = offset + rest  # rest: a gap at the end

    def read(lsn: int, size: int) -> memoryview:
        return memoryview(journal)[lsn : lsn + size]

    block = KeyBlock(0, 0, 0, 0, new_buckets())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_reading, "FRAMES_MAX", frames)
        patch.setattr(key_reading, "BYTES_MAX", size)
        while block.end < offset:
            before = block.end
            block = gather(block, read, [run for run in runs if run.offset + run.bytes > block.end][:3], limit)
            assert block.end > before
    last = max(expected)
    assert (block.end, block.last, block.last_id) == (offset, last, expected[last][2])
    entries = sorted(entry for bucket in block.buckets for entry in bucket)
    keys = [(at, key) for at, (_, key, _) in expected.items() if key is not None]
    assert entries == sorted(crc32(key.encode()) << 32 | at for at, key in keys)
    assert all(entry >> 56 == number for number, bucket in enumerate(block.buckets) for entry in bucket)

    places = [(run, at) for run in runs for at in expected if run.offset <= at < run.offset + run.bytes]
    for key in ("", "a", "é"):
        matches = [FoundAt(at, size) for at, (size, its_key, _) in expected.items() if its_key == key]
        assert look_at(key.encode(), read, places, 1000).matches == matches
        assert look_at(key.encode(), read, places, 1).matches == matches[:1]
    for run, at in places:
        assert is_message(read, run, at, expected[at][2])
        assert not is_message(read, run, at, expected[at][2] + 1)


def test_a_block_ends_before_what_it_could_not_tell_apart() -> None:
    frame = encode_frame(1, *encode_body(b"x", "a"))
    run = StoredExtent(0, 0, len(frame), 1)
    block = KeyBlock(0, 0, 0, 0, new_buckets())
    assert gather(block, lambda lsn, size: memoryview(frame), [run], len(frame) - 1).end == 0
    assert gather(block, lambda lsn, size: memoryview(frame), [run], SPAN_MAX).end == len(frame)


def test_no_message_is_where_none_has_room() -> None:
    """An index of another journal names the last bytes of a run."""
    frame = encode_frame(7, *encode_body(b"x", "a"))
    run = StoredExtent(0, 0, len(frame), 1)

    def read(lsn: int, size: int) -> memoryview:
        return memoryview(frame)[lsn : lsn + size]

    at = len(frame) - 5
    assert not is_message(read, run, at, 7)
    with pytest.raises(NotAMessageStart):
        look_at(b"a", read, [(run, at)], 1)


@settings(deadline=None)
@given(st.binary(min_size=20, max_size=120))
def test_any_bytes_end_in_a_block_or_in_no_message_there(noise: bytes) -> None:
    run = StoredExtent(0, 0, len(noise), 1)
    try:
        block = gather(KeyBlock(0, 0, 0, 0, new_buckets()), lambda lsn, size: memoryview(noise), [run], len(noise))
    except NotAMessageStart:
        return
    assert block.end == len(noise)
