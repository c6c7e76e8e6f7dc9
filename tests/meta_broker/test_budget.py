"""Who has to let go when all together hold too much: whoever has not got on for the longest."""

from hypothesis import given
from hypothesis import strategies as st

from meta_broker.budget import Budget


def test_the_longest_without_progress_goes_first_however_little_it_holds() -> None:
    budget: Budget[str] = Budget(100)
    budget.note("stalled", 1, gets_on=False)
    budget.note("busy", 60, gets_on=False)
    budget.note("large", 30, gets_on=False)
    assert budget.excess() is None
    budget.note("busy", 70, gets_on=True)  # to the back
    assert budget.excess() == "stalled"
    budget.note("stalled", 0, gets_on=False)
    assert budget.excess() is None  # 100 are allowed
    budget.note("large", 31, gets_on=False)  # more of the same keeps its place
    assert budget.excess() == "large"


def test_it_tells_what_was_noted_last() -> None:
    budget: Budget[str] = Budget(100)
    budget.note("one", 30, gets_on=False)
    budget.note("one", 20, gets_on=True)
    assert (budget.held_by("one"), budget.held_by("nobody")) == (20, 0)


holders = st.sampled_from("abc")


@given(st.lists(st.tuples(holders, st.integers(0, 50), st.booleans()), max_size=40))
def test_the_total_is_what_everybody_holds_and_evicting_ends(steps: list[tuple[str, int, bool]]) -> None:
    budget: Budget[str] = Budget(60)
    model: dict[str, int] = {}
    for holder, held, gets_on in steps:
        budget.note(holder, held, gets_on=gets_on)
        model[holder] = held
        while (out := budget.excess()) is not None:
            assert model[out] > 0
            model[out] = 0
            budget.note(out, 0, gets_on=False)
        assert budget.total == sum(model.values()) <= 60
