"""Repair of a corrupt journal: from a copy without loss, or by dropping records after naming the loss.

Every record of a history is lost in turn, alone and with others. Afterwards a start must find, at every offset that
it has, the very bytes that were put there; whatever it lacks was listed; no branch is half there.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import pytest

from journal.errors import CorruptJournal, NotRepairable, StorageFailed
from journal.records.codec import decode
from journal.records.header import HEADER_BYTES, Lsn, RecordHeader, RecordType
from journal.records.record import Commit, DroppedRecords, PartitionName, Prepare, TxPut
from journal.repair.check import CheckReport, check
from journal.repair.repair import RepairPlan, apply_repair, plan_repair
from journal.repair.repair_source import RepairSource
from journal.repair.segment_repair import KEPT_PREFIX, find_broken_segments, repair_segments
from journal.state.checkpoint import Checkpoint
from journal.state.inspection import read_checkpoints
from journal.wal.scan import EndVerdict, Scanner, record_at
from journal.wal.segments import SEGMENT_HEADER_BYTES, JournalIdentity, SegmentHeader, Segments, segment_name
from tests.fixtures.faulty_storage import SECTOR_BYTES, FaultyStorage, PowerCut
from tests.fixtures.histories import ROUNDS, content, entries_of, entry_of, write_history
from tests.fixtures.journals import ORDERS, SEGMENT_BYTES, STOCK, Index, open_store, xa
from tests.fixtures.raw_journal import opened

ROUNDS_MORE = 4 * int(os.environ.get("METAQ_CRASH_ROUNDS", "6"))
Stored = dict[PartitionName, dict[int, int]]  # byte by offset


@dataclass
class Started:
    """Result of a start."""

    stored: Stored
    ends: dict[PartitionName, int]
    prepared: list[str]
    commits: set[int] = field(default_factory=set)


def pristine(*, checkpoints: bool) -> FaultyStorage:
    storage = FaultyStorage(Random(0))
    write_history(storage).close()
    if not checkpoints:
        storage.blobs.clear()
    return storage


def copy_of(storage: FaultyStorage, fail_at: int | None = None) -> FaultyStorage:
    return storage.after_power_cut(PowerCut.DROPPED, Random(0), fail_at)


def damaged(storage: FaultyStorage, *lsns: int) -> FaultyStorage:
    copy = copy_of(storage)
    for lsn in lsns:
        file = copy.files[segment_name(lsn - lsn % SEGMENT_BYTES)]
        file.cached[lsn % SEGMENT_BYTES] ^= 0x04
        file.durable[:] = file.cached
    return copy


def unreadable(storage: FaultyStorage, *lsns: int) -> FaultyStorage:
    """Return *storage* on a disk that cannot read the sectors that hold *lsns*."""
    copy = copy_of(storage)
    for lsn in lsns:
        position = lsn % SEGMENT_BYTES
        copy.files[segment_name(lsn - position)].bad_sectors.add(position - position % SECTOR_BYTES)
    return copy


def contents(storage: FaultyStorage) -> dict[str, bytes]:
    """Return the bytes of the segments."""
    return {name: bytes(file.cached) for name, file in storage.files.items() if not name.startswith(KEPT_PREFIX)}


def repaired(storage: FaultyStorage, source: FaultyStorage | None = None) -> RepairPlan:
    checkpoints = read_checkpoints(storage)
    known = max((one.lsn for one in checkpoints.values() if isinstance(one, Checkpoint)), default=0)
    copied = None if source is None else opened(source)
    repair_segments(storage, find_broken_segments(storage, copied, known))
    segments = Segments.open(storage, None, SEGMENT_BYTES, writable=True)
    copy = None if copied is None else RepairSource(copied)
    plan = plan_repair(segments, checkpoints, copy)
    apply_repair(plan, segments, copy)
    return plan


def checked(storage: FaultyStorage) -> CheckReport:
    checkpoints = read_checkpoints(storage)
    return check(Segments.open(storage, None, SEGMENT_BYTES, writable=False), checkpoints)


def start(storage: FaultyStorage) -> Started:
    index = Index()
    store = open_store(storage, sink=index)
    try:
        stored: Stored = {name: {} for name in index.entries}
        for name, entries in index.entries.items():
            end = 0
            for _, base, extent in entries:
                assert base >= end, f"{name}: an entry at {base} after the end {end}"
                assert base == end or not extent.bytes, f"{name}: a gap in front of {base} that nothing tells of"
                end = base + extent.bytes
                stored[name].update(
                    enumerate(store.journal.segments.read(extent.lsn, extent.bytes) if extent.bytes else b"", base)
                )
            assert end == store.state.end_of(name)
        ends = {name: int(store.state.end_of(name)) for name in store.state.offset_ranges}
        return Started(stored, ends, [str(live.key) for live in store.recover()])
    finally:
        store.close()


def committed(storage: FaultyStorage) -> list[Commit]:
    return [record for _, record in entries_of(storage) if isinstance(record, Commit)]


def judge(found: Started, expected: Started, plan: RepairPlan, whole: FaultyStorage) -> None:
    """Check a repair: the rest is unchanged, losses were named, nothing is partial, no offset is used twice."""
    for name, stored in found.stored.items():
        for offset, byte in stored.items():
            assert expected.stored[name][offset] == byte
    for name, stored in expected.stored.items():
        named = [lost for lost in plan.damage.offsets if lost.name == name]
        for offset in stored.keys() - found.stored.get(name, {}).keys():
            assert any(lost.start <= offset and (lost.end is None or offset < lost.end) for lost in named), (
                name,
                offset,
            )
        assert found.ends.get(name, 0) >= expected.ends[name] or name not in found.ends
    for commit in committed(copy_of(whole)):
        there = {
            offset in found.stored.get(assignment.name, {})
            for assignment in commit.assignments
            for offset in range(assignment.base, assignment.base + assignment.bytes)
        }
        assert len(there) == 1, f"half of {commit.key} is there"
    # A branch of which no record is left can be named by nobody.
    left: dict[str, bool] = {}
    for entry, record in entries_of(copy_of(whole)):
        if isinstance(record, TxPut | Prepare):
            is_lost = any(one.start <= entry.header.lsn < one.end for one in plan.dropped)
            left[str(record.key)] = left.get(str(record.key), False) or not is_lost
    untold = {key for key, is_left in left.items() if not is_left}
    listed = {str(branch.key) for branch in plan.damage.branches} | set(plan.affected)
    assert set(found.prepared) ^ set(expected.prepared) <= listed | untold


@pytest.fixture(scope="module", params=[False, True], ids=["no checkpoints", "checkpoints"])
def whole(request: pytest.FixtureRequest) -> FaultyStorage:
    return pristine(checkpoints=request.param)


@pytest.fixture(scope="module")
def headers(whole: FaultyStorage) -> list[RecordHeader]:
    """Every record of it that is known to have been fsynced."""
    segments = opened(copy_of(whole))
    return [entry.header for entry in Scanner(segments, segments.start)][:-1]


def combinations(headers: list[RecordHeader]) -> Iterator[list[int]]:
    """Return what to flip: each record's header or body alone, then several at a time, ROUNDS_MORE times."""
    for number, header in enumerate(headers):
        yield [header.body_lsn if header.body_bytes and number % 2 else header.lsn + 8]
    random = Random(20_261_121)
    for _ in range(ROUNDS_MORE):
        yield [header.lsn + 8 for header in random.sample(headers, random.choice((2, 3, 5)))]
    for first in range(0, len(headers) - 8, 5):
        yield [header.lsn + 8 for header in headers[first : first + 8]]


