"""Live branches relocated: their messages stay what they were, however often they move."""

from pathlib import Path
from random import Random

import pytest

from journal.errors import CorruptJournal, RecordTooLarge
from journal.records.header import Lsn, RecordType
from journal.records.record import PartitionName
from journal.records.xid import LocalKey
from journal.repair.check import check
from journal.state.history import history
from journal.state.inspection import read_checkpoints
from journal.state.journal_state import Branch
from journal.state.live_branch import LiveBranch
from journal.state.relocation import CHUNK_BYTES_MAX, RelocationChunk, Relocator, read_chunk, relocation_chunks
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.scan import Scanner, record_around
from journal.wal.segments import Segments
from journal.wal.storage import DirectoryStorage
from tests.fixtures.faulty_storage import FaultyStorage
from tests.fixtures.journals import ORDERS, SEGMENT_BYTES, STOCK, Index, open_store, xa
from tests.fixtures.raw_journal import opened


@pytest.fixture
def storage() -> FaultyStorage:
    return FaultyStorage(Random(1))


def put(store: JournalTransactionStore, live: LiveBranch, name: PartitionName, data: bytes, count: int = 1) -> None:
    store.transactional_put(live, name, [data], len(data), count)


def fill(store: JournalTransactionStore, index: Index, segments: int, name: PartitionName = STOCK) -> None:
    """Other people's messages, until the journal is so many segments longer."""
    end = store.journal.end + segments * SEGMENT_BYTES
    while store.journal.end < end:
        index.publish_all(store.put(name, [b"x" * 1000], 1000, 1).updates)


def relocate_chunks(store: JournalTransactionStore, planned: list[RelocationChunk]) -> list[RelocationChunk]:
    for chunk in planned:
        assert store.relocate(chunk, read_chunk(store.journal, chunk)) is not None
    return planned


def relocate_all(store: JournalTransactionStore, relocator: Relocator) -> int:
    """Relocate until nothing is due; returns how many records that took."""
    count = 0
    while planned := relocator.next_chunks():
        count += len(relocate_chunks(store, planned))
    return count


def content(store: JournalTransactionStore, branch: Branch) -> dict[PartitionName, bytes]:
    store.journal.wait_flushed(store.journal.end)
    read = store.journal.segments.read
    return {
        name: b"".join(read(extent.lsn, extent.bytes) for extent in extents) for name, extents in branch.extents.items()
    }


def checkpoint(store: JournalTransactionStore) -> None:
    taken = store.snapshot()
    store.on_checkpoint(store.write_checkpoint(taken, {}), taken)


def lowest(store: JournalTransactionStore) -> int:
    return min(
        extent.lsn
        for branch in store.state.branches.values()
        for extents in branch.extents.values()
        for extent in extents
    )


def drop_what_may_go(store: JournalTransactionStore) -> int:
    """Drop segments as retention does: after two checkpoints that cover the move."""
    for _ in range(3):
        checkpoint(store)
    return store.journal.segments.drop_before(min(lowest(store), store.journal.flushed), None)


def in_doubt(store: JournalTransactionStore, name: str, puts: int = 5) -> tuple[Branch, dict[PartitionName, bytes]]:
    live = store.begin(xa(name))
    for number in range(puts):
        put(store, live, ORDERS, b"<orders %s %d>" % (name.encode(), number), 2)
        put(store, live, STOCK, b"<stock %d>" % number)
    store.prepare(live)
    assert live.branch is not None
    return live.branch, content(store, live.branch)


def test_a_branch_in_doubt_follows_the_journals_end_and_commits_what_it_put(storage: FaultyStorage) -> None:
    index = Index()
    store = open_store(storage, sink=index)
    branch, expected = in_doubt(store, "a")
    relocator = Relocator(store.journal, store.state, after_segments=2)
    for _ in range(6):
        fill(store, index, 4)
        relocate_all(store, relocator)
        behind = 2 * SEGMENT_BYTES + 2 * store.state.branches_accounted_bytes
        assert lowest(store) > store.journal.end - behind - 2 * SEGMENT_BYTES
        assert content(store, branch) == expected
        drop_what_may_go(store)
    assert store.journal.start_lsn > branch.first_lsn, "it held the journal back"
    before = {name: store.state.end_of(name) for name in expected}
    result = store.commit(store.find(xa("a")), one_phase=False)
    store.journal.wait_flushed(store.journal.end)
    for name, data in expected.items():
        entries = [one for one in result.updates if one.name == name]
        assert [one.extent.messages for one in entries] == [2 if name == ORDERS else 1] * 5
        assert entries[0].base == before[name]
        assert b"".join(store.journal.segments.read(one.extent.lsn, one.extent.bytes) for one in entries) == data
    store.close()
    assert check(opened(storage), read_checkpoints(storage)).is_sound


