"""The store's verbs: what they return, what they refuse, and that a refusal changes nothing."""

from collections.abc import Callable, Iterator
from random import Random

import pytest

from journal.errors import RecordTooLarge, StorageFailed
from journal.records.record import PartitionName, RollbackReason
from journal.records.states import BranchNotStarted, BranchState, VerbRefused, XaCode
from journal.records.xid import LocalKey
from journal.state.journal_state import JournalState
from journal.state.live_branch import LiveBranch
from journal.state.transaction_store import JournalTransactionStore
from tests.fixtures.faulty_storage import FaultyStorage
from tests.fixtures.journals import ORDERS, STOCK, Index, open_store, xa

KEY = xa("order-1")


@pytest.fixture
def storage() -> FaultyStorage:
    return FaultyStorage(Random(0))


@pytest.fixture
def store(storage: FaultyStorage) -> Iterator[JournalTransactionStore]:
    store = open_store(storage)
    yield store
    store.close()


def put(store: JournalTransactionStore, transaction: LiveBranch, data: bytes, name: PartitionName = ORDERS) -> None:
    store.transactional_put(transaction, name, [data], len(data), 1)


def restarted(store: JournalTransactionStore, storage: FaultyStorage) -> tuple[JournalTransactionStore, Index]:
    store.close()
    index = Index()
    return open_store(storage, sink=index), index


def test_put_takes_the_offsets_at_the_end(store: JournalTransactionStore) -> None:
    one = store.put(ORDERS, [b"abc", b"de"], 5, 2)
    other = store.put(ORDERS, [b"f"], 1, 1)
    assert [entry.base for result in (one, other) for entry in result.updates] == [0, 5]
    assert other.lsn == store.journal.end


def test_a_branch_is_invisible_until_it_commits(store: JournalTransactionStore, storage: FaultyStorage) -> None:
    branch = store.begin(KEY)
    put(store, branch, b"one")
    store.put(ORDERS, [b"plain"], 5, 1)
    put(store, branch, b"two")
    assert store.prepare(branch)[0] is XaCode.XA_OK
    result = store.commit(branch, one_phase=False)
    assert [(entry.name, entry.base, entry.extent.bytes) for entry in result.updates] == [
        (ORDERS, 5, 3),
        (ORDERS, 8, 3),
    ]
    again, index = restarted(store, storage)
    assert index.read(again.journal.segments) == {ORDERS: b"plainonetwo"}
    again.close()


@pytest.mark.scenario("U10")
def test_an_empty_branch_leaves_no_record(store: JournalTransactionStore) -> None:
    end = store.journal.end
    assert store.prepare(store.begin(KEY)) == (XaCode.XA_RDONLY, end)
    assert store.commit(store.begin(KEY), one_phase=True).updates == []
    assert store.rollback(store.begin(KEY)) == end
    assert store.journal.end == end
    assert store.transactions == {}


def test_a_live_key_begins_once(store: JournalTransactionStore) -> None:
    branch = store.begin(KEY)
    put(store, branch, b"x")
    assert store.begin(KEY) is branch
    assert store.find(KEY) is branch
    store.commit(branch, one_phase=True)
    with pytest.raises(BranchNotStarted, match=rf"XA transaction '{KEY}' has not been started\."):
        store.find(KEY)
    assert store.begin(KEY) is not branch


Verb = Callable[[JournalTransactionStore, LiveBranch], object]
VERBS: dict[str, Verb] = {
    "put": lambda store, branch: put(store, branch, b"late"),
    "prepare": lambda store, branch: store.prepare(branch),
    "one phase": lambda store, branch: store.commit(branch, one_phase=True),
    "two phases": lambda store, branch: store.commit(branch, one_phase=False),
    "rollback": lambda store, branch: store.rollback(branch),
}


@pytest.mark.scenario("U16")
@pytest.mark.parametrize("verb", VERBS)
def test_what_is_over_stays_over(store: JournalTransactionStore, verb: str) -> None:
    branch = store.begin(KEY)
    put(store, branch, b"x")
    store.commit(branch, one_phase=True)
    end = store.journal.end
    with pytest.raises(BranchNotStarted):
        VERBS[verb](store, branch)
    assert store.journal.end == end


@pytest.mark.parametrize("verb", ["put", "prepare"])
def test_a_prepared_branch_takes_neither_put_nor_prepare(store: JournalTransactionStore, verb: str) -> None:
    branch = store.begin(KEY)
    put(store, branch, b"x")
    store.prepare(branch)
    end = store.journal.end
    with pytest.raises(VerbRefused) as caught:
        VERBS[verb](store, branch)
    assert caught.value.code is XaCode.XAER_PROTO
    assert store.journal.end == end
    assert store.recover() == [branch]


@pytest.mark.parametrize("reason", set(RollbackReason) - {RollbackReason.ASKED})
def test_only_an_asked_for_rollback_touches_a_prepared_branch(
    store: JournalTransactionStore, storage: FaultyStorage, reason: RollbackReason
) -> None:
    branch = store.begin(KEY)
    put(store, branch, b"x")
    store.prepare(branch)
    assert store.rollback(branch, reason) == store.journal.end
    assert store.recover() == [branch]
    again, _ = restarted(store, storage)
    assert [live.key for live in again.recover()] == [KEY]
    again.close()