def test_whatever_is_lost_a_repair_by_dropping_makes_it_sound(
    whole: FaultyStorage, headers: list[RecordHeader]
) -> None:
    expected = start(copy_of(whole))
    for lsns in combinations(headers):
        print(f"flipped={lsns}")
        storage = damaged(whole, *lsns)
        plan = repaired(storage)
        assert plan.dropped
        report = checked(storage)
        assert (report.verdict, report.is_sound) == (EndVerdict.WHOLE, True)
        assert [start for start, _ in report.dropped] == [one.start for one in plan.dropped]
        found = start(storage)
        judge(found, expected, plan, whole)
        assert checked(storage).is_sound
        again = start(storage)
        assert (again.stored, again.ends, again.prepared) == (found.stored, found.ends, found.prepared)


def test_a_copy_gives_everything_back(whole: FaultyStorage, headers: list[RecordHeader]) -> None:
    before = {name: bytes(file.durable) for name, file in whole.files.items()}
    for lsns in itertools.islice(combinations(headers), 0, None, 3):
        storage = damaged(whole, *lsns)
        plan = repaired(storage, copy_of(whole))
        assert plan.restored
        assert (plan.dropped, plan.rewritten, plan.removed) == ([], {}, [])
        assert plan.damage.gaps == []
        assert {name: bytes(file.durable) for name, file in storage.files.items()} == before


