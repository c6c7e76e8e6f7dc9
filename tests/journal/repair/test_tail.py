"""Content of a journal's tail, from the last record on each branch and each partition."""

from collections import deque
from collections.abc import Callable
from random import Random

import pytest

from journal.records.header import Lsn, RecordType
from journal.records.heuristics import HeuristicDecision
from journal.records.record import Heuristic, PartitionName, RollbackReason
from journal.repair.tail import KEYS_MAX, OperatorDecision, Tail, TailRange, tail_lines, tail_of
from journal.state.inspection import RecordReader, scanner_from
from journal.state.journal_state import JournalState
from journal.state.live_branch import LiveBranch
from journal.state.replay import RecordFold, replay
from journal.state.transaction_store import JournalTransactionStore
from journal.state.truncation import truncate
from journal.wal.scan import Scanner
from tests.fixtures.copies import copy_of, end_of
from tests.fixtures.faulty_storage import FaultyStorage
from tests.fixtures.journals import IDENTITY, ORDERS, STOCK, open_store, xa
from tests.fixtures.raw_journal import opened

Did = Callable[[JournalTransactionStore], None]


def put(store: JournalTransactionStore, name: PartitionName, data: bytes) -> None:
    store.put(name, [data], len(data), 1)


def begun(store: JournalTransactionStore, name: str) -> LiveBranch:
    branch = store.begin(xa(name))
    store.transactional_put(branch, ORDERS, [b"abc"], 3, 1)
    return branch


def tail_behind(before: Did, after: Did) -> Tail:
    """Return the tail that *after* writes to a store on which *before* has run; the surviving copy has the records of
    *before*."""
    storage = FaultyStorage(Random(0))
    store = open_store(storage)
    before(store)
    store.journal.wait_flushed(store.journal.end)
    at, copy = store.journal.end, copy_of(storage)
    after(store)
    tail = told(store, at, state_of(copy))
    store.close()
    return tail


def told(store: JournalTransactionStore, at: int, copy: JournalState) -> Tail:
    store.journal.wait_flushed(store.journal.end)
    tail = tail_of(RecordReader(scanner_from(store.journal.segments, at)), at, copy)
    assert (tail.start, tail.end) == (at, store.journal.end)
    return tail


def state_of(storage: FaultyStorage) -> JournalState:
    """Return the state the journal adds up to, as it is."""
    segments = opened(storage)
    state = JournalState(segments.start)
    deque(replay(Scanner(segments, segments.start), RecordFold(state)), maxlen=0)
    return state


def test_ranges_hold_what_could_be_read_there_and_nowhere_else() -> None:
    def after(store: JournalTransactionStore) -> None:
        for number in range(3):
            put(store, ORDERS, b"<%d>" % number)
        put(store, STOCK, b"here")
        begun(store, "active")  # nobody could read that

    tail = tail_behind(lambda store: put(store, ORDERS, b"before"), after)
    assert tail.ranges == {str(ORDERS): TailRange(6, 15, 3), str(STOCK): TailRange(0, 4, 1)}
    assert (tail.messages, tail.prepared.count, tail.records) == (4, 0, 5)


def test_a_branch_is_told_once_by_what_became_of_it() -> None:
    branches: dict[str, LiveBranch] = {}

    def before(store: JournalTransactionStore) -> None:
        for name in ("committed", "rolled back", "by hand"):
            branches[name] = begun(store, name)
            store.prepare(branches[name])

    def after(store: JournalTransactionStore) -> None:
        store.prepare(begun(store, "in doubt"))
        store.commit(branches["committed"], one_phase=False)
        store.rollback(branches["rolled back"], RollbackReason.ASKED)
        store.end_heuristically(branches["by hand"], HeuristicDecision.COMMIT, "me", "because")
        one_phase = begun(store, "at once")
        store.commit(one_phase, one_phase=True)

    tail = tail_behind(before, after)
    assert tail.prepared.keys == [str(xa("in doubt"))]
    assert tail.committed.keys == [str(xa(name)) for name in ("committed", "by hand", "at once")]
    assert tail.rolled_back.keys == [str(xa("rolled back"))]
    assert tail.decided.first == [OperatorDecision(str(xa("by hand")), "commit", "me", "because")]
    assert tail.ranges == {str(ORDERS): TailRange(0, 9, 3)}
    assert f"in doubt there: {xa('in doubt')}" in list(tail_lines(tail))


def test_a_key_that_was_begun_again_is_another_branch() -> None:
    def after(store: JournalTransactionStore) -> None:
        for name in ("twice committed", "then in doubt"):
            first = begun(store, name)
            store.prepare(first)
            store.commit(first, one_phase=False)
        again = begun(store, "twice committed")
        store.commit(again, one_phase=True)
        store.prepare(begun(store, "then in doubt"))

    tail = tail_behind(lambda store: None, after)
    assert tail.committed.keys == [str(xa(name)) for name in ("twice committed", "then in doubt", "twice committed")]
    assert tail.prepared.keys == [str(xa("then in doubt"))]
    assert tail.ranges == {str(ORDERS): TailRange(0, 9, 3)}


