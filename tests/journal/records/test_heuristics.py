"""Operators' decisions about branches in doubt: recorded with evidence, applied once, reported until forgotten."""

from collections.abc import Iterator
from random import Random

import msgspec
import pytest

from journal.errors import InvalidRecord
from journal.records.header import Lsn
from journal.records.heuristics import WHO_BYTES_MAX, WHY_BYTES_MAX, HeuristicDecision
from journal.records.record import Commit, Heuristic, Rollback, RollbackReason
from journal.records.states import BranchNotStarted, HeuristicallyEnded, VerbRefused, XaCode
from journal.repair.check import differences
from journal.state import transaction_store
from journal.state.checkpoint import checkpoint_of
from journal.state.live_branch import LiveBranch
from journal.state.transaction_store import JournalTransactionStore
from tests.fixtures.faulty_storage import FaultyStorage
from tests.fixtures.journals import ORDERS, Index, open_store, xa

KEY = xa("order-1")
COMMIT, ROLLBACK, COMPLETE = HeuristicDecision


@pytest.fixture
def storage() -> FaultyStorage:
    return FaultyStorage(Random(0))


@pytest.fixture
def store(storage: FaultyStorage) -> Iterator[JournalTransactionStore]:
    store = open_store(storage)
    yield store
    store.close()


@pytest.fixture
def branch(store: JournalTransactionStore) -> LiveBranch:
    """Prepared, with one message."""
    branch = store.begin(KEY)
    store.transactional_put(branch, ORDERS, [b"row"], 3, 1)
    store.prepare(branch)
    return branch


def restarted(store: JournalTransactionStore, storage: FaultyStorage) -> tuple[JournalTransactionStore, Index]:
    store.close()
    index = Index()
    return open_store(storage, sink=index), index


@pytest.mark.scenario("U11")
@pytest.mark.parametrize("with_checkpoint", [False, True])
@pytest.mark.parametrize(
    ("decision", "code", "visible"),
    [(COMMIT, XaCode.XA_HEURCOM, b"row"), (ROLLBACK, XaCode.XA_HEURRB, b""), (COMPLETE, XaCode.XA_HEURHAZ, b"")],
)
def test_a_decision_holds_through_restarts_until_it_is_forgotten(
    store: JournalTransactionStore,
    storage: FaultyStorage,
    branch: LiveBranch,
    decision: HeuristicDecision,
    code: XaCode,
    visible: bytes,
    with_checkpoint: bool,
) -> None:
    result = store.end_heuristically(branch, decision, "ann@db1", "the order is in the database")
    store.journal.wait_flushed(result.lsn)
    assert b"".join(store.journal.segments.read(extent.lsn, extent.bytes) for _, _, extent in result.updates) == visible
    if with_checkpoint:
        store.write_checkpoint(store.snapshot(), {})
    again, index = restarted(store, storage)
    if not with_checkpoint:
        assert index.read(again.journal.segments).get(ORDERS, b"") == visible
    assert again.state.end_of(ORDERS) == len(visible)
    assert (again.recover(), again.heuristics(), again.heuristics("other")) == ([], [KEY], [])
    with pytest.raises(HeuristicallyEnded) as caught:
        again.find(KEY)
    assert caught.value.code is code
    ended = again.state.heuristics[KEY]
    assert (ended.who, ended.why, ended.messages, ended.bytes) == ("ann@db1", "the order is in the database", 1, 3)
    assert ended.prepared_ms < ended.time_ms
    again.forget(KEY)
    last, _ = restarted(again, storage)
    assert last.heuristics() == []
    with pytest.raises(BranchNotStarted):
        last.find(KEY)
    last.close()


@pytest.mark.parametrize(("decision", "visible"), [(COMMIT, b"row"), (ROLLBACK, b"")])
def test_what_was_decided_when_the_power_went_is_done_at_the_next_start(
    store: JournalTransactionStore,
    storage: FaultyStorage,
    branch: LiveBranch,
    decision: HeuristicDecision,
    visible: bytes,
) -> None:
    assert branch.branch is not None
    seen = branch.branch.prepared_ms, 1, 3
    store._append(Heuristic(KEY, branch.branch.first_lsn, decision, *seen, "ann", "row is there"))
    again, index = restarted(store, storage)
    assert index.read(again.journal.segments).get(ORDERS, b"") == visible
    assert (again.recover(), again.heuristics(), again.transactions) == ([], [KEY], {})
    last, index = restarted(again, storage)
    assert index.read(last.journal.segments).get(ORDERS, b"") == visible
    last.close()


