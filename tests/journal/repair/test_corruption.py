"""A flipped byte at every kind of place in a journal, and what must happen on the next start.

Each record was fsynced before the next was written, so that every one but the last is known to have been durable.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pytest

from journal.errors import CorruptJournal, JournalError
from journal.records.header import HEADER_BYTES, RecordHeader, RecordType
from journal.records.record import PartitionName
from journal.repair.check import check
from journal.state.inspection import read_checkpoints
from journal.wal.scan import EndVerdict, Scanner, record_at
from journal.wal.segments import SEGMENT_HEADER_BYTES, segment_name
from tests.fixtures.faulty_storage import FaultyStorage, PowerCut
from tests.fixtures.histories import write_history
from tests.fixtures.journals import SEGMENT_BYTES, Index, open_store
from tests.fixtures.raw_journal import opened


@dataclass(frozen=True)
class Found:
    """Result of a start: partitions, branches in doubt, and the length of the journal kept."""

    content: dict[PartitionName, bytes]
    prepared: list[str]
    records: int


def pristine(*, checkpoints: bool) -> FaultyStorage:
    storage = FaultyStorage(Random(0))
    write_history(storage).close()
    if not checkpoints:
        storage.blobs.clear()
    return storage


def copy_of(storage: FaultyStorage) -> FaultyStorage:
    """Return the same bytes on another disk; *storage* may only be copied again."""
    return storage.after_power_cut(PowerCut.DROPPED, Random(0))


def content_of(storage: FaultyStorage) -> dict[str, bytes]:
    return {name: bytes(file.cached) for name, file in storage.files.items()} | storage.blobs


def flipped(storage: FaultyStorage, lsn: int) -> FaultyStorage:
    copy = copy_of(storage)
    file = copy.files[segment_name(lsn - lsn % SEGMENT_BYTES)]
    file.cached[lsn % SEGMENT_BYTES] ^= 0x04
    file.durable[:] = file.cached
    return copy


def start(storage: FaultyStorage) -> Found:
    index = Index()
    store = open_store(storage, sink=index)
    found = Found(
        index.read(store.journal.segments),
        [str(live.key) for live in store.recover()],
        store.recovered.replayed_records,
    )
    store.close()
    return found


def refuses(storage: FaultyStorage, lsn: int) -> CorruptJournal:
    """Starting must fail, name *lsn*, and change nothing."""
    before = content_of(storage)
    with pytest.raises(CorruptJournal) as caught:
        open_store(storage)
    assert content_of(storage) == before
    assert caught.value.lsn == lsn
    return caught.value


@pytest.fixture(scope="module")
def whole() -> FaultyStorage:
    """A journal without checkpoints, so that recovery reads all of it."""
    return pristine(checkpoints=False)


@pytest.fixture(scope="module")
def headers(whole: FaultyStorage) -> list[RecordHeader]:
    """Every record of it, PADs left out."""
    segments = opened(copy_of(whole))
    return [entry.header for entry in Scanner(segments, segments.start)]


def of_kind(headers: list[RecordHeader], kind: RecordType) -> RecordHeader:
    return next(header for header in headers if header.record_type == kind)


@pytest.mark.parametrize(
    "kind",
    [RecordType.EPOCH, RecordType.PUT, RecordType.TX_PUT, RecordType.PREPARE, RecordType.COMMIT, RecordType.ROLLBACK],
)
def test_every_byte_of_a_header_and_meta_part(
    whole: FaultyStorage, headers: list[RecordHeader], kind: RecordType
) -> None:
    header = of_kind(headers, kind)
    for lsn in range(header.lsn, header.body_lsn):
        error = refuses(flipped(whole, lsn), header.lsn)
        assert error.next_valid_lsn is not None
        assert error.next_valid_lsn >= header.end


@pytest.mark.parametrize("kind", [RecordType.PUT, RecordType.TX_PUT])
def test_every_byte_of_a_body(whole: FaultyStorage, headers: list[RecordHeader], kind: RecordType) -> None:
    header = of_kind(headers, kind)
    for lsn in range(header.body_lsn, header.body_lsn + header.body_bytes, 7):
        assert refuses(flipped(whole, lsn), header.lsn).reason == "body checksum"


def test_the_zeros_between_two_records_hold_nothing(whole: FaultyStorage, headers: list[RecordHeader]) -> None:
    expected = start(copy_of(whole))
    gaps = [lsn for header in headers for lsn in range(header.body_lsn + header.body_bytes, header.end)]
    assert gaps
    for lsn in gaps[::5]:
        assert start(flipped(whole, lsn)) == expected


def pads(storage: FaultyStorage) -> Iterator[RecordHeader]:
    """Every PAD: what stands behind the last record of each segment but the last."""
    segments = opened(storage)
    ends = [entry.header.end for entry in Scanner(segments, segments.start)]
    for lsn in ends:
        if (left := SEGMENT_BYTES - lsn % SEGMENT_BYTES) >= HEADER_BYTES:
            header = record_at(segments, lsn)
            if isinstance(header, RecordHeader) and header.record_type == RecordType.PAD:
                assert header.bytes_total == left
                yield header


def test_a_pads_header_counts_and_its_body_does_not(whole: FaultyStorage) -> None:
    expected = start(copy_of(whole))
    found = list(pads(copy_of(whole)))
    assert len(found) >= 2
    for header in found:
        for lsn in range(header.lsn, header.lsn + HEADER_BYTES, 5):
            refuses(flipped(whole, lsn), header.lsn)
        for lsn in range(header.lsn + HEADER_BYTES, header.end, 50):
            assert start(flipped(whole, lsn)) == expected


def test_every_byte_of_every_segment_header(whole: FaultyStorage) -> None:
    for base in range(0, len(whole.files) * SEGMENT_BYTES, SEGMENT_BYTES):
        for lsn in range(base, base + SEGMENT_HEADER_BYTES):
            refuses(flipped(whole, lsn), base)


def test_the_preallocated_tail_is_cleared_and_nothing_lost(whole: FaultyStorage, headers: list[RecordHeader]) -> None:
    expected = start(copy_of(whole))
    end, last = headers[-1].end, len(whole.files) * SEGMENT_BYTES
    for lsn in (end, end + 1, end + HEADER_BYTES, (end + last) // 2, last - 1):
        storage = flipped(whole, lsn)
        assert start(storage) == expected
        on_disk = storage.files[segment_name(lsn - lsn % SEGMENT_BYTES)].durable
        assert lsn < end + 200 or on_disk[lsn % SEGMENT_BYTES] == 0  # before: the new EPOCH record


def test_the_last_record_is_taken_for_a_torn_tail(whole: FaultyStorage, headers: list[RecordHeader]) -> None:
    """The limit of the rule: nothing behind it tells that it was fsynced. One more start, and something does."""
    last = headers[-1]
    expected = start(copy_of(whole))
    found = start(flipped(whole, last.lsn))
    assert found.records == expected.records - 1
    once_more = copy_of(whole)
    start(once_more)
    refuses(flipped(once_more, last.lsn), last.lsn)


def test_corruption_after_a_checkpoint_is_refused_too() -> None:
    storage = pristine(checkpoints=True)
    segments = opened(storage)
    last_put = [
        entry.header for entry in Scanner(segments, segments.start) if entry.header.record_type == RecordType.PUT
    ][-1]
    refuses(flipped(storage, last_put.lsn), last_put.lsn)


def test_corruption_below_a_checkpoint_is_passed_by_a_start_and_found_by_a_check() -> None:
    storage = pristine(checkpoints=True)
    segments = opened(storage)
    first_put = next(
        entry.header for entry in Scanner(segments, segments.start) if entry.header.record_type == RecordType.PUT
    )
    damaged = flipped(storage, first_put.lsn)
    expected = start(copy_of(storage)).prepared
    with pytest.raises(CorruptJournal):  # an index that is lost is rebuilt from the journal's birth: that reads it
        open_store(copy_of(damaged), sink=Index())
    once_more = copy_of(damaged)
    store = open_store(once_more)
    assert [str(live.key) for live in store.recover()] == expected
    store.close()
    assert check(opened(once_more), read_checkpoints(once_more)).verdict is EndVerdict.CORRUPT


@pytest.mark.parametrize("newest_only", [True, False])
def test_every_byte_of_the_checkpoints_may_be_corrupt(newest_only: bool) -> None:
    storage = pristine(checkpoints=True)
    expected = start(copy_of(storage))
    raw = storage.blobs["checkpoint.2"]
    for position in range(0, len(raw) - 1, 11):
        copy = copy_of(storage)
        for name in ["checkpoint.2"] if newest_only else list(copy.blobs):
            damaged = bytearray(copy.blobs[name])
            damaged[min(position, len(damaged) - 2)] ^= 0x01
            copy.blobs[name] = bytes(damaged)
        found = start(copy)
        assert (found.content, found.prepared) == (expected.content, expected.prepared)
        assert found.records > expected.records


def test_random_damage_never_passes_for_something_else(whole: FaultyStorage) -> None:
    """After any overwrite the start refuses, or finds a state that existed at some time."""
    random = Random(20_240_601)
    expected = start(copy_of(whole))
    size = len(whole.files) * SEGMENT_BYTES
    refused = 0
    for _ in range(150):
        storage = copy_of(whole)
        lsn, length = random.randrange(size), random.choice((1, 8, 64, 512, 1024))
        base = lsn - lsn % SEGMENT_BYTES
        file = storage.files[segment_name(base)]
        piece = random.choice((bytes(length), random.randbytes(length)))[: SEGMENT_BYTES - (lsn - base)]
        file.write(lsn - base, [piece])
        file.sync()
        try:
            found = start(storage)
        except JournalError:
            refused += 1
            continue
        for name, content in found.content.items():
            assert expected.content[name].startswith(content), f"at {lsn}: {length} bytes"
    assert refused > 50
