"""Verdict on a whole journal, and the report of what corruption destroyed."""

from random import Random

import msgspec
import pytest

from journal.records.dead_letters import DeadLetter, DeadLetterState
from journal.records.header import Lsn, Offset, RecordType
from journal.records.producer_state import BatchSequence
from journal.records.record import Commit, Decision, Forget, OffsetAssignment, PutRecord, Record, TxPut
from journal.records.xid import LocalKey
from journal.repair.check import CheckedFile, CheckReport, check
from journal.state.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from journal.state.inspection import read_checkpoints
from journal.wal.scan import EndVerdict
from journal.wal.segments import Segments
from tests.fixtures.faulty_storage import FaultyStorage
from tests.fixtures.histories import ROUNDS, content, entries_of, entry_of, flip, write_history
from tests.fixtures.journals import IDENTITY, ORDERS, SEGMENT_BYTES, STOCK, Index, open_store, xa
from tests.fixtures.raw_journal import hand_made, opened
from tests.fixtures.retention import choose, drop


@pytest.fixture
def storage() -> FaultyStorage:
    storage = FaultyStorage(Random(0))
    write_history(storage).close()
    return storage


def checked(storage: FaultyStorage) -> CheckReport:
    checkpoints = read_checkpoints(storage)
    segments = Segments.open(storage, None, SEGMENT_BYTES, writable=False)
    return check(segments, checkpoints)


def test_a_whole_journal(storage: FaultyStorage) -> None:
    report = checked(storage)
    assert report.is_sound
    assert report.verdict is EndVerdict.WHOLE
    assert report.identity == IDENTITY
    assert report.segments == len(storage.files) > 2
    assert report.records == len(entries_of(storage))
    assert [(file.number, file.compared, file.problems) for file in report.checkpoints] == [
        (1, True, ()),
        (2, True, ()),
    ]
    assert report.prepared == [xa(f"prepare-{number}") for number in range(ROUNDS)]
    assert report.active == [LocalKey("session", number) for number in range(ROUNDS)]
    assert (report.contradiction, report.damage.gaps, report.decided) == (None, [], [])


def test_a_torn_tail_is_sound(storage: FaultyStorage) -> None:
    end = checked(storage).end
    flip(storage, end + 8)
    report = checked(storage)
    assert (report.verdict, report.end, report.is_sound) == (EndVerdict.TORN, end, True)


def test_progress_ends_at_the_end(storage: FaultyStorage) -> None:
    told: list[int] = []
    segments = opened(storage)
    check(segments, {}, told.append)
    assert told == sorted(told)
    assert told[-1] == segments.end


def test_corruption_below_the_newest_checkpoint_is_found_though_recovery_does_not_look(storage: FaultyStorage) -> None:
    lost = entry_of(storage, RecordType.PUT, 0).header
    flip(storage, lost.body_lsn)
    open_store(storage).close()
    report = checked(storage)
    assert (report.verdict, report.end, report.reason) == (EndVerdict.CORRUPT, lost.lsn, "body checksum")
    assert report.next_valid_lsn == lost.end
    assert not report.is_sound
    assert [(file.number, file.compared) for file in report.checkpoints] == [(1, False), (2, False)]
    assert [tuple(gap)[:2] for gap in report.damage.gaps] == [(lost.lsn, lost.end)]
    assert report.damage.offsets == [(ORDERS, 0, 120, "stood there, or was committed there")]
    assert report.damage.branches == []


@pytest.mark.parametrize(
    ("kind", "branches", "offsets"),
    [
        (RecordType.TX_PUT, [("commit-0", "began there")], [(ORDERS, 120, 420), (STOCK, 0, 300)]),
        (RecordType.PREPARE, [], []),
        (
            RecordType.COMMIT,
            [("commit-0", "live before it; its outcome may stand there")],
            [(ORDERS, 120, 420), (STOCK, 0, 300)],
        ),
        (RecordType.ROLLBACK, [("rollback-0", "live before it; its outcome may stand there")], []),
    ],
)
def test_what_a_lost_record_of_a_branch_took(
    storage: FaultyStorage, kind: RecordType, branches: list[tuple[str, str]], offsets: list[tuple[object, int, int]]
) -> None:
    flip(storage, entry_of(storage, kind).header.lsn + 8)
    damage = checked(storage).damage
    assert [lost[:3] for lost in damage.offsets] == offsets
    assert [(hurt.key, hurt.why) for hurt in damage.branches] == [(xa(name), why) for name, why in branches]