def test_a_start_finds_the_branch_whose_records_are_all_gone(storage: FaultyStorage) -> None:
    index = Index()
    store = open_store(storage, sink=index)
    branch, expected = in_doubt(store, "a")
    fill(store, index, 30)
    relocate_all(store, Relocator(store.journal, store.state, after_segments=1))
    assert drop_what_may_go(store) > 20
    kinds = {entry.header.record_type for entry in Scanner(opened(storage), store.journal.start_lsn)}
    assert RecordType.CARRY in kinds
    assert not kinds & {RecordType.TX_PUT, RecordType.PREPARE}
    store.close()
    again = open_store(storage, sink=Index())
    (live,) = again.recover()
    assert live.branch is not None
    assert live.branch.prepared_ms == branch.prepared_ms
    assert content(again, live.branch) == expected
    assert again.rollback(live) == again.journal.end
    again.close()
    assert check(opened(storage), read_checkpoints(storage)).is_sound


@pytest.mark.parametrize("relocated", range(4))
def test_a_relocation_that_was_cut_short_is_done_again_from_the_start(storage: FaultyStorage, relocated: int) -> None:
    index = Index()
    store = open_store(storage, sink=index)
    live = store.begin(xa("a"))
    for number in range(8):
        put(store, live, ORDERS, b"%d" % number * 1500)
    store.prepare(live)
    assert live.branch is not None
    expected = content(store, live.branch)
    fill(store, index, 40)
    planned = Relocator(store.journal, store.state, after_segments=1).next_chunks()
    assert len(planned) == 4
    relocate_chunks(store, planned[:relocated])
    store.close()
    index = Index()
    store = open_store(storage, sink=index)
    (live,) = store.recover()
    assert live.branch is not None
    assert content(store, live.branch) == expected
    begun = store.journal.end
    relocator = Relocator(store.journal, store.state, after_segments=1)
    assert relocator.is_due
    assert relocate_all(store, relocator) == 4
    assert lowest(store) > begun
    assert not relocator.is_due
    assert content(store, live.branch) == expected
    store.close()


def test_the_one_that_is_furthest_behind_goes_first_and_only_once_a_round(storage: FaultyStorage) -> None:
    index = Index()
    store = open_store(storage, sink=index)
    branches = [in_doubt(store, f"b{number}", puts=1)[0] for number in range(10)]
    relocator = Relocator(store.journal, store.state, after_segments=2)
    assert relocator.next_chunks() == []
    assert not relocator.is_due
    fill(store, index, 60)
    planned = relocator.next_chunks()
    assert [chunk.branch for chunk in planned] == [branch for branch in branches for _ in range(2)]
    assert [chunk.is_last for chunk in planned] == [False, True] * 10
    store.rollback(store.find(xa("b3")))
    lsns = [store.relocate(chunk, read_chunk(store.journal, chunk)) for chunk in planned]
    assert [number for number, lsn in enumerate(lsns) if lsn is None] == [6, 7], "it is over"
    assert relocator.next_chunks() == []
    assert list(store.state.branches.values()) == [branch for branch in branches if branch is not branches[3]]
    store.close()


def test_however_much_live_branches_hold_half_of_what_is_written_is_other_peoples(storage: FaultyStorage) -> None:
    """More in doubt than the journal may hold behind them: relocation must not chase its own tail."""
    index = Index()
    store = open_store(storage, sink=index)
    live = store.begin(xa("a"))
    for _ in range(40):
        put(store, live, ORDERS, b"y" * 3000)
    store.prepare(live)
    relocator = Relocator(store.journal, store.state, after_segments=1)
    assert relocate_all(store, relocator) == 0
    copied = others = 0
    for _ in range(40):
        before = store.journal.end
        fill(store, index, 10)
        others += store.journal.end - before
        before = store.journal.end
        relocate_all(store, relocator)
        copied += store.journal.end - before
    assert 0 < copied <= others
    store.close()


def test_what_is_put_during_a_relocation_stays_behind_what_was_there(storage: FaultyStorage) -> None:
    index = Index()
    store = open_store(storage, sink=index)
    live = store.begin(LocalKey("s", 1))
    for number in range(6):
        put(store, live, ORDERS, b"%d" % number * 1500)
    assert live.branch is not None
    fill(store, index, 40)
    relocator = Relocator(store.journal, store.state, after_segments=1)
    planned = relocator.next_chunks()
    for chunk in planned:
        relocate_chunks(store, [chunk])
        put(store, live, ORDERS, b"late")
        put(store, live, STOCK, b"later")
    expected = b"".join(b"%d" % number * 1500 for number in range(6)) + b"late" * len(planned)
    assert content(store, live.branch)[ORDERS] == expected
    published = store.commit(live, one_phase=True).updates
    index.publish_all(published)
    store.journal.wait_flushed(store.journal.end)
    assert index.read(store.journal.segments)[ORDERS] == expected
    # The same is found by who has only the records, from whichever segment on they are left.
    taken = store.snapshot()
    store.on_checkpoint(store.write_checkpoint(taken, {}), taken)
    while len(store.journal.segments) > 2:
        base = [base for base, _ in store.journal.segments][1]
        store.journal.segments.drop_before(base, None)
        known = [one for one in history(store.journal.segments, Lsn(taken.lsn), {ORDERS}) if one in published]
        found = list(history(store.journal.segments, Lsn(taken.lsn), {ORDERS}))
        assert found == known, "an offset that the commit did not give"
        assert known == [one for one in published if one.name == ORDERS and one.extent.lsn > base]
    store.close()


