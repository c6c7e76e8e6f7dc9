"""Live branches carried forward: their messages stay what they were, however often they move."""

from pathlib import Path
from random import Random

import pytest

from journal.carrying import PIECE_BYTES_MAX, Carrying, Piece, copies, pieces
from journal.check import check
from journal.errors import RecordTooLarge, RottenJournal
from journal.fold import Branch
from journal.frame import Kind, Lsn
from journal.history import history
from journal.inspection import read_checkpoints
from journal.records import PartitionName
from journal.scan import Scanner, record_around
from journal.segments import Segments
from journal.storage import DirectoryStorage
from journal.transaction_store import JournalTransactionStore, Transaction
from journal.xid import LocalKey
from tests.fixtures.faulty_storage import FaultyStorage
from tests.fixtures.journals import ORDERS, SEGMENT_BYTES, STOCK, Index, open_store, xa
from tests.fixtures.raw_journal import opened


@pytest.fixture
def storage() -> FaultyStorage:
    return FaultyStorage(Random(1))


def put(store: JournalTransactionStore, live: Transaction, name: PartitionName, data: bytes, count: int = 1) -> None:
    store.transactional_put(live, name, [data], len(data), count)


def fill(store: JournalTransactionStore, index: Index, segments: int, name: PartitionName = STOCK) -> None:
    """Other people's messages, until the journal is so many segments longer."""
    end = store.journal.end + segments * SEGMENT_BYTES
    while store.journal.end < end:
        index.publish_all(store.put(name, [b"x" * 1000], 1000, 1).publications)


def carry(store: JournalTransactionStore, planned: list[Piece]) -> list[Piece]:
    for piece in planned:
        assert store.carry(piece, copies(store.journal, piece)) is not None
    return planned


def carry_all(store: JournalTransactionStore, carrying: Carrying) -> int:
    """Carry until nothing is due; returns how many records that took."""
    count = 0
    while planned := carrying.next_pieces():
        count += len(carry(store, planned))
    return count


def content(store: JournalTransactionStore, branch: Branch) -> dict[PartitionName, bytes]:
    store.journal.wait_flushed(store.journal.end)
    read = store.journal.read
    return {name: b"".join(read(run.lsn, run.bytes) for run in runs) for name, runs in branch.runs.items()}


def checkpoint(store: JournalTransactionStore) -> None:
    taken = store.snapshot()
    store.note_checkpoint(store.write_checkpoint(taken, {}), taken)


def lowest(store: JournalTransactionStore) -> int:
    return min(run.lsn for branch in store.state.branches.values() for runs in branch.runs.values() for run in runs)


def drop_what_may_go(store: JournalTransactionStore) -> int:
    """As retention does: two checkpoints that know it, then the segments."""
    for _ in range(3):
        checkpoint(store)
    return store.journal.drop_before(min(lowest(store), store.journal.flushed), None)


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
    carrying = Carrying(store.journal, store.state, after_segments=2)
    for _ in range(6):
        fill(store, index, 4)
        carry_all(store, carrying)
        behind = 2 * SEGMENT_BYTES + 2 * store.state.branches_weight
        assert lowest(store) > store.journal.end - behind - 2 * SEGMENT_BYTES
        assert content(store, branch) == expected
        drop_what_may_go(store)
    assert store.journal.start_lsn > branch.first_lsn, "it held the journal back"
    before = {name: store.state.end_of(name) for name in expected}
    done = store.commit(store.find(xa("a")), one_phase=False)
    store.journal.wait_flushed(store.journal.end)
    for name, data in expected.items():
        entries = [one for one in done.publications if one.name == name]
        assert [one.run.messages for one in entries] == [2 if name == ORDERS else 1] * 5
        assert entries[0].base == before[name]
        assert b"".join(store.journal.read(one.run.lsn, one.run.bytes) for one in entries) == data
    store.close()
    assert check(opened(storage), read_checkpoints(storage)).is_sound


def test_a_start_finds_the_branch_whose_records_are_all_gone(storage: FaultyStorage) -> None:
    index = Index()
    store = open_store(storage, sink=index)
    branch, expected = in_doubt(store, "a")
    fill(store, index, 30)
    carry_all(store, Carrying(store.journal, store.state, after_segments=1))
    assert drop_what_may_go(store) > 20
    kinds = {entry.header.kind for entry in Scanner(opened(storage), store.journal.start_lsn)}
    assert Kind.CARRY in kinds
    assert not kinds & {Kind.TX_PUT, Kind.PREPARE}
    store.close()
    again = open_store(storage, sink=Index())
    (live,) = again.recover()
    assert live.branch is not None
    assert live.branch.prepared_ms == branch.prepared_ms
    assert content(again, live.branch) == expected
    assert again.rollback(live) == again.journal.end
    again.close()
    assert check(opened(storage), read_checkpoints(storage)).is_sound


