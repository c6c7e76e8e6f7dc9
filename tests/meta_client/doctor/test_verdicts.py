"""The table of verdicts, walked over every combination of what sides can say."""

from itertools import product

import pytest

from meta_client.doctor.verdicts import (
    CERTAIN,
    FOR_A_PERSON,
    Age,
    BranchAnswer,
    Facts,
    Owner,
    OwnerAnswer,
    Verdict,
    verdict_on,
)

ALL = [Facts(*one) for one in product(Owner, OwnerAnswer, BranchAnswer, Age, (None, *BranchAnswer))]
BY_HAND = {BranchAnswer.COMMITTED_BY_HAND, BranchAnswer.ROLLED_BACK_BY_HAND, BranchAnswer.COMPLETED_BY_HAND}
COMMITTED = {BranchAnswer.COMMITTED, BranchAnswer.COMMITTED_BY_HAND}
ROLLED_BACK = {BranchAnswer.ROLLED_BACK, BranchAnswer.ROLLED_BACK_BY_HAND}


def test_every_combination_has_a_verdict_of_one_kind() -> None:
    for facts in ALL:
        kinds = [verdict_on(facts) in kind for kind in (CERTAIN, FOR_A_PERSON, {Verdict.DONE, Verdict.WAIT})]
        assert kinds.count(True) == 1, facts
    assert {verdict_on(facts) for facts in ALL} == set(Verdict)
    assert CERTAIN | FOR_A_PERSON | {Verdict.DONE, Verdict.WAIT} == set(Verdict)


@pytest.mark.parametrize("facts", [facts for facts in ALL if verdict_on(facts) in CERTAIN], ids=str)
def test_certain_takes_a_decision_that_was_made_or_can_be(facts: Facts) -> None:
    """Verdicts are uncertain for a foreign branch, from silence alone, or while its own process may be at work."""
    assert facts.said is BranchAnswer.PREPARED or facts.said in BY_HAND
    match verdict_on(facts):
        case Verdict.COMMIT:
            assert facts.decided is OwnerAnswer.COMMIT
            assert facts.before in (
                None,
                BranchAnswer.PREPARED,
                BranchAnswer.COMMITTED,
            )  # a row never comes after its message
        case Verdict.ROLL_BACK:
            assert facts.decided is OwnerAnswer.ROLLBACK
        case Verdict.DECIDE:
            assert (facts.owner, facts.decided) == (Owner.TABLE, OwnerAnswer.NONE)
        case Verdict.AGREED:
            assert (facts.decided, facts.said) in {
                (OwnerAnswer.COMMIT, BranchAnswer.COMMITTED_BY_HAND),
                (OwnerAnswer.ROLLBACK, BranchAnswer.ROLLED_BACK_BY_HAND),
            }
            return
    assert facts.age is not Age.YOUNG
    assert facts.owner is not Owner.FOREIGN


def test_silence_is_never_an_answer() -> None:
    for facts in ALL:
        if facts.said is BranchAnswer.SILENT:
            assert verdict_on(facts) is Verdict.UNKNOWN
        if facts.decided is OwnerAnswer.SILENT:
            assert verdict_on(facts) not in CERTAIN
        if (
            facts.decided is OwnerAnswer.COMMIT
            and facts.before is BranchAnswer.SILENT
            and facts.said is BranchAnswer.PREPARED
        ):
            assert verdict_on(facts) in {Verdict.UNKNOWN, Verdict.WAIT, Verdict.ASK}


def test_what_is_at_work_is_left_to_itself() -> None:
    for facts in ALL:
        if facts.said is BranchAnswer.PREPARED and (facts.age is Age.YOUNG):
            assert verdict_on(facts) is Verdict.WAIT
        if verdict_on(facts) is Verdict.WAIT:
            assert facts.said is BranchAnswer.PREPARED
            assert facts.age is Age.YOUNG or (facts.decided is OwnerAnswer.OPEN and facts.age is Age.OLD)


def test_sides_that_differ_are_never_called_done() -> None:
    for facts in ALL:
        verdict = verdict_on(facts)
        differ = (facts.decided is OwnerAnswer.COMMIT and facts.said in ROLLED_BACK) or (
            facts.decided is OwnerAnswer.ROLLBACK and facts.said in COMMITTED
        )
        if differ:
            assert verdict is Verdict.MIXED, facts
        if facts.decided is OwnerAnswer.COMMIT and facts.said in {BranchAnswer.UNKNOWN, BranchAnswer.COMPLETED_BY_HAND}:
            assert verdict is Verdict.HAZARD, facts
        if verdict is Verdict.DONE:
            assert facts.said in {BranchAnswer.COMMITTED, BranchAnswer.ROLLED_BACK, BranchAnswer.UNKNOWN}
