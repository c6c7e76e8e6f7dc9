"""The table of steps: every pair, and what must never be reached."""

import itertools

import pytest

from meta_client.transactions.steps import NEXT, UNDECIDED_STEPS, CommitStep, next_step


@pytest.mark.parametrize(("current", "wanted"), list(itertools.product(CommitStep, CommitStep)))
def test_every_pair(current: CommitStep, wanted: CommitStep) -> None:
    if wanted in NEXT[current]:
        assert next_step(current, wanted) is wanted
        return
    with pytest.raises(AssertionError, match="must not follow"):
        next_step(current, wanted)


def test_nothing_undoes_a_decision() -> None:
    reached, todo = {CommitStep.DECIDED}, [CommitStep.DECIDED]
    while todo:
        for step in NEXT[todo.pop()] - reached:
            reached.add(step)
            todo.append(step)
    assert not reached & (UNDECIDED_STEPS | {CommitStep.ROLLED_BACK})