@pytest.mark.parametrize("carried", range(4))
def test_a_carry_that_was_cut_short_is_done_again_from_the_start(storage: FaultyStorage, carried: int) -> None:
    index = Index()
    store = open_store(storage, sink=index)
    live = store.begin(xa("a"))
    for number in range(8):
        put(store, live, ORDERS, b"%d" % number * 1500)
    store.prepare(live)
    assert live.branch is not None
    expected = content(store, live.branch)
    fill(store, index, 40)
    planned = Carrying(store.journal, store.state, after_segments=1).next_pieces()
    assert len(planned) == 4
    carry(store, planned[:carried])
    store.close()
    index = Index()
    store = open_store(storage, sink=index)
    (live,) = store.recover()
    assert live.branch is not None
    assert content(store, live.branch) == expected
    begun = store.journal.end
    carrying = Carrying(store.journal, store.state, after_segments=1)
    assert carrying.is_due
    assert carry_all(store, carrying) == 4
    assert lowest(store) > begun
    assert not carrying.is_due
    assert content(store, live.branch) == expected
    store.close()


def test_the_one_that_is_furthest_behind_goes_first_and_only_once_a_round(storage: FaultyStorage) -> None:
    index = Index()
    store = open_store(storage, sink=index)
    branches = [in_doubt(store, f"b{number}", puts=1)[0] for number in range(10)]
    carrying = Carrying(store.journal, store.state, after_segments=2)
    assert carrying.next_pieces() == []
    assert not carrying.is_due
    fill(store, index, 60)
    planned = carrying.next_pieces()
    assert [piece.branch for piece in planned] == [branch for branch in branches for _ in range(2)]
    assert [piece.is_last for piece in planned] == [False, True] * 10
    store.rollback(store.find(xa("b3")))
    lsns = [store.carry(piece, copies(store.journal, piece)) for piece in planned]
    assert [number for number, lsn in enumerate(lsns) if lsn is None] == [6, 7], "it is over"
    assert carrying.next_pieces() == []
    assert list(store.state.branches.values()) == [branch for branch in branches if branch is not branches[3]]
    store.close()


def test_however_much_live_branches_hold_half_of_what_is_written_is_other_peoples(storage: FaultyStorage) -> None:
    """More in doubt than the journal may hold behind them: carrying must not chase its own tail."""
    index = Index()
    store = open_store(storage, sink=index)
    live = store.begin(xa("a"))
    for _ in range(40):
        put(store, live, ORDERS, b"y" * 3000)
    store.prepare(live)
    carrying = Carrying(store.journal, store.state, after_segments=1)
    assert carry_all(store, carrying) == 0
    copied = others = 0
    for _ in range(40):
        before = store.journal.end
        fill(store, index, 10)
        others += store.journal.end - before
        before = store.journal.end
        carry_all(store, carrying)
        copied += store.journal.end - before
    assert 0 < copied <= others
    store.close()


def test_what_is_put_while_it_is_carried_stays_behind_what_was_there(storage: FaultyStorage) -> None:
    index = Index()
    store = open_store(storage, sink=index)
    live = store.begin(LocalKey("s", 1))
    for number in range(6):
        put(store, live, ORDERS, b"%d" % number * 1500)
    assert live.branch is not None
    fill(store, index, 40)
    carrying = Carrying(store.journal, store.state, after_segments=1)
    planned = carrying.next_pieces()
    for piece in planned:
        carry(store, [piece])
        put(store, live, ORDERS, b"late")
        put(store, live, STOCK, b"later")
    expected = b"".join(b"%d" % number * 1500 for number in range(6)) + b"late" * len(planned)
    assert content(store, live.branch)[ORDERS] == expected
    published = store.commit(live, one_phase=True).publications
    index.publish_all(published)
    store.journal.wait_flushed(store.journal.end)
    assert index.read(store.journal.segments)[ORDERS] == expected
    # The same is found by who has only the records, from whichever segment on they are left.
    taken = store.snapshot()
    store.note_checkpoint(store.write_checkpoint(taken, {}), taken)
    while len(store.journal.segments) > 2:
        base = [base for base, _ in store.journal.segments][1]
        store.journal.drop_before(base, None)
        known = [one for one in history(store.journal.segments, Lsn(taken.lsn), {ORDERS}) if one in published]
        found = list(history(store.journal.segments, Lsn(taken.lsn), {ORDERS}))
        assert found == known, "an offset that the commit did not give"
        assert known == [one for one in published if one.name == ORDERS and one.run.lsn > base]
    store.close()