def test_recover_lists_by_qualifier_in_the_order_of_beginning(
    store: JournalTransactionStore, storage: FaultyStorage
) -> None:
    for name, qualifier in (("b", "one"), ("a", "two"), ("c", "one")):
        branch = store.begin(xa(name, qualifier))
        put(store, branch, b"x")
        store.prepare(branch)
    put(store, store.begin(xa("active", "one")), b"x")
    for _ in range(2):
        assert [live.key for live in store.recover()] == [xa("b", "one"), xa("a", "two"), xa("c", "one")]
        assert [live.key for live in store.recover("one")] == [xa("b", "one"), xa("c", "one")]
        assert store.recover("three") == []
        store, _ = restarted(store, storage)
    store.close()


def test_a_restart_keeps_what_is_prepared_and_rolls_back_what_is_active(
    store: JournalTransactionStore, storage: FaultyStorage
) -> None:
    for key in (KEY, xa("active"), LocalKey("s", 1)):
        put(store, store.begin(key), b"x")
    store.prepare(store.find(KEY))
    again, index = restarted(store, storage)
    assert list(again.transactions) == [KEY]
    assert again.transactions[KEY].state is BranchState.PREPARED
    assert len(again.state.branches) == 1
    index.publish_all(again.commit(again.find(KEY), one_phase=False).updates)
    again.journal.wait_flushed(again.journal.end)
    assert index.read(again.journal.segments) == {ORDERS: b"x"}
    again.close()


def many_partitions(count: int) -> list[PartitionName]:
    """More than one COMMIT of the smallest segment can name, when there are enough of them."""
    return [PartitionName("topic-with-a-name-of-some-length", number) for number in range(count)]


def test_a_commit_that_would_not_fit_is_not_promised(store: JournalTransactionStore) -> None:
    branch = store.begin(KEY)
    for name in many_partitions(80):
        put(store, branch, b"x", name)
    with pytest.raises(RecordTooLarge, match="send less at a time, or raise segment_bytes"):
        store.prepare(branch)
    assert branch.state is BranchState.IN_USE
    with pytest.raises(RecordTooLarge):
        store.commit(branch, one_phase=True)
    assert branch.state is BranchState.IN_USE
    assert store.find(KEY) is branch
    store.rollback(branch)
    assert store.transactions == {}
    assert store.state.branches == {}


def test_a_record_that_would_not_fit_changes_nothing(store: JournalTransactionStore, storage: FaultyStorage) -> None:
    branch = store.begin(KEY)
    put(store, branch, b"x")
    end = store.journal.end
    big = bytes(store.journal.body_bytes_max)
    with pytest.raises(RecordTooLarge):
        store.put(ORDERS, [big], len(big), 1)
    with pytest.raises(RecordTooLarge):
        put(store, branch, big)
    assert store.journal.end == end
    store.commit(branch, one_phase=True)
    again, index = restarted(store, storage)
    assert index.read(again.journal.segments) == {ORDERS: b"x"}
    again.close()


def test_the_longest_record_there_is_fits(store: JournalTransactionStore, storage: FaultyStorage) -> None:
    data = bytes(range(256)) * 16
    data = data[: store.journal.body_bytes_max - 22]  # a PUT's meta to orders-0
    store.put(ORDERS, [data], len(data), 1)
    again, index = restarted(store, storage)
    assert index.read(again.journal.segments) == {ORDERS: data}
    again.close()


@pytest.mark.parametrize("damaged", [False, True])
def test_a_lost_index_is_rebuilt_from_the_journals_birth(
    store: JournalTransactionStore, storage: FaultyStorage, damaged: bool
) -> None:
    index = Index()
    for number in range(30):
        index.publish_all(store.put((ORDERS, STOCK)[number % 2], [b"%040d" % number], 40, 1).updates)
    taken = store.snapshot()
    store.write_checkpoint(taken, {})
    kept = {name: list(entries) for name, entries in index.entries.items()}
    index.publish_all(store.put(ORDERS, [b"after"], 5, 1).updates)
    store.journal.wait_flushed(store.journal.end)
    expected = index.read(store.journal.segments)
    store.close()
    sink = Index(kept, lost={ORDERS} if damaged else set())
    again = open_store(storage, sink=sink)
    assert again.recovered.damaged == []
    assert sink.read(again.journal.segments) == expected
    again.close()


def test_opening_over_a_failing_disk_leaves_nothing_open() -> None:
    for nth in range(5):  # names twice, create, write, sync
        storage = FaultyStorage(Random(nth), fail_at=nth)
        with pytest.raises(StorageFailed):
            open_store(storage)
        assert storage.fault_fired
        for file in storage.files.values():
            with pytest.raises(ValueError, match="released memoryview"):
                file.reader()


def test_state_is_the_fold_of_what_was_appended(store: JournalTransactionStore) -> None:
    branch = store.begin(KEY)
    put(store, branch, b"abc")
    state: JournalState = store.state
    assert (state.lsn, state.end_of(ORDERS), state.end_of(STOCK)) == (store.journal.end, 0, 0)
    store.commit(branch, one_phase=True)
    assert state.end_of(ORDERS) == 3
