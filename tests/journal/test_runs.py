"""The runs of a branch are as a list of them, and know their totals."""

from hypothesis import given
from hypothesis import strategies as st

from journal.frame import Lsn
from journal.runs import Run, Runs

U32, U40 = st.integers(0, 2**32 - 1), st.integers(0, 2**40)
one = st.builds(lambda lsn, *rest: Run(Lsn(lsn), *rest), U40, U32, U32, U40)


@given(first=st.lists(one, min_size=1, max_size=8), data=st.data())
def test_totals_follow_what_is_added_and_what_is_replaced(first: list[Run], data: st.DataObject) -> None:
    listed, runs = list(first), Runs(first)
    for _ in range(data.draw(st.integers(1, 8))):
        run = data.draw(one)
        if data.draw(st.booleans()):
            listed.append(run)
            runs.append(run)
        else:
            at = data.draw(st.integers(-len(listed), len(listed) - 1))
            listed[at] = runs[at] = run
    assert runs == listed
    assert (runs.bytes, runs.messages) == (sum(run.bytes for run in listed), sum(run.messages for run in listed))