def test_what_was_ended_there_and_is_in_doubt_here_is_named() -> None:
    branches: dict[str, LiveBranch] = {}

    def before(store: JournalTransactionStore) -> None:
        for name in ("committed", "rolled back", "by hand", "completed", "left alone"):
            branches[name] = begun(store, name)
            store.prepare(branches[name])
        branches["active"] = begun(store, "active")

    def after(store: JournalTransactionStore) -> None:
        store.prepare(branches["active"])
        store.commit(branches["active"], one_phase=False)  # not in doubt here: it will be rolled back
        store.commit(branches["committed"], one_phase=False)
        again = begun(store, "committed")
        store.prepare(again)
        store.commit(again, one_phase=False)
        store.rollback(branches["rolled back"])
        store.end_heuristically(branches["by hand"], HeuristicDecision.ROLLBACK, "me", "because")
        store.end_heuristically(branches["completed"], HeuristicDecision.COMPLETE, "you", "therefore")
        store.forget(xa("by hand"))

    tail = tail_behind(before, after)
    assert {became: branches.keys for became, branches in tail.reopened.items()} == {
        "committed": [str(xa("committed"))],
        "rolled back": [str(xa("rolled back")), str(xa("by hand"))],
        "completed": [str(xa("completed"))],
    }
    assert tail.committed.keys == [str(xa(name)) for name in ("active", "committed", "committed")]
    assert tail.forgotten.keys == [str(xa("by hand"))]
    lines = list(tail_lines(tail))
    for line in (
        f"in doubt again here, committed there: {xa('committed')}",
        f"in doubt again here, completed there: {xa('completed')}",
        f"decided there: {xa('completed')}, complete, by you: therefore",
        f"forgotten there: {xa('by hand')}",
    ):
        assert line in lines, lines


def test_a_branch_of_the_copys_own_is_not_taken_for_one_that_began_there_at_the_same_lsn() -> None:
    """Both go on from the same record, each for itself."""
    storage = FaultyStorage(Random(0))
    open_store(storage).close()
    copy, at = copy_of(storage), end_of(storage)
    there, here = open_store(storage), open_store(copy)
    theirs, ours = begun(there, "there"), begun(here, "here")
    here.prepare(ours)
    there.prepare(theirs)
    there.commit(theirs, one_phase=False)
    assert ours.branch is not None
    assert theirs.branch is not None
    assert ours.branch.first_lsn == theirs.branch.first_lsn >= at
    tail = told(there, at, here.state)
    assert (tail.committed.count, tail.reopened) == (1, {})
    there.close()
    here.close()


@pytest.mark.parametrize("decision", [HeuristicDecision.COMMIT, HeuristicDecision.ROLLBACK])
def test_what_the_copy_does_again_is_not_lost(decision: HeuristicDecision) -> None:
    """The copy ends between an operator's decision and the record that carries it out."""
    storage = FaultyStorage(Random(0))
    there = open_store(storage)
    put(there, ORDERS, b"before")
    branch = begun(there, "by hand")
    there.prepare(branch)
    there.end_heuristically(branch, decision, "me", "because")
    put(there, ORDERS, b"after")
    there.journal.wait_flushed(there.journal.end)
    copy = copy_of(storage)
    segments = opened(copy)
    at = next(
        one.header.end for one in Scanner(segments, segments.start) if one.header.record_type == RecordType.HEURISTIC
    )
    assert truncate(copy, IDENTITY, at, 1) is not None
    state = state_of(copy)
    entries = list(RecordReader(scanner_from(there.journal.segments, at)))
    assert tail_of(entries[:1], at, state).is_silent
    tail = told(there, at, state)
    assert tail.reapplied.keys == [str(xa("by hand"))]
    assert (tail.committed.count, tail.rolled_back.count, tail.reopened) == (0, 0, {})
    here = open_store(copy)
    taken = here.state.end_of(ORDERS)
    assert taken == (9 if decision is HeuristicDecision.COMMIT else 6)
    assert tail.ranges == {str(ORDERS): TailRange(taken, taken + 5, 1)}
    here.close()
    there.close()


@pytest.mark.parametrize("count", [0, 1])
def test_an_open_and_a_checkpoint_tell_nobody_anything(count: int) -> None:
    def after(store: JournalTransactionStore) -> None:
        for _ in range(count):
            store.on_checkpoint(1, store.snapshot())

    assert tail_behind(lambda store: None, after).is_silent


def test_what_is_left_out_of_the_lines_is_counted() -> None:
    tail = Tail(0, 9000, others={"TOPIC": 2, "LEDGER": 1})
    for number in range(KEYS_MAX + 2):
        tail.committed.add(str(xa(f"c{number}")))
        decision = HeuristicDecision.ROLLBACK
        tail.decided.add(Heuristic(xa(f"d{number}"), Lsn(128), decision, 5, 3, 300, "ann", "sure"))
    lines = list(tail_lines(tail))
    assert len(lines) == 2 * KEYS_MAX + 4
    assert lines[KEYS_MAX] == "committed there: 2 more"
    assert lines[KEYS_MAX + 1] == f"decided there: {xa('d0')}, rollback, by ann: sure"
    assert lines[-3:] == ["decided there: 2 more", "1 LEDGER records", "2 TOPIC records"]
    assert not tail.is_silent
