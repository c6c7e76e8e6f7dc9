"""Criteria for a soak."""

from dataclasses import replace

import pytest

from bench.soak.load import Account
from bench.soak.verdict import growth, judge
from bench.soak.watch import Sample

FLAT = Sample(0, 60.0, 40.0, 50, 8, 0.1, 150.0, 10, 600, 3.0, 7.0, 12.0, 1.0)


def run(**slopes: float) -> list[Sample]:
    """Ten minutes in which the fields rise by so much a minute."""
    return [
        replace(FLAT, at_s=at, **{name: getattr(FLAT, name) + slope * at / 60 for name, slope in slopes.items()})
        for at in range(600)
    ]


def test_what_is_flat_is_well() -> None:
    assert judge(run(), kept_mb=128, segment_mb=16) == []
    assert growth(run(rss=2.0), "rss") == pytest.approx(2.0 * 599 / 60)


@pytest.mark.parametrize(("name", "slope"), [("anonymous", 3.0), ("files", 1.0), ("threads", 1.0), ("journal", 30.0)])
def test_what_grows_is_not(name: str, slope: float) -> None:
    (problem,) = judge(run(**{name: slope}), kept_mb=128, segment_mb=16)
    assert name in problem


def test_one_long_turn_of_the_loop_is_not_well_once_it_is_warm() -> None:
    samples = run()
    samples[100] = replace(FLAT, at_s=100, loop_delay=900.0)
    assert judge(samples, kept_mb=128, segment_mb=16) == []
    samples[400] = replace(FLAT, at_s=400, loop_delay=50.1)
    (problem,) = judge(samples, kept_mb=128, segment_mb=16)
    assert "50 ms in the minute before second 400" in problem


def test_the_account_knows_what_is_missing_and_what_came_twice() -> None:
    account = Account()
    account.acknowledged[1] = 5
    account.undone = {(1, 3), (1, 4)}
    account.seen[1] = bytearray([1, 2, 0, 1])
    assert (account.missing(), account.doubled(), account.undone_seen()) == (1, 1, 1)