def test_what_the_copy_lacks_is_dropped(whole: FaultyStorage, headers: list[RecordHeader]) -> None:
    here, there = headers[10], headers[30]
    storage = damaged(whole, here.lsn, there.lsn)
    plan = repaired(storage, damaged(whole, there.lsn))
    assert [one.start for one in plan.restored] == [here.lsn]
    assert [one.start for one in plan.dropped] == [there.lsn]
    assert checked(storage).is_sound
    judge(start(storage), start(copy_of(whole)), plan, whole)


def test_another_journal_is_no_copy(whole: FaultyStorage, headers: list[RecordHeader]) -> None:
    other = FaultyStorage(Random(0))
    store = open_store(other)
    for _ in range(60):
        store.put(STOCK, [bytes(100)], 100, 1)
    store.close()
    storage = damaged(whole, headers[10].lsn)
    before = dict(storage.blobs), {name: bytes(file.cached) for name, file in storage.files.items()}
    with pytest.raises(NotRepairable, match="it is no copy of this journal"):
        repaired(storage, other)
    assert (dict(storage.blobs), {name: bytes(file.cached) for name, file in storage.files.items()}) == before


def test_a_journal_of_another_broker_is_no_copy(whole: FaultyStorage, headers: list[RecordHeader]) -> None:
    other = copy_of(whole)
    for base in range(0, len(other.files) * SEGMENT_BYTES, SEGMENT_BYTES):
        file = other.files[segment_name(base)]
        file.cached[:SEGMENT_HEADER_BYTES] = SegmentHeader(JournalIdentity("other", 9), Lsn(base), SEGMENT_BYTES).pack()
        file.durable[:] = file.cached
    mine, theirs = (
        Segments.open(storage, None, SEGMENT_BYTES, writable=False)
        for storage in (damaged(whole, headers[10].lsn), other)
    )
    with pytest.raises(NotRepairable, match="name its own copy"):
        plan_repair(mine, {}, RepairSource(theirs))


def test_a_copy_with_other_segments_is_none(whole: FaultyStorage, headers: list[RecordHeader]) -> None:
    other = copy_of(whole)
    for name in list(other.files):
        if name != segment_name(0):
            del other.files[name]
    file = other.files[segment_name(0)]
    file.cached += bytes(SEGMENT_BYTES)
    file.size = 2 * SEGMENT_BYTES
    identity = Segments.open(copy_of(whole), None, SEGMENT_BYTES, writable=False).identity
    file.cached[:SEGMENT_HEADER_BYTES] = SegmentHeader(identity, Lsn(0), 2 * SEGMENT_BYTES).pack()
    file.durable[:] = file.cached
    with pytest.raises(NotRepairable, match="its segments begin at other LSNs"):
        repaired(damaged(whole, headers[10].lsn), other)


def test_a_copy_whose_record_behind_the_gap_differs_is_none(whole: FaultyStorage, headers: list[RecordHeader]) -> None:
    """It diverged within what is lost here: its records are those of another history."""
    lost, behind = headers[10], headers[11]
    other = damaged(whole, behind.lsn + HEADER_BYTES - 1)
    with pytest.raises(NotRepairable, match="it is no copy of this journal"):
        repaired(damaged(whole, lost.lsn), other)


