"""After a LOST record each later one says what it assumes; what contradicts even so is refused."""

import pytest

from journal.errors import ContradictoryRecord
from journal.records.header import Lsn, Offset
from journal.records.heuristics import HeuristicDecision
from journal.records.record import (
    NO_BRANCH,
    Commit,
    DroppedRecords,
    Heuristic,
    OffsetAssignment,
    PartitionName,
    PutRecord,
    Record,
    Relocate,
    RelocatedExtent,
    TxPut,
)
from journal.records.states import BranchState
from journal.records.topic_changes import TopicChange, TopicState
from journal.records.xid import BranchKey, LocalKey
from journal.state.journal_state import Branch
from tests.fixtures.folds import Fold
from tests.fixtures.journals import ORDERS, STOCK, xa

A, B = xa("a"), xa("b")
LOCAL = LocalKey("s", 1)
DELETED = TopicChange(topic="orders", state=TopicState.DELETED)


def begun(fold: Fold, key: BranchKey, *sizes: int) -> Branch:
    """Begin a branch with a message of each size in orders-0."""
    lsn = fold.state.lsn
    for size in sizes:
        fold.add(TxPut(key, lsn if lsn in fold.state.branches else NO_BRANCH, ORDERS, 1), size)
    return fold.state.branches[lsn]


def lossy(*keys: BranchKey) -> tuple[Fold, list[Branch]]:
    """Orders-0 ends at 10; a branch of each key put 8 and 7 bytes there; then 500 bytes of records were dropped."""
    fold = Fold()
    fold.add(PutRecord(ORDERS, Offset(0), 1), 10)
    branches = [begun(fold, key, 8, 7) for key in keys]
    fold.add(DroppedRecords(), 500)
    return fold, branches


def commit(branch: Branch, size: int, count: int, base: int = 10, *, one_phase: bool = False) -> Commit:
    taken = OffsetAssignment(ORDERS, Offset(base), size, count)
    return Commit(branch.key, branch.first_lsn, one_phase, (taken,))


def decided(branch: Branch, messages: int) -> Heuristic:
    return Heuristic(branch.key, branch.first_lsn, HeuristicDecision.COMMIT, 900, messages, 15, "ann", "sure")


def test_a_branch_whose_name_begins_again_had_ended() -> None:
    fold, _ = lossy(A, B)
    again = begun(fold, A, 5)
    assert [branch.key for branch in fold.state.branches.values()] == [B, A]
    assert fold.state.branches_accounted_bytes == sum(one.accounted_bytes for one in fold.state.branches.values())
    fold.add(commit(again, 5, 1, base=99, one_phase=True))
    assert fold.state.end_of(ORDERS) == 104


def test_a_commit_of_more_than_the_branch_has_left_publishes_nothing() -> None:
    fold, (branch,) = lossy(A)
    (skip_to_base, skip_to_end) = fold.add(commit(branch, 20, 3, base=30))
    assert [(one.base, one.extent.bytes) for one in (skip_to_base, skip_to_end)] == [(30, 0), (50, 0)]
    assert (fold.state.branches, fold.state.end_of(ORDERS)) == ({}, 50)
    assert fold.state.outcomes.find(str(A)) is not None


def test_a_commit_of_a_session_whose_branch_was_lost_leaves_no_outcome() -> None:
    fold, _ = lossy()
    fold.add(Commit(LOCAL, Lsn(136), True, (OffsetAssignment(ORDERS, Offset(10), 5, 1),)))
    assert (fold.state.end_of(ORDERS), list(fold.state.outcomes)) == (15, [])


def test_a_prepare_may_have_been_lost_of_an_older_branch_only() -> None:
    fold, (older,) = lossy(A)
    newer = begun(fold, B, 15)
    assert [one.extent.bytes for one in fold.add(commit(older, 15, 2))] == [8, 7]
    with pytest.raises(ContradictoryRecord, match="Cannot do 2 phase commit"):
        fold.add(commit(newer, 15, 1, base=25))


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (Commit(B, Lsn(100_000), True, ()), "no live branch began at LSN 100000"),
        (Commit(B, Lsn(136), True, (OffsetAssignment(ORDERS, Offset(10), 5, 1),)), "15 is below the end 20"),
    ],
)
def test_what_no_lost_record_explains_is_refused(record: Record, why: str) -> None:
    fold, _ = lossy()
    fold.add(PutRecord(ORDERS, Offset(10), 1), 10)
    with pytest.raises(ContradictoryRecord, match=why):
        fold.add(record)


def test_a_topic_is_deleted_with_its_older_branches_only() -> None:
    fold, _ = lossy(A, B)
    fold.add(DELETED)
    assert fold.state.branches == {}
    begun(fold, A, 5)
    with pytest.raises(ContradictoryRecord, match="orders is deleted while branch"):
        fold.add(DELETED)


def test_a_relocation_may_copy_what_a_lost_one_copied_before() -> None:
    fold, (branch,) = lossy(A)
    moved = tuple(RelocatedExtent(Lsn(5_000 + at), size, 1, 1_000) for at, size in enumerate((8, 7)))
    fold.add(Relocate(A, branch.first_lsn, ORDERS, 0, 0, moved), 15)
    (extents,) = branch.extents.values()
    assert [extent.bytes for extent in extents] == [8, 7]
    assert extents[1].lsn - extents[0].lsn == 8


@pytest.mark.parametrize("name", [ORDERS, STOCK, PartitionName("new", 0)])
def test_a_relocation_of_what_the_branch_does_not_have_drops_it(name: PartitionName) -> None:
    fold, (branch,) = lossy(A)
    fold.add(Relocate(A, branch.first_lsn, name, 1, 0, (RelocatedExtent(Lsn(5_000), 99, 1, 1_000),)), 99)
    assert fold.state.branches == {}


def test_a_decision_shows_that_the_branch_was_prepared() -> None:
    fold, (branch,) = lossy(A)
    fold.add(decided(branch, messages=2))
    assert (branch.state, branch.prepared_ms) == (BranchState.PREPARED, 900)
    assert branch.decision is HeuristicDecision.COMMIT


def test_a_decision_about_more_than_the_branch_has_left_drops_it() -> None:
    fold, (branch,) = lossy(A)
    fold.add(decided(branch, messages=3))
    assert (fold.state.branches, fold.state.heuristics) == ({}, {})
