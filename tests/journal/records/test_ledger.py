"""Findings about transactions whose sides differ: on record through restarts and power cuts, until forgotten."""

import struct
from random import Random

import msgspec
import pytest

from journal.errors import InvalidRecord
from journal.records.heuristics import WHO_BYTES_MAX, WHY_BYTES_MAX, HeuristicDecision
from journal.records.ledger import EVIDENCE_BYTES_MAX, Disagreement, Finding, LedgerEntry, decode_entry, encode_entry
from journal.records.record import Forget
from journal.records.xid import LocalKey
from journal.repair.check import check, differences
from journal.repair.tail import tail_of
from journal.state import transaction_store
from journal.state.checkpoint import checkpoint_of
from journal.state.inspection import describe, read_checkpoints
from journal.state.journal_state import JournalState
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.scan import Scanner
from tests.fixtures.faulty_storage import FaultyStorage, PowerCut
from tests.fixtures.journals import ORDERS, open_store, xa
from tests.fixtures.raw_journal import opened

KEY = xa("order-1")
MIXED, HAZARD = Disagreement
FOUND = LedgerEntry(KEY, MIXED, "ann@db1", "the row is there", "row: commit; broker 0: rolled back")


def findings(store: JournalTransactionStore) -> list[tuple[str, Disagreement, str, str, str]]:
    return [(one.key, one.disagreement, one.who, one.why, one.evidence) for one in store.state.ledger]


WANTED = [(str(KEY), MIXED, "ann@db1", "the row is there", "row: commit; broker 0: rolled back")]


@pytest.mark.parametrize("cut", [None, *PowerCut], ids=str)
@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_a_finding_stays_until_it_is_forgotten(with_checkpoint: bool, cut: PowerCut | None) -> None:
    storage = FaultyStorage(Random(0))
    store = open_store(storage)
    store.journal.wait_flushed(store.record_finding(FOUND))
    if with_checkpoint:
        store.on_checkpoint(store.write_checkpoint(store.snapshot(), {}), store.snapshot())
        store.journal.wait_flushed(store.journal.end)
    if cut is None:
        store.close()
    left = storage if cut is None else storage.after_power_cut(cut, Random(1))
    again = open_store(left)
    assert findings(again) == WANTED
    assert again.heuristics() == []  # no coordinator is told: nobody decided about a branch
    assert again.recover() == []
    again.journal.wait_flushed(again.forget(KEY))
    again.close()
    assert check(opened(left), read_checkpoints(left)).is_sound
    last = open_store(left)
    assert (findings(last), last.state.ledger.bytes) == ([], 0)
    last.close()
    if cut is not None:
        store.close()


def test_what_says_the_same_leaves_no_second_record_and_what_is_new_takes_its_place() -> None:
    store = open_store(FaultyStorage(Random(0)))
    end = store.record_finding(FOUND)
    assert (
        store.record_finding(LedgerEntry(KEY, MIXED, "bob", "seen again", FOUND.evidence)) == end == store.journal.end
    )
    assert findings(store) == WANTED
    assert store.record_finding(LedgerEntry(KEY, HAZARD, "bob", "and lost", "broker 0: unknown")) > end
    assert [(one.disagreement, one.who) for one in store.state.ledger] == [(HAZARD, "bob")]
    store.close()


def test_it_is_beside_the_branch_and_goes_with_what_an_operator_decided() -> None:
    store = open_store(FaultyStorage(Random(0)))
    branch = store.begin(KEY)
    store.transactional_put(branch, ORDERS, [b"row"], 3, 1)
    store.prepare(branch)
    store.record_finding(FOUND)
    assert store.find(KEY) is branch  # it can be decided and ended all the same
    store.end_heuristically(branch, HeuristicDecision.ROLLBACK, "ann", "no row")
    assert (store.heuristics(), len(store.state.ledger)) == ([KEY], 1)
    store.forget(KEY)
    assert (store.heuristics(), len(store.state.ledger)) == ([], 0)
    store.close()


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(FaultyStorage(Random(0)))
    for who, why, evidence in (
        *(("", "w", "e"), ("w", "", "e"), ("w", "w", ""), ("a" * (WHO_BYTES_MAX + 1), "w", "e")),
        *(("w", "y" * (WHY_BYTES_MAX + 1), "e"), ("w", "w", "e" * (EVIDENCE_BYTES_MAX + 1))),
    ):
        with pytest.raises(ValueError, match="bytes long"):
            store.record_finding(LedgerEntry(KEY, MIXED, who, why, evidence))
    store.record_finding(LedgerEntry(KEY, MIXED, "a" * WHO_BYTES_MAX, "y" * WHY_BYTES_MAX, "e" * EVIDENCE_BYTES_MAX))
    monkeypatch.setattr(transaction_store, "LEDGER_BYTES_MAX", store.state.ledger.bytes)
    with pytest.raises(ValueError, match="the ledger is full"):
        store.record_finding(LedgerEntry(xa("order-2"), MIXED, "ann", "why", "what"))
    store.forget(KEY)
    store.record_finding(LedgerEntry(xa("order-2"), MIXED, "ann", "why", "what"))
    store.close()


def test_records_that_can_not_be_are_refused() -> None:
    store = open_store(FaultyStorage(Random(0)))
    for record in (Forget(KEY), LedgerEntry(LocalKey("s", 1), MIXED, "ann", "why", "what")):
        with pytest.raises(InvalidRecord):
            store._append(record)
    store.close()
    meta = encode_entry(FOUND)
    assert decode_entry(KEY, meta) == FOUND
    for bad in (meta[: -len(FOUND.evidence)], meta[: meta.index(b"the")], b"\x03" + meta[1:], meta[:2]):
        with pytest.raises((ValueError, struct.error)):
            decode_entry(KEY, bad)


def test_tools_tell_of_it() -> None:
    storage = FaultyStorage(Random(0))
    store = open_store(storage)
    at = store.journal.end
    store.journal.wait_flushed(store.record_finding(FOUND))
    segments = opened(storage)
    (entry,) = [one for one in Scanner(segments, segments.start) if one.header.lsn == at]
    said = describe(entry)
    assert said.note == "mixed by ann@db1: the row is there: row: commit; broker 0: rolled back"
    tail = tail_of([entry], at, JournalState())
    assert (tail.others, tail.is_silent) == ({"LEDGER": 1}, False)
    store.close()


def test_an_older_metaq_s_checkpoint_has_none() -> None:
    assert JournalState().ledger.find(str(KEY)) is None
    finding = Finding(key=str(KEY), disagreement=MIXED, who="a", why="b", evidence="c", time_ms=1)
    assert finding.bytes == len(str(KEY)) + 3 + 128


def test_a_checkpoint_that_lacks_a_finding_differs() -> None:
    store = open_store(FaultyStorage(Random(0)))
    store.record_finding(FOUND)
    told = checkpoint_of(store.state, {})
    assert list(differences(store.state, told)) == []
    assert list(differences(store.state, msgspec.structs.replace(told, ledger=[]))) == [
        f"the ledger's entry about {KEY} is not that of the records"
    ]
    store.close()
