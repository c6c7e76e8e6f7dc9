"""Truncation of a tail the master never had: saved in a file, whole or not begun, and the rest is a valid journal."""

import itertools
from contextlib import suppress
from random import Random
from zlib import crc32

import pytest

from journal.errors import CorruptJournal, InvalidContent, StorageFailed, TruncationTooDeep
from journal.records.epoch_history import divergence_lsn
from journal.records.header import Lsn
from journal.repair.check import check
from journal.repair.tail import tail_of
from journal.state.checkpoint import decode_checkpoint
from journal.state.initial_sync import begin_initial_sync, read_initial_sync
from journal.state.inspection import read_checkpoints
from journal.state.saved_tail import MAGIC, TAIL_HEADER_BYTES, VERSION, DivergentTail, entries_of, list_saved_tails
from journal.state.truncation import clear, truncate
from journal.wal.marks import read_recovery_point, write_recovery_point
from tests.fixtures.copies import copy_of, end_of, feed, image, open_follower, said, stream
from tests.fixtures.faulty_storage import FaultyStorage, MemoryFile, PowerCut
from tests.fixtures.histories import entries_of as records_of
from tests.fixtures.histories import flip, write_history
from tests.fixtures.journals import IDENTITY, ORDERS, SEGMENT_BYTES, open_store
from tests.fixtures.raw_journal import opened

NOW_MS = 1_700_000_000_123


@pytest.fixture(scope="module")
def history() -> FaultyStorage:
    storage = FaultyStorage(Random(1))
    write_history(storage).close()
    return storage


@pytest.fixture
def storage(history: FaultyStorage) -> FaultyStorage:
    return copy_of(history)


def boundaries(storage: FaultyStorage) -> list[int]:
    return [entry.header.end for entry, _ in records_of(storage)]


def cut_file(storage: FaultyStorage, name: str) -> MemoryFile:
    return storage.open(name, writable=False)


def test_every_record_may_be_the_last(history: FaultyStorage) -> None:
    """The kept part and the saved tail together equal the original."""
    before = records_of(history)
    for lsn in boundaries(history):
        storage = copy_of(history)
        made = truncate(storage, IDENTITY, lsn, NOW_MS)
        assert end_of(storage) == lsn
        assert check(opened(storage), read_checkpoints(storage)).is_sound
        kept = [entry.header for entry, _ in records_of(storage)]
        lost = []
        if made is not None:
            ((name, listed),) = list_saved_tails(storage)
            assert (listed, name) == (made, made.name)
            lost = [entry.header for entry in entries_of(cut_file(storage, name), made)]
        assert kept + lost == [entry.header for entry, _ in before]
        store = open_store(storage)
        store.close()
    storage = copy_of(history)
    assert truncate(storage, IDENTITY, end_of(history), NOW_MS) is None
    assert not list_saved_tails(storage)