def test_corrupt_messages_are_not_given_a_checksum_that_fits(storage: FaultyStorage) -> None:
    index = Index()
    store = open_store(storage, sink=index)
    branch, _ = in_doubt(store, "a")
    fill(store, index, 40)
    extent = branch.extents[STOCK][2]
    storage.files[f"{extent.lsn // SEGMENT_BYTES * SEGMENT_BYTES:020d}.journal"].cached[extent.lsn % SEGMENT_BYTES] ^= 1
    relocator = Relocator(store.journal, store.state, after_segments=1)
    sound, corrupt = relocator.next_chunks()
    relocate_chunks(store, [sound])
    with pytest.raises(CorruptJournal, match="do not read back"):
        read_chunk(store.journal, corrupt)
    relocator.give_up(branch)
    other, expected = in_doubt(store, "b")
    fill(store, index, 60)
    assert relocator.is_due
    assert {chunk.branch for chunk in relocate_chunks(store, relocator.next_chunks())} == {other}
    assert content(store, other) == expected
    assert not relocator.is_due
    store.close()


def test_the_record_around_a_byte_is_found_from_behind(tmp_path: Path) -> None:
    """Through many blocks of 64 KiB, over bodies that look like headers."""
    storage = DirectoryStorage.open_for_writing(tmp_path)
    store = open_store(storage, segment_bytes=1 << 20)
    live = store.begin(xa("a"))
    for size in (10, 200_000, 65_536, 1):
        lure = b"".join(number.to_bytes(8, "little") for number in range(0, 8 * (size // 8 + 1), 8))
        put(store, live, ORDERS, lure[:size])
    store.journal.wait_flushed(store.journal.end)
    segments = store.journal.segments
    assert live.branch is not None
    for extent in live.branch.extents[ORDERS]:
        for lsn in {extent.lsn, extent.lsn + extent.bytes // 2, extent.lsn + extent.bytes - 1}:
            entry = record_around(segments, lsn)
            assert entry is not None
            header = entry.header
            assert (header.record_type, header.body_lsn, header.body_bytes) == (
                RecordType.TX_PUT,
                extent.lsn,
                extent.bytes,
            )
        assert record_around(segments, extent.lsn - 1) is None, "that is meta"
    assert record_around(segments, store.journal.end) is None
    store.close()
    storage.close()


def test_extents_are_split_into_records_of_bounded_size_and_none_is_split_itself() -> None:
    storage = FaultyStorage(Random(1))
    store = open_store(storage, segment_bytes=1 << 24)
    live = store.begin(xa("a"))
    sizes = [1] * 3000 + [3_000_000, 7, CHUNK_BYTES_MAX - 5000, 400_000, 400_000, 400_000]
    for size in sizes:
        put(store, live, ORDERS, b"z" * size)
    assert live.branch is not None
    cut = list(relocation_chunks(live.branch, store.journal.body_bytes_max))
    assert [extent.bytes for chunk in cut for extent in chunk.extents] == sizes
    assert [chunk.first for chunk in cut] == [0, 3000, 3001, 3003, 3005]
    assert [chunk.position for chunk in cut] == [sum(sizes[: chunk.first]) for chunk in cut]
    assert all(chunk.bytes <= CHUNK_BYTES_MAX or len(chunk.extents) == 1 for chunk in cut)
    store.close()


def test_what_would_not_fit_into_a_relocation_record_is_not_taken_in(storage: FaultyStorage) -> None:
    store = open_store(storage)
    live = store.begin(xa("a"))
    put(store, live, ORDERS, b"1")
    longest = max(size for size in range(3700, 3900) if _is_taken(store, live, size))
    with pytest.raises(RecordTooLarge, match="raise segment_bytes"):
        put(store, live, ORDERS, bytes(longest + 1))
    assert live.branch is not None
    relocate_chunks(store, list(relocation_chunks(live.branch, store.journal.body_bytes_max)))
    store.close()


def _is_taken(store: JournalTransactionStore, live: LiveBranch, size: int) -> bool:
    try:
        put(store, live, ORDERS, bytes(size))
    except RecordTooLarge:
        return False
    return True


def test_segments_can_be_read_from_outside(storage: FaultyStorage) -> None:
    """A journal that begins in the middle of a branch's life is sound to the check: the checkpoint tells."""
    index = Index()
    store = open_store(storage, sink=index)
    in_doubt(store, "a")
    fill(store, index, 40)
    relocate_all(store, Relocator(store.journal, store.state, after_segments=1))
    assert drop_what_may_go(store) > 0
    store.commit(store.find(xa("a")), one_phase=False)
    store.close()
    segments: Segments = opened(storage)
    report = check(segments, read_checkpoints(storage))
    assert report.is_sound
    assert report.prepared == []
    assert any(file.compared for file in report.checkpoints)
