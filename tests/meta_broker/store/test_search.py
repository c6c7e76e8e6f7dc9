"""Looking for messages in runs, against the plain reading of every message; and whatever else may stand there."""

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meta_broker.store import search
from meta_broker.store.partition_index import StoredExtent
from meta_broker.store.search import NotAMessageStart, search_step
from meta_client.protocol.answers import FoundAt
from meta_client.protocol.messages import encode_body, encode_frame, iter_frames

KEYS = ("", "a", "b", "ab", "é")
SEGMENT = 2048

attributes = st.none() | st.sampled_from(KEYS)
lookalikes = st.sampled_from(KEYS).map(lambda key: encode_frame(7, *encode_body(b"x", key)))
runs_of_messages = st.lists(
    st.lists(st.tuples(attributes, st.binary(max_size=30) | lookalikes), min_size=1, max_size=6), min_size=1, max_size=8
)


class Stored:
    """Runs of messages in a journal of small segments, where other bytes stand between them: *gaps*, in turn."""

    def __init__(
        self, runs: list[list[tuple[str | None, bytes]]], gaps: Sequence[bytes] = (b"\xff" * 9,), first_id: int = 1000
    ) -> None:
        self.journal = b""
        self.runs: list[StoredExtent] = []
        self.messages = b""
        for run, gap in zip(runs, itertools.cycle(gaps), strict=False):
            frames = b""
            for attribute, payload in run:
                frames += encode_frame(first_id, *encode_body(payload, attribute))
                first_id += 1
            self.journal += gap
            if len(self.journal) % SEGMENT + len(frames) > SEGMENT:
                self.journal += bytes(-len(self.journal) % SEGMENT)
            self.runs.append(StoredExtent(len(self.messages), len(self.journal), len(frames), len(run)))
            self.journal += frames
            self.messages += frames
            first_id += 7  # ids of other partitions

    def read(self, lsn: int, size: int) -> memoryview:
        return memoryview(self.journal)[lsn : min(lsn + size, lsn - lsn % SEGMENT + SEGMENT)]

    def swap(self, order: Sequence[int]) -> None:
        """Let the runs have offsets in another order than they have LSNs, as after a commit."""
        runs, offset, messages = [], 0, b""
        for run in (self.runs[number] for number in order):
            runs.append(run._replace(offset=offset))
            offset += run.bytes
            messages += self.journal[run.lsn : run.lsn + run.bytes]
        self.runs, self.messages = runs, messages

    def find(self, wanted: bytes | int, offset: int, matches_max: int) -> list[FoundAt]:
        """Piece after piece, until the end or as many as asked for."""
        found: list[FoundAt] = []
        while offset < len(self.messages) and len(found) < matches_max:
            runs = [run for run in self.runs if offset < run.offset + run.bytes]
            looked = search_step(wanted, self.read, runs[:3], offset, matches_max - len(found))
            assert looked.next_offset > offset
            found += looked.matches
            offset = looked.next_offset
        return found

    def expected(self, wanted: str | int, start: int, matches_max: int) -> list[FoundAt]:
        return [
            FoundAt(offset, after - offset)
            for offset, after, message in iter_frames(self.messages)
            if offset >= start and wanted in (message.attribute, message.id)
        ][:matches_max]


@settings(deadline=None)
@given(runs_of_messages, st.integers(1, 4), st.integers(1, 3), st.integers(1, 300), st.data())
def test_as_a_plain_reading_finds(
    runs: list[list[tuple[str | None, bytes]]], matches_max: int, frames: int, size: int, data: st.DataObject
) -> None:
    stored = Stored(runs)
    offsets = [offset for offset, _, _ in iter_frames(stored.messages)]
    start = data.draw(st.sampled_from(offsets))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "FRAMES_MAX", frames)
        patch.setattr(search, "BYTES_MAX", size)
        for key in (*KEYS, "none"):
            expected = stored.expected(key, start, matches_max)
            assert stored.find(key.encode(), start, matches_max) == expected
        for message_id in data.draw(st.lists(st.integers(995, 1120), max_size=5)):
            assert stored.find(message_id, start, matches_max) == stored.expected(message_id, start, matches_max)


@settings(deadline=None)
@given(
    runs_of_messages,
    st.lists(st.binary(max_size=40) | lookalikes | st.integers(0, 60).map(bytes), min_size=1, max_size=8),
    st.integers(1, 300),
    st.integers(0, 60),
    st.data(),
)
def test_whatever_stands_between_the_runs_and_in_whatever_order_they_are(
    runs: list[list[tuple[str | None, bytes]]], gaps: list[bytes], stretch: int, gap: int, data: st.DataObject
) -> None:
    stored = Stored(runs, gaps)
    stored.swap(data.draw(st.permutations(range(len(runs)))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "GROUP_BYTES", stretch)
        patch.setattr(search, "GAP_BYTES", gap)
        for key in KEYS:
            assert stored.find(key.encode(), 0, 99) == stored.expected(key, 0, 99)
        for message_id in data.draw(st.lists(st.integers(995, 1120), max_size=5)):
            assert stored.find(message_id, 0, 9) == stored.expected(message_id, 0, 9)


@settings(deadline=None)
@given(st.binary(min_size=20, max_size=200), st.integers(0, 199), st.sampled_from([b"", b"a", 7]))
def test_any_bytes_end_in_an_answer_or_in_no_message_there(noise: bytes, at: int, wanted: bytes | int) -> None:
    offset = at % len(noise)
    run = StoredExtent(0, 0, len(noise), 5)
    try:
        looked = search_step(wanted, lambda lsn, size: memoryview(noise)[lsn : lsn + size], [run], offset, 9)
    except NotAMessageStart:
        return
    assert offset < looked.next_offset <= len(noise) or isinstance(wanted, int)


def _slicing(stored: memoryview) -> Callable[[int, int], memoryview]:
    return lambda lsn, size: stored[lsn : lsn + size]


def test_an_attribute_that_does_not_fit_into_its_message_is_none() -> None:
    for data in (b"", b"\0\0\0", b"\0\0\0\2a", b"\xff\xff\xff\xffaaaa"):
        stored = memoryview(encode_frame(1, 1, data))
        run = StoredExtent(0, 0, len(stored), 1)
        for wanted in (b"", b"a", b"aa", b"aaaa"):
            looked = search_step(wanted, _slicing(stored), [run], 0, 1)
            assert looked == (len(stored), [])


def test_a_group_of_runs_goes_on_in_the_next_segment() -> None:
    """A read ends with its segment, wherever the runs are."""
    first = encode_frame(1, *encode_body(b"x" * 40, "a"))
    wanted = encode_frame(2, *encode_body(b"y", "b"))
    base = SEGMENT - len(first)
    journal = bytes(base) + first + wanted
    group = [StoredExtent(0, base, len(first), 1), StoredExtent(len(first), SEGMENT, len(wanted), 1)]

    def read(lsn: int, size: int) -> memoryview:
        return memoryview(journal)[lsn : min(lsn + size, lsn - lsn % SEGMENT + SEGMENT)]

    pattern = search._pattern(b"b")
    assert list(search._holding(pattern, read, group)) == group[1:]
    assert list(search._holding(pattern, read, group[:1])) == []
    assert list(search._holding(pattern, lambda lsn, size: memoryview(b""), group)) == [], "nothing is left to read"