def test_only_a_prepared_branch_is_decided_about(store: JournalTransactionStore, branch: LiveBranch) -> None:
    other = store.begin(xa("order-2"))
    end = store.journal.end
    with pytest.raises(VerbRefused, match="only a prepared branch is in doubt") as caught:
        store.end_heuristically(other, COMMIT, "ann", "why")
    assert caught.value.code is XaCode.XAER_PROTO
    for who, why in [("", "why"), ("ann", ""), ("a" * (WHO_BYTES_MAX + 1), "why"), ("ann", "y" * (WHY_BYTES_MAX + 1))]:
        with pytest.raises(ValueError, match="bytes long"):
            store.end_heuristically(branch, COMMIT, who, why)
    assert store.journal.end == end
    assert store.recover() == [branch]


def test_forgetting_what_nobody_decided_does_nothing(store: JournalTransactionStore, branch: LiveBranch) -> None:
    end = store.journal.end
    assert store.forget(KEY) == store.forget(xa("nobody")) == end
    assert store.recover() == [branch]


def test_a_new_branch_of_the_same_name_is_another_one(store: JournalTransactionStore, branch: LiveBranch) -> None:
    store.end_heuristically(branch, ROLLBACK, "ann", "no row")
    again = store.begin(KEY)
    store.transactional_put(again, ORDERS, [b"new"], 3, 1)
    assert store.find(KEY) is again
    store.prepare(again)
    assert [live.key for live in store.recover()] == store.heuristics() == [KEY]
    store.commit(again, one_phase=False)
    with pytest.raises(HeuristicallyEnded, match="heuristically rolled back"):
        store.find(KEY)


def test_records_that_contradict_a_decision_are_refused(store: JournalTransactionStore, branch: LiveBranch) -> None:
    assert branch.branch is not None
    lsn, seen = branch.branch.first_lsn, (branch.branch.prepared_ms, 1, 3)
    with pytest.raises(InvalidRecord, match="which is not what it put"):
        store._append(Heuristic(KEY, lsn, COMMIT, seen[0], 2, 3, "ann", "why"))
    with pytest.raises(InvalidRecord, match="no live branch"):
        store._append(Heuristic(KEY, Lsn(lsn + 8), COMMIT, *seen, "ann", "why"))
    store._append(Heuristic(KEY, lsn, ROLLBACK, *seen, "ann", "why"))
    with pytest.raises(InvalidRecord, match="decided to roll it back"):
        store._append(Commit(KEY, lsn, False, branch.branch.assign_offsets(store.state.offset_ranges)))
    store._append(Heuristic(KEY, lsn, COMMIT, *seen, "ann", "why"))
    with pytest.raises(InvalidRecord, match="decided to commit it"):
        store._append(Rollback(KEY, lsn, RollbackReason.ASKED))


def test_unforgotten_decisions_are_bounded(store: JournalTransactionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_store, "HEURISTICS_MAX", 2)
    branches = []
    for number in range(3):
        branch = store.begin(xa(f"many-{number}"))
        store.transactional_put(branch, ORDERS, [b"row"], 3, 1)
        store.prepare(branch)
        branches.append(branch)
    for branch in branches[:2]:
        store.end_heuristically(branch, COMPLETE, "ann", "tested")
    with pytest.raises(ValueError, match="2 decisions of operators are remembered: forget some"):
        store.end_heuristically(branches[2], COMPLETE, "ann", "tested")
    assert [found.key for found in store.recover()] == [branches[2].key]  # as it was
    store.forget(xa("many-0"))
    store.end_heuristically(branches[2], COMPLETE, "ann", "tested")


def test_a_checkpoint_that_lacks_a_decision_differs(store: JournalTransactionStore, branch: LiveBranch) -> None:
    store.end_heuristically(branch, ROLLBACK, "ann", "no row")
    told = checkpoint_of(store.state, {})
    assert list(differences(store.state, told)) == []
    assert list(differences(store.state, msgspec.structs.replace(told, heuristics=[]))) == [
        f"the operator's decision about {KEY} is not that of the records"
    ]
    store.close()
