"""The fold refuses every record that contradicts the ones before it, and moves nothing silently."""

import pytest

from journal.errors import InvalidRecord
from journal.records.codec import encode
from journal.records.extents import Extent
from journal.records.header import HEADER_BYTES, Lsn, Offset
from journal.records.index_updates import IndexUpdate
from journal.records.record import (
    NO_BRANCH,
    Commit,
    Decision,
    Epoch,
    Forget,
    OffsetAssignment,
    PartitionName,
    Prepare,
    PutRecord,
    Record,
    Relocate,
    RelocatedExtent,
    Rollback,
    RollbackReason,
    TxPut,
)
from journal.records.states import BranchState
from journal.records.xid import LocalKey
from tests.fixtures.folds import Fold
from tests.fixtures.journals import ORDERS, STOCK, xa

A, B = xa("a"), xa("b")
LOCAL = LocalKey("s", 1)
TAKE_ORDERS = OffsetAssignment(ORDERS, Offset(10), 16, 2)
TAKE_STOCK = OffsetAssignment(STOCK, Offset(0), 7, 1)


@pytest.fixture
def fold() -> Fold:
    """orders-0 ends at 10; branch A began at `a`, put 2 messages of 16 bytes to orders-0 and 1 of 7 to stock-3."""
    fold = Fold()
    fold.add(PutRecord(ORDERS, Offset(0), 1), 10)
    fold.add(TxPut(A, NO_BRANCH, ORDERS, 1), 8)
    fold.add(TxPut(A, first(fold), STOCK, 1), 7)
    fold.add(TxPut(A, first(fold), ORDERS, 1), 8)
    return fold


def first(fold: Fold) -> Lsn:
    """Return the LSN at which branch A began."""
    return next(iter(fold.state.branches))


def prepare(fold: Fold) -> None:
    fold.add(Prepare(A, first(fold), 3, 23))


def test_a_commit_publishes_each_partition_as_one_block_in_put_order(fold: Fold) -> None:
    lsn = first(fold)
    extents = [extent for extents in fold.state.branches[lsn].extents.values() for extent in extents]
    prepare(fold)
    published = fold.add(Commit(A, lsn, False, (TAKE_ORDERS, TAKE_STOCK)))
    assert published == [
        IndexUpdate(ORDERS, Offset(10), extents[0]),
        IndexUpdate(ORDERS, Offset(18), extents[1]),
        IndexUpdate(STOCK, Offset(0), extents[2]),
    ]
    assert {name: offset_range.end for name, offset_range in fold.state.offset_ranges.items()} == {ORDERS: 26, STOCK: 7}
    assert fold.state.branches == {}


def test_a_run_points_at_the_body(fold: Fold) -> None:
    lsn = fold.state.lsn
    record = PutRecord(ORDERS, Offset(10), 4)
    meta_bytes = len(encode(record)[1])
    assert fold.add(record, 100) == [IndexUpdate(ORDERS, Offset(10), Extent(Lsn(lsn + 56 + meta_bytes), 100, 4, 1_000))]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (PutRecord(ORDERS, Offset(9), 1), "do not follow the end 10"),
        (PutRecord(ORDERS, Offset(0), 1), "do not follow the end 10"),
        (PutRecord(ORDERS, Offset(11), 1), "do not follow the end 10"),
        (PutRecord(PartitionName("new", 0), Offset(1), 1), "do not follow the end 0"),
        (TxPut(A, Lsn(128), ORDERS, 1), "no live branch began at LSN 128"),
        (Prepare(A, Lsn(128), 3, 23), "no live branch began at LSN 128"),
        (Commit(A, Lsn(128), True, ()), "no live branch began at LSN 128"),
        (Rollback(A, Lsn(128), RollbackReason.ASKED), "no live branch began at LSN 128"),
        (Decision(A, ""), "a coordinator's record"),
        (Forget(A), "has neither a heuristic decision nor a finding"),
    ],
)
def test_a_record_that_fits_nothing(fold: Fold, record: Record, why: str) -> None:
    with pytest.raises(InvalidRecord, match=why):
        fold.add(record, 5)


def test_offsets_are_never_taken_twice(fold: Fold) -> None:
    with pytest.raises(InvalidRecord, match=r"offsets \[0, 10\) do not follow the end 10"):
        fold.add(PutRecord(ORDERS, Offset(0), 1), 10)


@pytest.mark.parametrize("key", [B, LOCAL])
@pytest.mark.parametrize("verb", ["put", "prepare", "commit", "rollback"])
def test_another_key_cannot_touch_the_branch(fold: Fold, key: LocalKey, verb: str) -> None:
    lsn = first(fold)
    records: dict[str, Record] = {
        "put": TxPut(key, lsn, ORDERS, 1),
        "prepare": Prepare(key, lsn, 3, 23),
        "commit": Commit(key, lsn, True, (TAKE_ORDERS, TAKE_STOCK)),
        "rollback": Rollback(key, lsn, RollbackReason.ASKED),
    }
    with pytest.raises(InvalidRecord, match=f"the branch that began at LSN {lsn} is {A}, not {key}"):
        fold.add(records[verb], 1)