def test_a_saved_tail_says_what_it_holds(storage: FaultyStorage) -> None:
    whole = tail_of((entry for entry, _ in records_of(storage)), 0)
    lsn = boundaries(storage)[len(boundaries(storage)) // 2]
    made = truncate(storage, IDENTITY, lsn, NOW_MS)
    assert made is not None
    assert (made.identity, made.lsn, made.time_ms) == (IDENTITY, lsn, NOW_MS)
    assert (made.epoch, made.incarnation) == (1, 1)
    tail = tail_of(entries_of(cut_file(storage, made.name), made), made.lsn)
    left = tail_of((entry for entry, _ in records_of(storage)), 0)
    assert left.messages + tail.messages == whole.messages
    assert tail.messages
    assert left.ranges["orders-0"].end == tail.ranges["orders-0"].start
    assert [len(each.prepared.keys) for each in (left, tail, whole)] == [2, 2, 4]


def test_a_checkpoint_beyond_the_truncation_goes_with_it(storage: FaultyStorage) -> None:
    told = decode_checkpoint(storage.blobs["checkpoint.2"])
    truncate(storage, IDENTITY, told.lsn, NOW_MS)
    assert "checkpoint.2" in storage.blobs
    before = max(lsn for lsn in boundaries(storage) if lsn < told.lsn)
    truncate(storage, IDENTITY, before, NOW_MS)
    assert sorted(storage.blobs) == ["checkpoint.1"]


def test_a_former_master_gets_the_bytes_of_the_new_one(storage: FaultyStorage) -> None:
    """Both go on from the same record, each for itself; then one of them is a copy of the other."""
    shared = boundaries(storage)[-20]
    new = copy_of(storage)
    truncate(new, IDENTITY, shared, NOW_MS)  # where the new master had received the stream up to
    for each, what in ((storage, b"old"), (new, b"new")):
        store = open_store(each)
        for _ in range(30):
            store.put(ORDERS, [what * 50], 150, 1)
        store.close()
    mine, theirs = open_follower(storage), open_follower(copy_of(new))
    # The new master's epoch would be higher; without it only the place where the life began tells them apart.
    parts_at = divergence_lsn(mine.epoch_history, mine.end, theirs.epoch_history, theirs.end)
    mine.close()
    theirs.close()
    assert parts_at == shared
    assert truncate(storage, IDENTITY, shared, NOW_MS) is not None
    follower = open_follower(storage)
    assert follower.end == shared
    feed(follower, stream(new, shared, Random(0)))
    follower.close()
    assert image(storage) == image(new)
    assert [name for name in storage.files if name.startswith("cut.")]


@pytest.mark.parametrize("deep", [True, False])
def test_a_truncation_that_crashes_anywhere_is_whole_or_was_not_begun(history: FaultyStorage, deep: bool) -> None:
    ends = boundaries(history)
    lsn, end = ends[len(ends) // 3 if deep else -3], ends[-1]
    for nth in itertools.count():
        storage = copy_of(history)
        storage.fail_at = nth + len(storage.calls)
        with suppress(StorageFailed):
            truncate(storage, IDENTITY, lsn, NOW_MS)
        for power in PowerCut:
            after = storage.after_power_cut(power, Random(nth))
            follower = open_follower(after)
            assert follower.end in (lsn, end), f"fail_at={nth} power={power.name}"
            if follower.end == lsn:
                ((name, made),) = list_saved_tails(after)
                assert isinstance(made, DivergentTail)
                assert len([*entries_of(cut_file(after, name), made)]) == len([one for one in ends if one > lsn])
            state = said(follower.state)
            follower.close()
            assert check(opened(after), read_checkpoints(after)).is_sound
            if end == follower.end:
                truncate(after, IDENTITY, lsn, NOW_MS)
            feed(again := open_follower(after), stream(history, lsn, Random(0)))
            again.close()
            assert image(after) == image(history)
            assert state.lsn in (lsn, end)
        if not storage.fault_fired:
            break
    assert nth > 15


def test_what_could_not_be_opened_is_not_cut(storage: FaultyStorage) -> None:
    store = open_store(storage)
    store.journal.segments.drop_before(SEGMENT_BYTES, None)
    store.close()
    told = decode_checkpoint(storage.blobs["checkpoint.1"])
    assert told.lsn > SEGMENT_BYTES
    before, files = dict(storage.blobs), image(storage)
    too_deep = max(lsn for lsn in boundaries(storage) if lsn < told.lsn)
    for lsn in (too_deep, 200):
        with pytest.raises(TruncationTooDeep, match="no checkpoint of it or before"):
            truncate(storage, IDENTITY, lsn, NOW_MS)
    assert (storage.blobs, image(storage)) == (before, files)


@pytest.mark.parametrize("off", [-8, 8])
def test_a_truncation_in_the_middle_of_a_record_is_refused(storage: FaultyStorage, off: int) -> None:
    files = image(storage)
    with pytest.raises(CorruptJournal, match="no record ends there"):
        truncate(storage, IDENTITY, boundaries(storage)[20] + off, NOW_MS)
    assert image(storage) == files


@pytest.mark.parametrize("save", [True, False])
def test_an_emptied_directory_is_one_to_begin_in(history: FaultyStorage, save: bool) -> None:
    """Emptied at every storage call, and the power goes; then a copy begins in it."""
    ends = boundaries(history)
    save_from = ends[-10] if save else None
    raw = history.blobs["checkpoint.2"]
    for nth in itertools.count():
        storage = copy_of(history)
        storage.fail_at = nth + len(storage.calls)
        with suppress(StorageFailed):
            clear(storage, IDENTITY, save_from, NOW_MS)
        after = storage.after_power_cut(PowerCut.SHUFFLED, Random(nth))
        follower = open_follower(after)
        assert follower.end in (0, ends[-1])
        follower.close()
        made = clear(after, IDENTITY, save_from, NOW_MS)
        assert made is None or made.lsn == save_from
        assert len(list_saved_tails(after)) == save
        begin_initial_sync(after, 0, raw)
        copying = open_follower(after)
        feed(copying, stream(history, 0, Random(0)))
        copying.close()
        assert image(after) == image(history)
        assert read_initial_sync(after) is None
        if not storage.fault_fired:
            break
    assert nth > 5


def test_a_damaged_saved_tail_says_so(storage: FaultyStorage) -> None:
    made = truncate(storage, IDENTITY, boundaries(storage)[-9], NOW_MS)
    assert made is not None
    storage.files[made.name].cached[TAIL_HEADER_BYTES + 70] ^= 1
    with pytest.raises(StorageFailed, match=f"{made.name}: LSN {made.lsn}"):
        list(entries_of(cut_file(storage, made.name), made))
    storage.files[made.name].cached[20] ^= 1
    ((name, found),) = list_saved_tails(storage)
    assert (name, str(found)) == (made.name, "header checksum")


def test_a_damaged_truncation_note_is_corruption(storage: FaultyStorage) -> None:
    storage.blobs["cutting"] = b"00000000 200\n"
    with pytest.raises(CorruptJournal, match="cutting does not read back"):
        open_follower(storage)


def test_names_and_headers_both_ways() -> None:
    made = DivergentTail(IDENTITY, Lsn(4096), Lsn(9000), Lsn(8192), 3, 4, NOW_MS)
    raw = made.pack()
    assert DivergentTail.unpack(raw, 5032) == made
    assert made.name == "cut.4096-9000.3"
    with pytest.raises(InvalidContent, match="5031 bytes, not 5032"):
        DivergentTail.unpack(raw, 5031)
    with pytest.raises(InvalidContent, match="no header of a cut"):
        DivergentTail.unpack(raw[:100], 5032)


def test_a_tail_of_a_newer_metaq_is_left_alone() -> None:
    raw = bytearray(DivergentTail(IDENTITY, Lsn(4096), Lsn(9000), Lsn(8192), 3, 4, NOW_MS).pack())
    raw[len(MAGIC)] += 1
    raw[-4:] = crc32(raw[:-4]).to_bytes(4, "little")
    with pytest.raises(InvalidContent, match=f"format {VERSION + 1}, this metaq reads {VERSION}"):
        DivergentTail.unpack(bytes(raw), 5032)


def test_there_is_nothing_to_truncate_beyond_the_last_segment(storage: FaultyStorage) -> None:
    before = image(storage)
    assert truncate(storage, IDENTITY, opened(storage).end, NOW_MS) is None
    assert truncate(FaultyStorage(Random(0)), IDENTITY, 128, NOW_MS) is None
    assert image(storage) == before


def test_a_tail_with_corruption_in_it_is_not_truncated(storage: FaultyStorage) -> None:
    *_, kept, _, corrupt, _ = (entry.header for entry, _ in records_of(storage))
    flip(storage, corrupt.lsn)
    before = image(storage)
    with pytest.raises(CorruptJournal, match="header checksum"):
        truncate(storage, IDENTITY, kept.end, NOW_MS)
    assert image(storage) == before


def test_a_recovery_point_does_not_stay_beyond_the_end(storage: FaultyStorage) -> None:
    lsn = boundaries(storage)[-9]
    write_recovery_point(storage, end_of(storage))
    truncate(storage, IDENTITY, lsn, NOW_MS)
    assert read_recovery_point(storage) == lsn