def test_rotten_messages_are_not_given_a_checksum_that_fits(storage: FaultyStorage) -> None:
    index = Index()
    store = open_store(storage, sink=index)
    branch, _ = in_doubt(store, "a")
    fill(store, index, 40)
    run = branch.runs[STOCK][2]
    storage.files[f"{run.lsn // SEGMENT_BYTES * SEGMENT_BYTES:020d}.journal"].cached[run.lsn % SEGMENT_BYTES] ^= 1
    carrying = Carrying(store.journal, store.state, after_segments=1)
    sound, rotten = carrying.next_pieces()
    carry(store, [sound])
    with pytest.raises(RottenJournal, match="do not read back"):
        copies(store.journal, rotten)
    carrying.give_up(branch)
    other, expected = in_doubt(store, "b")
    fill(store, index, 60)
    assert carrying.is_due
    assert {piece.branch for piece in carry(store, carrying.next_pieces())} == {other}
    assert content(store, other) == expected
    assert not carrying.is_due
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
    for run in live.branch.runs[ORDERS]:
        for lsn in {run.lsn, run.lsn + run.bytes // 2, run.lsn + run.bytes - 1}:
            entry = record_around(segments, lsn)
            assert entry is not None
            header = entry.header
            assert (header.kind, header.body_lsn, header.body_bytes) == (Kind.TX_PUT, run.lsn, run.bytes)
        assert record_around(segments, run.lsn - 1) is None, "that is meta"
    assert record_around(segments, store.journal.end) is None
    store.close()
    storage.close()


def test_runs_are_cut_into_records_of_bounded_size_and_none_is_cut_itself() -> None:
    storage = FaultyStorage(Random(1))
    store = open_store(storage, segment_bytes=1 << 24)
    live = store.begin(xa("a"))
    sizes = [1] * 3000 + [3_000_000, 7, PIECE_BYTES_MAX - 5000, 400_000, 400_000, 400_000]
    for size in sizes:
        put(store, live, ORDERS, b"z" * size)
    assert live.branch is not None
    cut = list(pieces(live.branch, store.journal.body_bytes_max))
    assert [run.bytes for piece in cut for run in piece.runs] == sizes
    assert [piece.first for piece in cut] == [0, 3000, 3001, 3003, 3005]
    assert [piece.position for piece in cut] == [sum(sizes[: piece.first]) for piece in cut]
    assert all(piece.bytes <= PIECE_BYTES_MAX or len(piece.runs) == 1 for piece in cut)
    store.close()


def test_what_would_not_fit_into_a_carry_is_not_taken_in(storage: FaultyStorage) -> None:
    store = open_store(storage)
    live = store.begin(xa("a"))
    put(store, live, ORDERS, b"1")
    longest = max(size for size in range(3700, 3900) if _is_taken(store, live, size))
    with pytest.raises(RecordTooLarge, match="raise segment_bytes"):
        put(store, live, ORDERS, bytes(longest + 1))
    assert live.branch is not None
    carry(store, list(pieces(live.branch, store.journal.body_bytes_max)))
    store.close()


def _is_taken(store: JournalTransactionStore, live: Transaction, size: int) -> bool:
    try:
        put(store, live, ORDERS, bytes(size))
    except RecordTooLarge:
        return False
    return True


def test_segments_can_be_read_by_who_comes_from_outside(storage: FaultyStorage) -> None:
    """A journal that begins in the middle of a branch's life is sound to the check: the checkpoint tells."""
    index = Index()
    store = open_store(storage, sink=index)
    in_doubt(store, "a")
    fill(store, index, 40)
    carry_all(store, Carrying(store.journal, store.state, after_segments=1))
    assert drop_what_may_go(store) > 0
    store.commit(store.find(xa("a")), one_phase=False)
    store.close()
    segments: Segments = opened(storage)
    report = check(segments, read_checkpoints(storage))
    assert report.is_sound
    assert report.prepared == []
    assert any(file.compared for file in report.checkpoints)
