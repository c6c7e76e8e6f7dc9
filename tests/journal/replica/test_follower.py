"""A copy of a master's journal: the same bytes, the same state, the same index, however the stream is cut."""

import itertools
import tracemalloc
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from journal.errors import CorruptJournal, StorageFailed
from journal.records.header import RecordType
from journal.records.heuristics import HeuristicDecision
from journal.repair.check import check
from journal.repair.repair import apply_repair, plan_repair
from journal.state.inspection import read_checkpoints
from journal.wal.flush_mode import SYNC, FlushMode
from journal.wal.marks import write_recovery_point
from journal.wal.open_journal import MIB
from journal.wal.scan import EndVerdict
from journal.wal.segments import segment_name
from journal.wal.storage import DirectoryStorage
from tests.fixtures.copies import copy_of, feed, image, open_follower, said, stream
from tests.fixtures.faulty_storage import FaultyStorage, PowerCut
from tests.fixtures.histories import entries_of, write_history
from tests.fixtures.journals import INTERVAL, ORDERS, SEGMENT_BYTES, Index, open_store, xa
from tests.fixtures.raw_journal import opened


@pytest.fixture
def master() -> FaultyStorage:
    storage = FaultyStorage(Random(1))
    write_history(storage).close()
    return storage


@pytest.mark.parametrize("flush", [SYNC, INTERVAL], ids=["sync", "interval"])
@pytest.mark.parametrize("bytes_max", [1, 100, 900, 100_000])
def test_a_copy_is_the_journal_byte_by_byte(master: FaultyStorage, flush: FlushMode, bytes_max: int) -> None:
    index, storage = Index(), FaultyStorage(Random(2))
    follower = open_follower(storage, flush=flush)
    feed(follower, stream(master, follower.end, Random(3), bytes_max), index)
    follower.journal.wait_flushed(follower.end)
    follower.close()
    assert image(storage) == image(master)
    again, mine = open_follower(storage, sink=(found := Index())), said(follower.state)
    assert said(again.state) == mine
    assert found.entries == index.entries
    again.close()
    assert image(storage) == image(master)


def test_segments_have_the_master_s_size_not_the_configured_one(master: FaultyStorage) -> None:
    storage = FaultyStorage(Random(0))
    follower = open_follower(storage, segment_bytes=64 * 4096)
    feed(follower, stream(master, 0, Random(1)))
    follower.close()
    assert image(storage) == image(master)


def test_a_copy_takes_checkpoints_of_its_own_and_adds_no_record(master: FaultyStorage) -> None:
    storage, index = FaultyStorage(Random(0)), Index()
    follower = open_follower(storage, sink=index)
    for count, (lsn, data) in enumerate(stream(master, 0, Random(1), 3000)):
        feed(follower, iter([(lsn, data)]), index)
        if follower.end and count % 2:
            taken = follower.snapshot()
            follower.on_checkpoint(follower.write_checkpoint(taken, {}), taken)
            assert follower.checkpoint_lsn == follower.state.lsn
    assert max(storage.blobs) > "checkpoint.3"
    state = said(follower.state)
    follower.close()
    assert image(storage) == image(master)
    report = check(opened(storage), read_checkpoints(storage))
    assert report.is_sound
    assert [file.compared for file in report.checkpoints] == [True] * 3
    again = open_follower(storage, sink=(found := Index()))
    assert said(again.state) == state
    assert found.entries == index.entries
    assert again.recovered.replayed_records < 20
    again.close()


@pytest.mark.parametrize("decision", [HeuristicDecision.COMMIT, HeuristicDecision.ROLLBACK])
def test_a_checkpoint_between_a_decision_and_what_does_it_keeps_the_decision(decision: HeuristicDecision) -> None:
    """A master appends both at once; its copy may have got one of them when it takes a checkpoint."""
    source, storage = FaultyStorage(Random(1)), FaultyStorage(Random(0))
    store = open_store(source)
    branch = store.begin(xa("order"))
    store.transactional_put(branch, ORDERS, [b"x" * 100], 100, 1)
    _, prepared = store.prepare(branch)
    store.end_heuristically(branch, decision, "ann", "to see")
    store.close()
    (decided,) = [entry.header for entry, _ in entries_of(source) if entry.header.record_type == RecordType.HEURISTIC]
    follower = open_follower(storage)
    feed(follower, ((lsn, data[: decided.end - lsn]) for lsn, data in stream(source, 0, Random(1), 100_000)))
    assert follower.end == decided.end > prepared
    follower.write_checkpoint(follower.snapshot(), {})
    state = said(follower.state)
    assert state.branches[0].decision is decision
    follower.close()
    again = open_follower(storage)
    assert said(again.state) == state
    again.close()
    assert check(opened(storage), read_checkpoints(storage)).is_sound
    promoted = open_store(storage)
    assert not promoted.state.branches
    assert promoted.state.end_of(ORDERS) == (100 if decision is HeuristicDecision.COMMIT else 0)
    promoted.close()


def torn() -> FaultyStorage:
    """A copy of many records that were fsynced by their writer one by one, received at once, when the power went."""
    master, storage = FaultyStorage(Random(1)), FaultyStorage(Random(4))
    store = open_store(master, segment_bytes=16 * 4096)
    for number in range(60):
        store.put(ORDERS, [b"%03d" % number * 200], 600, 1)
        store.journal.wait_flushed(store.journal.end)
    store.close()
    follower = open_follower(storage, segment_bytes=16 * 4096)
    pieces = list(stream(master, 0, Random(1), 100_000))
    feed(follower, iter([(0, pieces[0][1][:8000])]))
    follower.journal.wait_flushed(follower.end)
    storage.hold()
    feed(follower, iter([(8000, pieces[0][1][8000:])]))
    storage.wait_blocked()
    after = storage.after_power_cut(PowerCut.SHUFFLED, Random(4))
    with suppress(StorageFailed):
        follower.close()
    return after