def test_a_segment_under_another_name_or_of_another_size_is_told(whole: FaultyStorage) -> None:
    renamed = copy_of(whole)
    renamed.files[segment_name(9 * SEGMENT_BYTES)] = renamed.files.pop(segment_name(2 * SEGMENT_BYTES))
    with pytest.raises(
        NotRepairable, match=f"is the segment {segment_name(2 * SEGMENT_BYTES)}: give it that name again"
    ):
        repaired(renamed)
    shortened = copy_of(whole)
    file = shortened.files[segment_name(2 * SEGMENT_BYTES)]
    del file.cached[SEGMENT_BYTES // 2 :]
    file.durable[:], file.size = file.cached, SEGMENT_BYTES // 2
    with pytest.raises(NotRepairable, match=f"truncate -s {SEGMENT_BYTES}"):
        repaired(shortened)


def test_the_end_of_the_journal_reads_as_zeros(whole: FaultyStorage) -> None:
    """Partitions continue beyond all that can have been lost, since no record after the gap gives their ends."""
    expected = start(copy_of(whole))
    storage = copy_of(whole)
    first = entry_of(storage, RecordType.PUT, 1).header.lsn
    for base, file in opened(storage):
        position = max(first - base, 128)
        if position < file.size:
            file.write(position, [bytes(file.size - position)])
            file.sync()
    with pytest.raises(CorruptJournal):
        open_store(storage)
    plan = repaired(storage)
    assert checked(storage).is_sound
    found = start(storage)
    judge(found, expected, plan, whole)
    store = open_store(storage)
    for name in (ORDERS, STOCK):
        offset = store.put(name, [b"new"], 3, 1).updates[0].base
        assert offset >= expected.ends[name], "an offset is used twice"
    store.close()
    assert checked(storage).is_sound


def sectors_read(whole: FaultyStorage) -> Iterator[tuple[int, bool]]:
    """Return each sector's start, and whether readers look at it: at everything except the bodies of PADs."""
    segments = opened(copy_of(whole))
    ends = [entry.header.end for entry in Scanner(segments, segments.start)]
    pads = [
        range(end + HEADER_BYTES, end - end % SEGMENT_BYTES + SEGMENT_BYTES)
        for end in ends[:-1]
        if isinstance(header := record_at(segments, end), RecordHeader) and header.record_type == RecordType.PAD
    ]
    for lsn in range(0, segments.end, SECTOR_BYTES):
        yield lsn, not any(pad.start <= lsn < pad.stop for pad in pads)


def test_no_sector_that_cannot_be_read_is_taken_for_a_torn_tail_and_a_start_names_it() -> None:
    whole = pristine(checkpoints=False)
    before = contents(whole)
    for lsn, is_read in sectors_read(whole):
        storage = unreadable(whole, lsn)
        base = lsn - lsn % SEGMENT_BYTES
        if not is_read:
            assert start(storage) == start(copy_of(whole))
            continue
        with pytest.raises(CorruptJournal, match="metaq journal check") as refused:
            open_store(storage)
        assert f"{segment_name(base)}: bytes {lsn - base} to {lsn - base + SECTOR_BYTES} cannot be read" in str(
            refused.value
        )
        assert refused.value.lsn <= lsn or refused.value.lsn == base
        assert contents(storage) == before
        if lsn == base:
            continue  # its header: nothing is read as one journal before that is mended
        report = checked(storage)
        assert not report.is_sound
        assert [(one.start, one.end) for one in report.damage.unreadable] == [(lsn, lsn + SECTOR_BYTES)]
        assert report.damage.gaps[0].start <= lsn
        if (behind := report.damage.gaps[0].end) is not None:  # it is read on behind
            assert lsn + SECTOR_BYTES <= behind
            assert list(Scanner(opened(storage), behind))


def test_a_copy_gives_back_what_the_disk_does_not(whole: FaultyStorage) -> None:
    before, expected = contents(whole), start(copy_of(whole))
    for lsn, is_read in sectors_read(whole):
        print(f"unreadable={lsn}")
        storage = unreadable(whole, lsn)
        plan = repaired(storage, copy_of(whole))
        assert checked(storage).is_sound
        if plan.dropped:
            # Where the copy ends in that very sector, nobody can tell whether that was all.
            assert not any(
                sector > lsn and other for sector, other in sectors_read(whole) if sector < max(ends_of(whole))
            )
            judge(start(storage), expected, plan, whole)
        else:
            assert contents(storage) == before
        if is_read:
            kept = storage.files[KEPT_PREFIX + segment_name(lsn - lsn % SEGMENT_BYTES)]
            assert kept.bad_sectors == {lsn % SEGMENT_BYTES}


def ends_of(whole: FaultyStorage) -> list[int]:
    segments = opened(copy_of(whole))
    return [entry.header.end for entry in Scanner(segments, segments.start)]


def test_what_the_disk_does_not_give_back_is_dropped_and_named(whole: FaultyStorage) -> None:
    expected, end = start(copy_of(whole)), max(ends_of(whole))
    for lsn, is_read in sectors_read(whole):
        print(f"unreadable={lsn}")
        storage = unreadable(whole, lsn)
        plan = repaired(storage)
        assert checked(storage).is_sound
        judge(start(storage), expected, plan, whole)
        # Further on nothing can have been: where the next record would begin there are zeros.
        assert bool(plan.dropped) is (is_read and lsn < end + HEADER_BYTES)


@pytest.mark.parametrize("cut", list(PowerCut), ids=lambda cut: cut.name.lower())
def test_a_repair_of_what_cannot_be_read_that_is_cut_short_is_repeated(cut: PowerCut) -> None:
    whole = pristine(checkpoints=True)
    expected, before = start(copy_of(whole)), contents(whole)
    lsns = [SEGMENT_BYTES + 2 * SECTOR_BYTES, 2 * SEGMENT_BYTES + 40]
    for nth in itertools.count():
        print(f"cut={cut.name} fail_at={nth}")
        storage = copy_of(unreadable(whole, *lsns), fail_at=nth)
        with contextlib.suppress(StorageFailed):
            repaired(storage, copy_of(whole))
        left = storage.after_power_cut(cut, Random(nth))
        repaired(left, copy_of(whole))
        assert checked(left).is_sound
        assert start(left) == expected
        assert {name: data for name, data in contents(left).items() if name in before}.keys() == before.keys()
        if not storage.fault_fired:
            return


@pytest.mark.parametrize("number", range(4))
def test_a_segment_header_is_rewritten_without_loss(whole: FaultyStorage, number: int) -> None:
    expected = start(copy_of(whole))
    for position in range(0, 128, 9):
        storage = damaged(whole, number * SEGMENT_BYTES + position)
        with pytest.raises(CorruptJournal):
            open_store(storage)
        plan = repaired(storage)
        assert plan.is_empty
        assert start(storage) == expected


@pytest.mark.parametrize("numbers", [[1], [2], [1, 2]], ids=str)
def test_a_segment_that_is_missing_is_dropped_or_restored(whole: FaultyStorage, numbers: list[int]) -> None:
    expected = start(copy_of(whole))
    for source in (None, copy_of(whole)):
        storage = copy_of(whole)
        for number in numbers:
            del storage.files[segment_name(number * SEGMENT_BYTES)]
        plan = repaired(storage, source)
        assert checked(storage).is_sound
        judge(start(storage), expected, plan, whole)
        assert bool(plan.dropped) is (source is None)


def test_the_last_segments_are_missing_and_a_checkpoint_knows_of_them() -> None:
    whole = pristine(checkpoints=True)
    expected = start(copy_of(whole))
    storage = copy_of(whole)
    for number in (1, 2, 3):
        del storage.files[segment_name(number * SEGMENT_BYTES)]
    plan = repaired(storage)
    assert plan.dropped
    assert checked(storage).is_sound
    known = content(copy_of(whole), 2).partitions
    found = start(storage)
    for entry in known:
        assert found.ends[PartitionName(entry.topic, entry.partition)] >= entry.end
    for name, stored in found.stored.items():
        assert stored.items() <= expected.stored[name].items()


def test_a_foreign_segment_is_no_part_of_it(whole: FaultyStorage) -> None:
    storage = damaged(whole, 20)
    file = storage.files[segment_name(SEGMENT_BYTES)]
    head = SegmentHeader(JournalIdentity("other", 9), Lsn(SEGMENT_BYTES), SEGMENT_BYTES).pack()
    file.write(0, [head])
    file.sync()
    with pytest.raises(NotRepairable, match="broker 9 of cluster 'other'"):
        repaired(storage)


def test_a_branch_that_ended_in_the_gap_is_in_doubt_until_a_decision() -> None:
    storage = pristine(checkpoints=False)
    commit = entry_of(storage, RecordType.COMMIT, ROUNDS - 1).header
    key = str(xa(f"commit-{ROUNDS - 1}"))
    damaged_one = damaged(storage, commit.lsn)
    plan = repaired(damaged_one)
    assert key in {str(branch.key) for branch in plan.damage.branches}
    index = Index()
    store = open_store(damaged_one, sink=index)
    live = store.find(xa(f"commit-{ROUNDS - 1}"))
    result = store.commit(live, one_phase=False)
    assert {name.topic for name, _, _ in result.updates} == {"orders", "stock"}
    store.close()
    assert checked(damaged_one).is_sound


@pytest.mark.parametrize("cut", list(PowerCut), ids=lambda cut: cut.name.lower())
@pytest.mark.parametrize("lost", [[12], [12, 40], [44, 45, 46, 47]], ids=str)
def test_a_repair_that_is_cut_short_is_repeated(lost: list[int], cut: PowerCut) -> None:
    """Every storage call of a repair fails, then the power goes: the same repair, once more, ends it."""
    whole = pristine(checkpoints=True)
    segments = opened(copy_of(whole))
    headers = [entry.header for entry in Scanner(segments, segments.start)]
    lsns = [headers[number].lsn for number in lost]
    expected = start(copy_of(whole))
    intact = {part.start: part for part in repaired(damaged(whole, *lsns)).dropped}
    for nth in itertools.count():
        print(f"lost={lost} cut={cut.name} fail_at={nth}")
        storage = copy_of(damaged(whole, *lsns), fail_at=nth)
        first: RepairPlan | None = None
        with contextlib.suppress(StorageFailed):
            first = repaired(storage)
        left = storage.after_power_cut(cut, Random(nth))
        plan = repaired(left)
        assert {one.start for one in plan.dropped} <= set(intact)
        assert checked(left).is_sound
        found = start(left)
        judge(found, expected, first or plan_of(whole, lsns), whole)
        kept = b"".join(data for name, data in sorted(left.blobs.items()) if name.startswith(KEPT_PREFIX + "0"))
        assert kept == b"".join(original(whole, lsns, one.start, one.end) for one in intact.values())
        if not storage.fault_fired:
            return


def plan_of(whole: FaultyStorage, lsns: Sequence[int]) -> RepairPlan:
    storage = damaged(whole, *lsns)
    checkpoints = read_checkpoints(storage)
    return plan_repair(opened(storage), checkpoints, None)


def original(whole: FaultyStorage, lsns: Sequence[int], start_lsn: Lsn, end: Lsn) -> bytes:
    """Return the bytes of [start_lsn, end) before the repair."""
    file = damaged(whole, *lsns).files[segment_name(start_lsn - start_lsn % SEGMENT_BYTES)]
    return bytes(file.durable[start_lsn % SEGMENT_BYTES :][: end - start_lsn])


def test_a_sound_journal_is_left_alone(whole: FaultyStorage) -> None:
    storage = copy_of(whole)
    calls = len(storage.calls)
    assert repaired(storage).is_empty
    assert {call for call, _ in storage.calls[calls:]} <= {"names", "open", "read", "sync", "sync_all"}


def test_damaged_checkpoints_are_removed_and_kept() -> None:
    storage = pristine(checkpoints=True)
    storage.blobs["checkpoint.2"] = b"rubbish"
    plan = repaired(storage)
    assert (plan.removed, plan.dropped) == ([2], [])
    assert storage.blobs[f"{KEPT_PREFIX}checkpoint.2"] == b"rubbish"
    assert checked(storage).is_sound


def test_what_a_lost_record_says() -> None:
    storage = pristine(checkpoints=False)
    header = entry_of(storage, RecordType.PUT, 1).header
    corrupt = damaged(storage, header.lsn)
    repaired(corrupt)
    found = next(entry for entry, record in entries_of(corrupt) if isinstance(record, DroppedRecords))
    assert (found.header.lsn, found.header.end) == (header.lsn, header.end)
    assert decode(found.header, found.meta) == DroppedRecords()
    assert bytes(found.body).count(0) == len(found.body)
