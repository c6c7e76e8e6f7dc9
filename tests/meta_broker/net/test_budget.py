"""Choice of the connection to close when all together hold too much: the one longest without progress."""

from hypothesis import given
from hypothesis import strategies as st

from meta_broker.net.budget import Budget


def test_the_longest_without_progress_goes_first_however_little_it_holds() -> None:
    budget: Budget[str] = Budget(100)
    budget.record("stalled", 1, made_progress=False)
    budget.record("busy", 60, made_progress=False)
    budget.record("large", 30, made_progress=False)
    assert budget.excess() is None
    budget.record("busy", 70, made_progress=True)  # to the back
    assert budget.excess() == "stalled"
    budget.record("stalled", 0, made_progress=False)
    assert budget.excess() is None  # 100 are allowed
    budget.record("large", 31, made_progress=False)  # more of the same keeps its place
    assert budget.excess() == "large"


def test_it_tells_what_was_recorded_last() -> None:
    budget: Budget[str] = Budget(100)
    budget.record("one", 30, made_progress=False)
    budget.record("one", 20, made_progress=True)
    assert (budget.held_by("one"), budget.held_by("nobody")) == (20, 0)


holders = st.sampled_from("abc")


@given(st.lists(st.tuples(holders, st.integers(0, 50), st.booleans()), max_size=40))
def test_the_total_is_what_everybody_holds_and_evicting_ends(steps: list[tuple[str, int, bool]]) -> None:
    budget: Budget[str] = Budget(60)
    model: dict[str, int] = {}
    for holder, held, made_progress in steps:
        budget.record(holder, held, made_progress=made_progress)
        model[holder] = held
        while (out := budget.excess()) is not None:
            assert model[out] > 0
            model[out] = 0
            budget.record(out, 0, made_progress=False)
        assert budget.total == sum(model.values()) <= 60