@pytest.mark.parametrize(("number", "expected"), [(1, []), (3, [0, 1, 2])])
def test_a_checkpoint_after_the_gap_lists_undecided_branches(
    storage: FaultyStorage, number: int, expected: list[int]
) -> None:
    flip(storage, entry_of(storage, RecordType.PUT, number).header.lsn)
    damage = checked(storage).damage
    assert [hurt.key for hurt in damage.branches] == [
        key for number in expected for key in (xa(f"prepare-{number}"), LocalKey("session", number))
    ]


def test_two_gaps(storage: FaultyStorage) -> None:
    first, second = (entry_of(storage, RecordType.PUT, number).header for number in (1, 3))
    flip(storage, first.lsn)
    flip(storage, second.body_lsn)
    damage = checked(storage).damage
    assert [(gap.start, gap.end) for gap in damage.gaps] == [(first.lsn, first.end), (second.lsn, second.end)]
    assert [(lost.name, lost.end - lost.start) for lost in damage.offsets if lost.end] == [(ORDERS, 120), (ORDERS, 120)]


def test_a_gap_that_nothing_follows_is_measured_by_the_checkpoint(storage: FaultyStorage) -> None:
    """All bytes from the middle of the journal on read as zeros: only the checkpoints show its end."""
    start = entry_of(storage, RecordType.PUT, 1).header.lsn
    for base, file in opened(storage):
        position = max(start - base, 128)
        if position < file.size:
            file.write(position, [bytes(file.size - position)])
    report = checked(storage)
    assert (report.verdict, report.end, report.next_valid_lsn) == (EndVerdict.CORRUPT, start, None)
    assert [(gap.start, gap.end) for gap in report.damage.gaps] == [(start, None)]
    assert {(lost.name, lost.start, lost.end) for lost in report.damage.offsets} == {
        (ORDERS, 420, 3 * 420),
        (STOCK, 300, 3 * 300),
        (ORDERS, 3 * 420, None),
        (STOCK, 3 * 300, None),
    }


def test_a_checkpoint_beyond_the_last_record_proves_corruption() -> None:
    storage = FaultyStorage(Random(0))
    store = open_store(storage)
    result = store.put(ORDERS, [b"x"], 1, 1)
    taken = store.snapshot()
    store.write_checkpoint(taken, {})
    store.close()
    flip(storage, result.updates[0].extent.lsn)
    report = checked(storage)
    assert report.verdict is EndVerdict.CORRUPT
    assert report.reason == f"body checksum, but checkpoint.1 was taken at LSN {taken.lsn}"
    assert report.damage.offsets == [(ORDERS, 0, 1, "stood there, or was committed there")]


def test_a_damaged_checkpoint_is_no_good(storage: FaultyStorage) -> None:
    storage.blobs["checkpoint.1"] = b"rubbish"
    report = checked(storage)
    assert report.checkpoints[0] == CheckedFile(1, None, False, ("does not read back: checksum",))
    assert report.verdict is EndVerdict.WHOLE
    assert not report.is_sound


