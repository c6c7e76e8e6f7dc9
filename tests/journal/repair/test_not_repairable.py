"""Damage that no repair mends, and what corruption took of a branch an operator decided about or retention cut."""

from random import Random

import pytest

from journal.errors import NotRepairable
from journal.records.header import Lsn, Offset
from journal.records.heuristics import HeuristicDecision
from journal.records.record import (
    NO_BRANCH,
    Commit,
    Heuristic,
    OffsetAssignment,
    Prepare,
    PutRecord,
    Record,
    Rollback,
    RollbackReason,
    TxPut,
)
from journal.repair.check import check
from journal.repair.damage import Damage
from journal.repair.repair import plan_repair
from journal.repair.repair_source import RepairSource
from journal.repair.segment_repair import find_broken_segments
from journal.state.inspection import read_checkpoints
from journal.wal.scan import Scanner
from journal.wal.segments import SegmentHeader, segment_name
from tests.fixtures.faulty_storage import FaultyStorage
from tests.fixtures.histories import content, flip, write_history
from tests.fixtures.journals import IDENTITY, ORDERS, SEGMENT_BYTES, xa
from tests.fixtures.raw_journal import FIRST_LSN, PUT_RECORD_BYTES, hand_made, opened, put_record, written

A = xa("a")


def damage_of(storage: FaultyStorage) -> Damage:
    return check(opened(storage), read_checkpoints(storage)).damage


def lsns_of(storage: FaultyStorage) -> list[Lsn]:
    segments = opened(storage)
    return [entry.header.lsn for entry in Scanner(segments, segments.start)]


def test_records_that_contradict_one_another_are_not_corruption() -> None:
    storage = hand_made([(Rollback(A, Lsn(128), RollbackReason.ASKED), b"")])
    with pytest.raises(NotRepairable, match=r"contradict one another: .*no live branch began at LSN 128"):
        plan_repair(opened(storage), {}, None)


def test_what_retention_dropped_is_in_a_checkpoint_or_nowhere() -> None:
    storage = FaultyStorage(Random(0))
    write_history(storage).close()
    opened(storage).drop_before(content(storage, 2).lsn)
    assert plan_repair(opened(storage), read_checkpoints(storage), None).is_empty
    with pytest.raises(NotRepairable, match="no checkpoint that holds them is sound"):
        plan_repair(opened(storage), {}, None)


def test_segments_that_overlap() -> None:
    storage = written({}, {})
    storage.create(segment_name(0) + ".new", 2 * SEGMENT_BYTES, SegmentHeader(IDENTITY, Lsn(0), 8192).pack()).close()
    storage.files[segment_name(0)] = storage.files.pop(segment_name(0) + ".new")
    with pytest.raises(NotRepairable, match=f"{segment_name(0)} overlaps {segment_name(SEGMENT_BYTES)}"):
        find_broken_segments(storage, None, 0)


def test_a_copy_whose_epoch_falls_in_the_gap_is_none() -> None:
    second, third = (FIRST_LSN + number * PUT_RECORD_BYTES for number in (1, 2))
    mine, copy = (
        written(
            {
                FIRST_LSN: put_record(FIRST_LSN, 0, incarnation=2),
                second: put_record(second, FIRST_LSN, incarnation=incarnation),
                third: put_record(third, third, incarnation=2),
            }
        )
        for incarnation in (2, 1)
    )
    flip(mine, second)
    with pytest.raises(NotRepairable, match=rf"at LSN {second} epoch and incarnation 1, 1 after \(1, 2\)"):
        plan_repair(opened(mine), {}, RepairSource(opened(copy)))


@pytest.mark.parametrize(("decision", "is_live"), [("COMPLETE", False), ("COMMIT", True)])
def test_a_branch_that_an_operator_completed_has_no_outcome_to_lose(decision: str, *, is_live: bool) -> None:
    first = Lsn(128)
    records: list[tuple[Record, bytes]] = [
        (TxPut(A, NO_BRANCH, ORDERS, 1), b"row"),
        (Prepare(A, first, 1, 3), b""),
        (PutRecord(ORDERS, Offset(0), 1), b"lost"),
        (Heuristic(A, first, HeuristicDecision[decision], 0, 1, 3, "ann", "sure"), b""),
    ]
    storage = hand_made(records)
    flip(storage, lsns_of(storage)[2])
    damage = damage_of(storage)
    assert len(damage.gaps) == 1
    affected = [(branch.key, branch.why) for branch in damage.branches]
    assert affected == [(A, "live before it; its outcome may stand there")] * is_live


def test_messages_of_a_branch_from_before_the_journals_beginning_may_have_stood_there() -> None:
    fill: list[tuple[Record, bytes]] = [(PutRecord(ORDERS, Offset(number * 900), 1), bytes(900)) for number in range(6)]
    taken = OffsetAssignment(ORDERS, Offset(6 * 900), 7, 2)
    storage = hand_made(
        [
            (TxPut(A, NO_BRANCH, ORDERS, 1), b"row"),
            *fill,
            (TxPut(A, Lsn(128), ORDERS, 1), b"more"),
            (Commit(A, Lsn(128), True, (taken,)), b""),
        ]
    )
    *_, lost, _ = lsns_of(storage)
    opened(storage).drop_before(SEGMENT_BYTES)
    flip(storage, lost)
    damage = damage_of(storage)
    start = opened(storage).start
    assert (A, f"began before LSN {start}; messages of it may have stood there") in damage.branches
    assert any(one.why == f"committed by {A}, some of whose messages may have stood there" for one in damage.offsets)