def test_a_torn_copy_is_not_taken_for_a_corrupt_one() -> None:
    """A copy's records name bytes that were fsynced on another disk."""
    storage = torn()
    unmarked = copy_of(storage)
    del unmarked.blobs["copy"]
    assert check(opened(unmarked), {}).verdict is EndVerdict.CORRUPT
    assert check(opened(storage), {}).verdict is EndVerdict.TORN
    follower = open_follower(copy_of(storage))
    assert 0 < follower.end < 60 * 600
    follower.close()
    store = open_store(storage)  # a promotion
    assert "copy" not in storage.blobs
    store.close()


def test_what_was_fsynced_and_does_not_read_back_is_corruption_in_a_copy_too(master: FaultyStorage) -> None:
    storage = torn()
    file = storage.files[segment_name(0)]
    for content in (file.durable, file.cached):
        content[300] ^= 1  # below the mark
    write_recovery_point(storage, 4000)
    with pytest.raises(CorruptJournal):
        open_follower(storage)
    storage.blobs["copy"] = b"damaged\n"  # then nothing is known, and less counts as corruption
    follower = open_follower(storage)
    assert follower.end < 300
    follower.close()


def test_memory_does_not_grow_with_what_was_received(tmp_path: Path) -> None:
    """Forty megabytes, in records of two, cost no more than what waits for the disk and one record."""
    size, piece = 2 * MIB, MIB // 4
    directories = [DirectoryStorage.open_for_writing(tmp_path / name) for name in ("master", "copy")]
    store = open_store(directories[0], segment_bytes=16 * MIB)
    for _ in range(20):
        store.put(ORDERS, [b"x" * size], size, 1)
        store.journal.wait_flushed(store.journal.end)
    end = store.journal.end
    follower = open_follower(directories[1], segment_bytes=16 * MIB)
    tracemalloc.start()
    lsn = highest = 0
    while lsn < end:
        base, file = store.journal.segments.locate(lsn)
        stop = min(lsn + piece, base + file.size, end)
        follower.receive(lsn, file.reader().read(lsn - base, stop - lsn))
        lsn = stop
        if follower.journal.queued_bytes > 2 * size:
            follower.journal.wait_flushed(follower.end)
    highest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert highest < 8 * size
    follower.journal.wait_flushed(follower.end)
    follower.close()
    store.close()
    for directory in directories:
        directory.close()
    for path in (tmp_path / "master").glob("*.journal"):
        assert path.read_bytes() == (tmp_path / "copy" / path.name).read_bytes()


def test_what_is_above_a_position_is_kept_back_and_nothing_else(master: FaultyStorage) -> None:
    storage = FaultyStorage(Random(0))
    follower = open_follower(storage)
    told = feed(follower, stream(master, 0, Random(1), 3000))
    follower.close()
    ends = sorted({one.lsn for one in told})
    for publish_below in (0, *ends[:: len(ends) // 7], ends[-1] - 1, ends[-1], ends[-1] + 1):
        index = Index()
        again = open_follower(storage, sink=index, publish_below=publish_below)
        kept = [one for one in told if one.lsn > publish_below]
        assert [(one.lsn, list(one.updates), one.change) for one in again.waiting] == [
            (one.lsn, list(one.updates), one.change) for one in kept
        ]
        shown = Index()
        for one in told:
            if one.lsn <= publish_below:
                shown.publish_all(one.updates)
        assert index.entries == shown.entries
        again.close()


def test_a_copy_of_a_repaired_journal_takes_no_checkpoint_while_anything_is_open(master: FaultyStorage) -> None:
    source, storage = copy_of(master), FaultyStorage(Random(0))
    lost = [entry.header for entry, _ in entries_of(source) if entry.header.record_type == RecordType.PUT][1]
    file = source.files[segment_name(0)] if lost.lsn < SEGMENT_BYTES else source.files[segment_name(SEGMENT_BYTES)]
    file.cached[lost.body_lsn % SEGMENT_BYTES] ^= 1
    segments = opened(source)
    plan = plan_repair(segments, read_checkpoints(source), None)
    apply_repair(plan, segments, None)
    segments.close()
    open_store(source).close()  # says where partitions go on
    follower, seen = open_follower(storage), set[bool]()
    while pieces := list(stream(source, follower.end, Random(1), 1000)):
        feed(follower, iter(pieces[:6]))
        seen.add(follower.is_complete)
        if follower.is_complete and follower.end:
            follower.write_checkpoint(follower.snapshot(), {})
        state = said(follower.state)
        follower.close()
        follower = open_follower(storage)  # held bytes are gone, and come again
        assert said(follower.state) == state
    assert seen == {True, False}
    assert follower.is_complete
    follower.close()
    assert image(storage) == image(source)


def test_what_comes_while_the_disk_is_busy_is_written_in_batches(
    master: FaultyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("journal.replica.replica_appender.ReplicaAppender.batch_bytes_max", 2000)
    storage = FaultyStorage(Random(2))
    follower = open_follower(storage)
    pieces = stream(master, 0, Random(3))
    feed(follower, itertools.islice(pieces, 1))
    storage.hold()
    feed(follower, itertools.islice(pieces, 3))
    storage.wait_blocked()
    feed(follower, pieces)
    assert follower.journal.queued_bytes > 4000
    storage.let_go()
    follower.journal.wait_flushed(follower.end)
    follower.close()
    assert image(storage) == image(master)
