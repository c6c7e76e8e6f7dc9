"""A snapshot that is made piece by piece, against the checkpoint of the moment it was begun."""

from collections.abc import Iterator
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.checksum import crc32
from journal.records.heuristics import HeuristicDecision
from journal.records.producer_state import BatchSequence
from journal.state import checkpoint, extent_entries
from journal.state.checkpoint import (
    BranchEntry,
    Checkpoint,
    PartitionEntry,
    checkpoint_of,
    decode_checkpoint,
    encode_checkpoint,
)
from journal.state.extent_entries import ENTRIES_AT_ONCE, ExtentEntries, ExtentEntry
from journal.state.live_branch import LiveBranch
from journal.state.relocation import read_chunk, relocation_chunks
from journal.state.transaction_store import JournalTransactionStore
from tests.fixtures.faulty_storage import FaultyStorage
from tests.fixtures.journals import ORDERS, STOCK, open_store, xa


@pytest.fixture(autouse=True, params=[ENTRIES_AT_ONCE, 1])
def large(request: pytest.FixtureRequest) -> Iterator[None]:
    """A branch with more messages than this keeps its runs as numbers until they are written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extent_entries, "ENTRIES_AT_ONCE", request.param)
        patch.setattr(checkpoint, "ENTRIES_AT_ONCE", request.param)
        yield


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "put", "prepare", "commit", "rollback", "relocate", "batch", "piece"]),
        st.integers(0, 30),
    ),
    max_size=60,
)


def step(store: JournalTransactionStore, live: list[LiveBranch], what: str, choice: int) -> None:
    """One verb on one of the live branches, if it is legal there; or a numbered batch of one of a few producers."""
    if what == "batch":
        producer = f"p{choice % 5}"
        window = dict(store.state.producers).get((producer, *ORDERS), ())
        sequence = BatchSequence(producer, window[-1].number + 1 if window else 1)
        store.put_batch(ORDERS, [b"batch"], 5, 1, choice, sequence)
        return
    if what == "begin" or not live:
        live.append(store.begin(xa(f"g{store.journal.end}")))
        store.transactional_put(live[-1], ORDERS, [b"first"], 5, 1)
        return
    branch = live[choice % len(live)]
    is_prepared = branch.branch is not None and bool(branch.branch.prepared_ms)
    if what == "put" and not is_prepared:
        store.transactional_put(branch, STOCK if choice % 2 else ORDERS, [b"more"], 4, 2)
    elif what == "prepare" and not is_prepared:
        store.prepare(branch)
    elif what == "relocate" and branch.branch is not None:
        for chunk in relocation_chunks(branch.branch, store.journal.body_bytes_max):
            assert store.relocate(chunk, read_chunk(store.journal, chunk)) is not None
    elif what in ("commit", "rollback"):
        live.remove(branch)
        if what == "rollback":
            store.rollback(branch)
        else:
            store.commit(branch, one_phase=not is_prepared)


@settings(deadline=None)
@given(before=STEPS, after=STEPS, at_once=st.integers(1, 4))
def test_it_is_what_was_there_when_it_began(
    before: list[tuple[str, int]], after: list[tuple[str, int]], at_once: int
) -> None:
    store, live = open_store(FaultyStorage(Random(0))), list[LiveBranch]()
    try:
        for what, choice in before:
            step(store, live, what, choice)
        expected = checkpoint_of(store.state, {})
        snapshot = store.begin_snapshot()
        assert store.checkpoint_lsn == snapshot.lsn == expected.lsn
        for what, choice in after:
            if what == "piece":
                snapshot.step(at_once)
            else:
                step(store, live, what, choice)
        taken = snapshot.checkpoint()
        assert taken == expected
        assert decode_checkpoint(encode_checkpoint(taken)) == expected
        assert store.state.before_change is None
        assert store.snapshot() == checkpoint_of(store.state, {})
    finally:
        store.close()


def test_what_is_remembered_of_producers_is_written_down_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(FaultyStorage(Random(0)))
    for number in range(20):
        step(store, [], "batch", number)
    snapshot = store.begin_snapshot()
    assert [snapshot.step(2) for _ in range(3)] == [True, True, False]  # five producers, and no branch
    monkeypatch.setattr("journal.state.snapshot.ITEMS_AT_ONCE", 2)
    whole = store.begin_snapshot()
    assert len(whole.checkpoint().batches) == 5, "what no step has taken is taken at the end"
    store.close()


def test_a_decision_by_hand_does_not_reach_back() -> None:
    store = open_store(FaultyStorage(Random(0)))
    branches = [store.begin(xa(name)) for name in "ab"]
    for branch in branches:
        store.transactional_put(branch, ORDERS, [b"hello"], 5, 1)
        store.prepare(branch)
    expected = checkpoint_of(store.state, {})
    snapshot = store.begin_snapshot()
    assert snapshot.step(1)
    for branch, decision in zip(branches, (HeuristicDecision.COMPLETE, HeuristicDecision.COMMIT), strict=True):
        store.end_heuristically(branch, decision, "me", "a test")
    assert snapshot.checkpoint() == expected
    assert len(expected.branches) == 2
    assert expected.heuristics == []
    store.close()


def test_many_branches_are_encoded_as_one_object() -> None:
    extent = ExtentEntry('"branches":[]', 0, 300, 5, 1, 5)
    branches = [
        BranchEntry(
            key=str(xa(f"g{n}")), state="PREPARED", first_lsn=n, began_ms=1, prepared_ms=2, extents=(extent,) * (n % 3)
        )
        for n in range(1, 2502)
        if n % 3
    ]
    entry = PartitionEntry(topic='"branches":[]', partition=0, start=0, end=5)
    for some in ([], branches[:1], branches[:1000], branches[:1001], branches):
        whole = Checkpoint(
            format=1, lsn=9_000_000, epoch=1, incarnation=1, time_ms=1, partitions=[entry], branches=some
        )
        raw = encode_checkpoint(whole)
        body = msgspec.json.encode(whole)
        assert raw == b"%08x\n" % crc32(body) + body + b"\n"
        assert decode_checkpoint(raw) == whole


def test_a_branch_of_many_runs_is_kept_as_numbers_and_written_as_any_other() -> None:
    store = open_store(FaultyStorage(Random(0)))
    branches = [store.begin(xa(name)) for name in ("large", '"runs":[]', "small")]
    for number in range(2 * ENTRIES_AT_ONCE + 1):
        store.transactional_put(branches[0], STOCK if number % 2 else ORDERS, [b"hello"], 5, 1)
    for branch in branches[1:]:
        store.transactional_put(branch, ORDERS, [b"hello"], 5, 1)
    taken = store.snapshot()
    for _ in range(10):
        store.transactional_put(branches[0], ORDERS, [b"later"], 5, 1)
    large, *others = taken.branches
    assert isinstance(large.extents, ExtentEntries)
    assert len(large.extents) == 2 * ENTRIES_AT_ONCE + 1
    plain = [msgspec.structs.replace(entry, extents=tuple(entry.extents)) for entry in (large, *others)]
    raw = encode_checkpoint(taken)
    assert raw == encode_checkpoint(msgspec.structs.replace(taken, branches=plain))
    assert decode_checkpoint(raw) == taken
    store.close()
