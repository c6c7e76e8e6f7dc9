"""What the end of a journal holds, told by what was last said of each branch and each partition."""

from collections.abc import Callable
from random import Random

import pytest

from journal.heuristics import HeuristicDecision
from journal.inspection import Reading, scanner_from
from journal.records import PartitionName, RollbackReason
from journal.tail import Stretch, Tail, tail_lines, tail_of
from journal.transaction_store import JournalTransactionStore, Transaction
from tests.fixtures.faulty_storage import FaultyStorage
from tests.fixtures.journals import ORDERS, STOCK, open_store, xa

Did = Callable[[JournalTransactionStore], None]


def put(store: JournalTransactionStore, name: PartitionName, data: bytes) -> None:
    store.put(name, [data], len(data), 1)


def begun(store: JournalTransactionStore, name: str) -> Transaction:
    branch = store.begin(xa(name))
    store.transactional_put(branch, ORDERS, [b"abc"], 3, 1)
    return branch


def tail_behind(before: Did, after: Did) -> Tail:
    """Of what *after* does to a store that *before* has worked on."""
    store = open_store(FaultyStorage(Random(0)))
    before(store)
    at = store.journal.end
    after(store)
    store.journal.wait_flushed(store.journal.end)
    tail = tail_of(Reading(scanner_from(store.journal.segments, at)), at)
    assert (tail.start, tail.end) == (at, store.journal.end)
    store.close()
    return tail


def test_ranges_hold_what_could_be_read_there_and_nowhere_else() -> None:
    def after(store: JournalTransactionStore) -> None:
        for number in range(3):
            put(store, ORDERS, b"<%d>" % number)
        put(store, STOCK, b"here")
        begun(store, "active")  # nobody could read that

    tail = tail_behind(lambda store: put(store, ORDERS, b"before"), after)
    assert tail.ranges == {str(ORDERS): Stretch(6, 15, 3), str(STOCK): Stretch(0, 4, 1)}
    assert (tail.messages, tail.prepared.count, tail.records) == (4, 0, 5)


def test_a_branch_is_told_once_by_what_became_of_it() -> None:
    branches: dict[str, Transaction] = {}

    def before(store: JournalTransactionStore) -> None:
        for name in ("committed", "rolled back", "by hand"):
            branches[name] = begun(store, name)
            store.prepare(branches[name])

    def after(store: JournalTransactionStore) -> None:
        store.prepare(begun(store, "in doubt"))
        store.commit(branches["committed"], one_phase=False)
        store.rollback(branches["rolled back"], RollbackReason.ASKED)
        store.decide(branches["by hand"], HeuristicDecision.COMMIT, "me", "because")
        one_phase = begun(store, "at once")
        store.commit(one_phase, one_phase=True)

    tail = tail_behind(before, after)
    assert tail.prepared.keys == [str(xa("in doubt"))]
    assert tail.committed.keys == [str(xa(name)) for name in ("committed", "by hand", "at once")]
    assert tail.rolled_back.keys == [str(xa("rolled back"))]
    assert tail.others == {"HEURISTIC": 1}
    assert tail.ranges == {str(ORDERS): Stretch(0, 9, 3)}
    assert f"in doubt there: {xa('in doubt')}" in list(tail_lines(tail))


@pytest.mark.parametrize("count", [0, 1])
def test_an_open_and_a_checkpoint_tell_nobody_anything(count: int) -> None:
    def after(store: JournalTransactionStore) -> None:
        for _ in range(count):
            store.note_checkpoint(1, store.snapshot())

    assert tail_behind(lambda store: None, after).is_silent
