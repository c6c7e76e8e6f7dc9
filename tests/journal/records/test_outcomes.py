"""Outcomes of branches: kept for a bounded time, and through a checkpoint. Power cuts: see tests/model."""

import msgspec
import pytest

from journal.errors import InvalidContent
from journal.records import outcomes as module
from journal.records.outcomes import FinishedBranch, Outcome, Outcomes
from journal.repair.check import differences
from journal.state.checkpoint import checkpoint_of, decode_checkpoint, encode_checkpoint, state_of
from journal.state.journal_state import JournalState


def ended(number: int, outcome: Outcome = Outcome.COMMITTED) -> FinishedBranch:
    return FinishedBranch(f"XID:1:{number:08x}:62:uq", outcome, number)


def test_the_last_end_of_a_name_counts_and_dropping_forgets_it() -> None:
    outcomes = Outcomes()
    first, second = ended(1), ended(2)
    for one in (first, second, FinishedBranch(first.key, Outcome.ROLLED_BACK, 3)):
        outcomes.add(one)
    assert outcomes.find(first.key) == FinishedBranch(first.key, Outcome.ROLLED_BACK, 3)
    assert [one.key for one in outcomes] == [second.key, first.key]  # the newest last
    outcomes.remove(first.key)
    outcomes.remove(first.key)
    assert outcomes.find(first.key) is None
    assert list(outcomes) == [second]


def test_memory_is_bounded_by_bytes_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OUTCOMES_BYTES_MAX", 10 * (len(ended(0).key) + 64))
    outcomes = Outcomes()
    for number in range(25):
        outcomes.add(ended(number))
    assert list(outcomes) == [ended(number) for number in range(15, 25)]
    outcomes.add(ended(20))
    assert len(outcomes) == 10
    outcomes.add(
        FinishedBranch("XID:1:61:62:" + "q" * 300, Outcome.COMMITTED, 99)
    )  # a long name takes the room of several
    assert len(outcomes) == 6
    for one in list(outcomes):
        outcomes.remove(one.key)
    for number in range(30):  # nothing that was dropped is still counted
        outcomes.add(ended(number))
    assert len(outcomes) == 10


def test_a_checkpoint_keeps_them_in_their_order_and_the_check_compares_them() -> None:
    state = JournalState()
    for number in (3, 1, 2):
        state.outcomes.add(ended(number, Outcome.ROLLED_BACK if number == 1 else Outcome.COMMITTED))
    checkpoint = checkpoint_of(state, {})
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint
    assert list(state_of(checkpoint).outcomes) == list(state.outcomes)
    assert list(differences(state, checkpoint)) == []
    lying = msgspec.structs.replace(checkpoint, outcomes=[ended(3), ended(1)])
    assert list(differences(state, lying)) == [
        "the outcome of XID:1:00000001:62:uq is committed at 1, the records say rolled_back at 1",
        "the outcome of XID:1:00000002:62:uq is unknown, the records say committed at 2",
    ]


@pytest.mark.parametrize("key", ["TX:s:1", "nonsense"])
def test_an_outcome_of_no_xa_branch_is_damage(key: str) -> None:
    checkpoint = msgspec.structs.replace(
        checkpoint_of(JournalState(), {}), outcomes=[FinishedBranch(key, Outcome.COMMITTED, 1)]
    )
    with pytest.raises(InvalidContent):
        decode_checkpoint(encode_checkpoint(checkpoint))