def edit(storage: FaultyStorage, number: int, **changes: object) -> None:
    checkpoint = decode_checkpoint(storage.blobs[f"checkpoint.{number}"])
    assert isinstance(checkpoint, Checkpoint)
    storage.blobs[f"checkpoint.{number}"] = bytes(encode_checkpoint(msgspec.structs.replace(checkpoint, **changes)))


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("end", "orders-0 ends at 841, the records say 840"),
        ("partition", "orders-0 ends at 0, the records say 840"),
        ("epoch", "epoch 2, the records say 1"),
        ("lsn", "is inside a record that ends at"),
        ("branch", "branch XID:1:707265706172652d30:6d71:test from LSN 2576 is missing"),
        ("state", "is IN_USE with 6 messages of 600 bytes, the records say"),
        ("run", "is PREPARED with 6 messages of 601 bytes, the records say"),
        ("ghost", "is not live in the records"),
        ("lives", "the lives of the journal are not those of the records"),
    ],
)
def test_a_checkpoint_that_says_otherwise(storage: FaultyStorage, what: str, problem: str) -> None:
    told = content(storage, 1)
    orders, stock = told.partitions
    prepared, *others = told.branches
    extent = prepared.extents[0]
    changes: dict[str, dict[str, object]] = {
        "end": {"partitions": [msgspec.structs.replace(orders, end=orders.end + 1), stock]},
        "partition": {"partitions": [stock]},
        "epoch": {"epoch": 2},
        "lsn": {"lsn": told.lsn - 8},
        "branch": {"branches": others},
        "state": {"branches": [msgspec.structs.replace(prepared, state="IN_USE"), *others]},
        "run": {
            "branches": [
                msgspec.structs.replace(
                    prepared, extents=[msgspec.structs.replace(extent, bytes=extent.bytes + 1), *prepared.extents[1:]]
                ),
                *others,
            ]
        },
        "ghost": {"branches": [*told.branches, msgspec.structs.replace(prepared, first_lsn=136)]},
        "lives": {"epoch_history": [msgspec.structs.replace(told.epoch_history[0], lsn=136)]},
    }
    edit(storage, 1, **changes[what])
    first, second = checked(storage).checkpoints
    assert any(problem in found for found in first.problems), first.problems
    assert second.problems == ()


def test_a_journal_whose_first_segments_were_dropped_is_folded_from_its_oldest_checkpoint(
    storage: FaultyStorage,
) -> None:
    lsn = content(storage, 1).lsn
    opened(storage).drop_before(lsn)
    report = checked(storage)
    assert report.start > 128
    assert report.is_sound
    assert [(file.number, file.compared) for file in report.checkpoints] == [(1, False), (2, True)]
    edit(storage, 2, epoch=9)
    assert not checked(storage).is_sound


def test_a_checkpoint_of_dropped_records_is_let_be(storage: FaultyStorage) -> None:
    opened(storage).drop_before(content(storage, 2).lsn)
    report = checked(storage)
    assert [(file.number, file.compared, file.problems) for file in report.checkpoints] == [
        (1, False, ()),
        (2, False, ()),
    ]
    assert report.is_sound


def test_records_that_contradict_one_another_are_named() -> None:
    assignment = OffsetAssignment(ORDERS, Offset(0), 4, 1)
    storage = hand_made(
        [
            (TxPut(xa("a"), Lsn(0), ORDERS, 1), b"once"),
            (Commit(xa("a"), Lsn(128), True, (assignment,)), b""),
            (Commit(xa("a"), Lsn(128), True, (assignment,)), b""),
            (PutRecord(ORDERS, Offset(99), 1), b"later"),
        ]
    )
    report = checked(storage)
    assert report.contradiction is not None
    assert "Commit contradicts what came before: no live branch began at LSN 128" in report.contradiction
    assert (report.verdict, report.records, report.is_sound) == (EndVerdict.WHOLE, 4, False)


def test_a_coordinators_decisions_and_a_consumers_dead_letters() -> None:
    letter = DeadLetter("orders", 0, 1, 100, 200, 5, 1, DeadLetterState.TRIED, "no")
    records: list[Record] = [Decision(xa("a"), "p"), Decision(xa("b"), "p"), Forget(xa("a")), letter]
    report = checked(hand_made([(record, b"") for record in records]))
    assert report.is_sound
    assert (report.decided, report.records) == ([xa("b")], 4)


