"""The high watermark: no action runs before it, all run in the order given, none twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.errors import StorageFailed
from journal.records.header import Lsn
from journal.wal.high_watermark import YIELD, HighWatermark, Yield

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("after"), st.integers(0, 20)),
        st.tuples(st.just("advance"), st.integers(0, 20)),
    )
)


def test_what_is_acknowledged_already_runs_at_once() -> None:
    high_watermark, ran = HighWatermark(Lsn(10)), list[int]()
    high_watermark.run_after(10, ran.append, 1)
    assert ran == [1]
    high_watermark.run_after(11, ran.append, 2)
    high_watermark.run_after(5, ran.append, 3)  # acknowledged, but it was asked for later
    assert ran == [1]
    assert len(high_watermark) == 2
    high_watermark.advance(11)
    assert ran == [1, 2, 3]


@given(STEPS)
def test_order_and_acknowledgement(steps: list[tuple[str, int]]) -> None:
    high_watermark = HighWatermark(Lsn(0))
    ran: list[int] = []
    asked: list[int] = []

    def action(number: int) -> None:
        assert asked[number] <= high_watermark.acknowledged
        ran.append(number)

    highest = 0
    for what, lsn in steps:
        if what == "after":
            asked.append(lsn)
            high_watermark.run_after(lsn, action, len(asked) - 1)
        else:
            high_watermark.advance(lsn)
            highest = max(highest, lsn)
        assert high_watermark.acknowledged == highest
        assert ran == list(range(len(ran)))
        assert len(high_watermark) == len(asked) - len(ran)
        waiting = asked[len(ran) :]
        assert not waiting or waiting[0] > highest, "the first in line is kept waiting for nothing"
    high_watermark.advance(21)
    assert ran == list(range(len(asked)))


@given(st.lists(st.integers(1, 10), min_size=1, max_size=8))
def test_an_action_may_ask_for_more(lsns: list[int]) -> None:
    high_watermark = HighWatermark(Lsn(0))
    ran: list[tuple[int, int]] = []

    def action(depth: int, lsn: int) -> None:
        ran.append((depth, lsn))
        if depth < 2:
            high_watermark.run_after(lsn, action, depth + 1, lsn)

    for lsn in lsns:
        high_watermark.run_after(lsn, action, 0, lsn)
    for acknowledged in range(1, 11):
        high_watermark.advance(acknowledged)
    assert sorted(ran) == sorted((depth, lsn) for depth in range(3) for lsn in lsns)
    assert [lsn for depth, lsn in ran if depth == 0] == lsns


@given(st.lists(st.tuples(st.integers(1, 10), st.booleans()), min_size=1, max_size=8))
def test_after_a_pause_it_goes_on_where_it_was(asked: list[tuple[int, bool]]) -> None:
    high_watermark = HighWatermark(Lsn(0))
    ran: list[int] = []

    def action(number: int) -> Yield | None:
        ran.append(number)
        return YIELD if asked[number][1] else None

    for number, (lsn, _) in enumerate(asked):
        high_watermark.run_after(lsn, action, number)
    turns = 1
    while not high_watermark.advance(10):
        assert asked[ran[-1]][1]
        high_watermark.run_after(5, ran.append, -turns)  # acknowledged, but it was asked for later
        turns += 1
    assert [number for number in ran if number >= 0] == list(range(len(asked)))
    assert [number for number in ran if number < 0] == [-turn for turn in range(1, turns)]
    assert not len(high_watermark)


@pytest.mark.parametrize("at_once", [True, False])
def test_after_an_action_that_raised_nothing_is_told_any_more(*, at_once: bool) -> None:
    high_watermark, ran = HighWatermark(Lsn(10)), list[int]()

    def fail() -> None:
        raise ValueError("no index entry")

    if at_once:
        with pytest.raises(StorageFailed, match=r"an action waiting for LSN 5 failed: ValueError\('no index entry'\)"):
            high_watermark.run_after(5, fail)
    else:
        high_watermark.run_after(11, ran.append, 1)
        high_watermark.run_after(12, fail)
        high_watermark.run_after(12, ran.append, 2)
        with pytest.raises(StorageFailed, match="an action waiting for LSN 12 failed"):
            high_watermark.advance(20)
    for _ in range(2):
        with pytest.raises(StorageFailed, match="no index entry"):
            high_watermark.advance(30)
    assert ran == ([] if at_once else [1])