@pytest.mark.parametrize(
    "assignments",
    [
        (),
        (TAKE_ORDERS,),
        (TAKE_ORDERS, TAKE_ORDERS),
        (TAKE_ORDERS, TAKE_STOCK, TAKE_STOCK),
        (TAKE_ORDERS, TAKE_STOCK, OffsetAssignment(PartitionName("new", 0), Offset(0), 0, 0)),
        (TAKE_ORDERS, OffsetAssignment(STOCK, Offset(0), 8, 1)),
        (TAKE_ORDERS, OffsetAssignment(STOCK, Offset(0), 7, 2)),
        (TAKE_ORDERS, OffsetAssignment(STOCK, Offset(1), 7, 1)),
        (OffsetAssignment(ORDERS, Offset(2), 16, 2), TAKE_STOCK),
    ],
)
def test_a_commit_takes_what_the_branch_put_no_more_no_less(
    fold: Fold, assignments: tuple[OffsetAssignment, ...]
) -> None:
    with pytest.raises(InvalidRecord, match="Commit contradicts what came before"):
        fold.add(Commit(A, first(fold), True, assignments))


@pytest.mark.parametrize(("messages", "size"), [(2, 23), (3, 22)])
def test_a_prepare_knows_what_was_put(fold: Fold, messages: int, size: int) -> None:
    with pytest.raises(InvalidRecord, match="not 3 of 23"):
        fold.add(Prepare(A, first(fold), messages, size))


def test_a_prepared_branch_takes_no_put_and_no_second_prepare(fold: Fold) -> None:
    prepare(fold)
    with pytest.raises(InvalidRecord, match="Cannot put now"):
        fold.add(TxPut(A, first(fold), ORDERS, 1), 1)
    with pytest.raises(InvalidRecord, match="Cannot call prepare now"):
        prepare(fold)


def test_two_phases_need_a_prepare(fold: Fold) -> None:
    with pytest.raises(InvalidRecord, match="Cannot do 2 phase commit"):
        fold.add(Commit(A, first(fold), False, (TAKE_ORDERS, TAKE_STOCK)))


@pytest.mark.parametrize("reason", set(RollbackReason) - {RollbackReason.ASKED})
def test_a_prepared_branch_is_rolled_back_only_when_asked(fold: Fold, reason: RollbackReason) -> None:
    prepare(fold)
    with pytest.raises(InvalidRecord, match="a prepared branch is rolled back when it is asked for"):
        fold.add(Rollback(A, first(fold), reason))


def test_a_second_outcome_finds_no_branch(fold: Fold) -> None:
    lsn = first(fold)
    fold.add(Rollback(A, lsn, RollbackReason.TIMED_OUT))
    for record in (Commit(A, lsn, True, (TAKE_ORDERS, TAKE_STOCK)), Rollback(A, lsn, RollbackReason.ASKED)):
        with pytest.raises(InvalidRecord, match="no live branch"):
            fold.add(record)


def test_one_key_may_serve_several_branches() -> None:
    fold = Fold()
    fold.add(TxPut(A, NO_BRANCH, ORDERS, 1), 4)
    fold.add(TxPut(A, NO_BRANCH, ORDERS, 1), 5)
    one, other = fold.state.branches
    fold.add(Commit(A, other, True, (OffsetAssignment(ORDERS, Offset(0), 5, 1),)))
    assert fold.state.branches[one].state is BranchState.IN_USE


def test_epoch_and_time() -> None:
    fold = Fold()
    fold.add(Epoch(3, 9, "v"))
    assert (fold.state.epoch, fold.state.incarnation, fold.state.time_ms) == (3, 9, 1_000)


def extents_of(fold: Fold, name: PartitionName) -> tuple[RelocatedExtent, ...]:
    return tuple(RelocatedExtent(*extent) for extent in fold.state.branches[first(fold)].extents[name])


def test_a_relocation_moves_extents_and_changes_nothing_else(fold: Fold) -> None:
    prepare(fold)
    lsn, before = first(fold), extents_of(fold, ORDERS)
    branch = fold.state.branches[lsn]
    stock = list(branch.extents[STOCK])
    record = Relocate(A, lsn, ORDERS, 1, 8, before[1:])
    body_lsn = fold.state.lsn + HEADER_BYTES + len(encode(record)[1])
    assert fold.add(record, 8) == []
    assert branch.extents == {ORDERS: [Extent(*before[0]), Extent(Lsn(body_lsn), *before[1][1:])], STOCK: stock}
    assert (branch.state, branch.messages, branch.bytes) == (BranchState.PREPARED, 3, 23)


def test_the_branch_furthest_behind_comes_first(fold: Fold) -> None:
    fold.add(TxPut(B, NO_BRANCH, ORDERS, 1), 8)
    a, b = fold.state.branches
    fold.add(Relocate(A, a, STOCK, 0, 0, extents_of(fold, STOCK)), 7)
    assert list(fold.state.branches) == [a, b], "its first put is where it was"
    fold.add(Relocate(A, a, ORDERS, 0, 0, extents_of(fold, ORDERS)[:1]), 8)
    assert list(fold.state.branches) == [b, a]


@pytest.mark.parametrize("wrong", ["branch", "key", "partition", "first", "lsn", "more", "body"])
def test_a_relocation_of_what_the_branch_did_not_put_is_refused(fold: Fold, wrong: str) -> None:
    lsn, extents = first(fold), extents_of(fold, ORDERS)
    record = Relocate(
        B if wrong == "key" else A,
        Lsn(lsn + 8) if wrong == "branch" else lsn,
        STOCK if wrong == "partition" else ORDERS,
        int(wrong == "first"),
        0,
        {"lsn": (extents[0]._replace(lsn=Lsn(8)), extents[1]), "more": (*extents, extents[1])}.get(wrong, extents),
    )
    with pytest.raises(InvalidRecord, match="Relocate contradicts what came before"):
        fold.add(record, 15 if wrong == "body" else sum(extent.bytes for extent in record.extents))
    assert extents_of(fold, ORDERS) == extents