def test_a_checkpoint_that_forgot_a_producers_batch() -> None:
    storage = FaultyStorage(Random(0))
    store = open_store(storage)
    for number in (7, 8):
        store.put_batch(ORDERS, [b"x"], 1, 1, 100 + number, BatchSequence("shop-1", number))
    store.write_checkpoint(store.snapshot(), {})
    store.close()
    assert checked(storage).is_sound
    (batches,) = content(storage, 1).batches
    edit(storage, 1, batches=[msgspec.structs.replace(batches, stored=batches.stored[:1])])
    (file,) = checked(storage).checkpoints
    assert file.problems == ("the batches of producer shop-1 to orders-0 are not those of the records",)


def shortened() -> FaultyStorage:
    """A journal whose first segments retention dropped; its checkpoints are behind every record that is left."""
    storage = FaultyStorage(Random(0))
    index = Index()
    store = open_store(storage, sink=index)

    def wait() -> None:
        store.journal.wait_flushed(store.journal.end)

    for number in range(60):
        put = store.put(ORDERS if number % 2 else STOCK, [(b"put %d " % number).ljust(700)], 700, 1)
        index.publish_all(put.updates)
        wait()
    new = store.begin(xa("new"))
    store.transactional_put(new, ORDERS, [b"y" * 50], 50, 1)
    store.transactional_put(new, ORDERS, [b"z" * 50], 50, 1)
    wait()
    cut = choose(store, index, 6)
    assert cut is not None
    taken = store.snapshot()
    store.on_checkpoint(store.write_checkpoint(taken, {}), taken)
    assert drop(store, cut)
    store.close()
    return storage


def test_damage_after_retention_is_named_from_the_records_that_are_left() -> None:
    storage = shortened()
    puts = [entry for entry, record in entries_of(storage) if isinstance(record, PutRecord) and record.name == ORDERS]
    lost, (_, record) = puts[1].header, entries_of(storage)[[entry for entry, _ in entries_of(storage)].index(puts[1])]
    assert isinstance(record, PutRecord)
    flip(storage, lost.body_lsn)
    report = checked(storage)
    assert (report.verdict, report.start > SEGMENT_BYTES) == (EndVerdict.CORRUPT, True)
    assert report.damage.offsets == [
        (ORDERS, record.base, record.base + 700, "stood there, or was committed there"),
    ]
    assert report.damage.branches == []
    (unknown,) = report.damage.unknown
    assert (unknown.bytes, unknown.names) == (lost.end - lost.lsn, ())
    assert "a branch that began before LSN" in unknown.why


def test_damage_at_the_first_record_that_is_left_is_named_from_the_checkpoint() -> None:
    storage = shortened()
    first, record = entries_of(storage)[0]
    assert isinstance(record, PutRecord)
    flip(storage, first.header.body_lsn)
    found = checked(storage).damage.offsets
    assert [each[:3] for each in found] == [(record.name, record.base, record.base + 700)]


def test_a_live_branch_with_a_damaged_message_is_affected() -> None:
    storage = shortened()
    messages = [entry for entry, record in entries_of(storage) if isinstance(record, TxPut) and record.key == xa("new")]
    flip(storage, messages[1].header.body_lsn)
    damage = checked(storage).damage
    assert (xa("new"), "messages of it stood there") in damage.branches


def test_without_a_checkpoint_the_rest_is_unknown() -> None:
    storage = shortened()
    puts = [entry for entry, record in entries_of(storage) if isinstance(record, PutRecord)]
    lost = puts[3].header
    flip(storage, lost.body_lsn)
    for name in [name for name in storage.blobs if name.startswith("checkpoint.")]:
        storage.blobs[name] = b"rubbish"
    damage = checked(storage).damage
    first, second = damage.unknown
    assert (first.bytes, first.names) == (lost.end - lost.lsn, (ORDERS, STOCK))
    assert "no checkpoint behind it tells which partitions there are" in first.why
    assert second.bytes == first.bytes
