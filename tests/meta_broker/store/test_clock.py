"""Time the broker believes when a wall clock steps for a moment, for good, forward and back, and at a start."""

import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_broker.store.clock import CONFIRM_MS, STEP_MS, BelievedTime, Clock, ClockChange

NOW = 1_700_000_000_000
HOUR = 3_600_000
DAY = 24 * HOUR
SECOND = 1000


class Clocks:
    """A wall clock that a test sets, and a steady one."""

    def __init__(self, wall_ms: int = NOW) -> None:
        self.steady_ms = 5 * SECOND
        self.wall_ms = wall_ms
        self.time = BelievedTime(self.wall_ms, self.steady_ms)
        self.told: list[ClockChange] = []

    def step(self, by_ms: int) -> None:
        self.wall_ms += by_ms

    def pass_(self, ms: int, every: int = SECOND) -> int:
        """Time goes by, and is looked at; returns what it is then."""
        for _ in range(0, ms, every):
            self.wall_ms += every
            self.steady_ms += every
            self.read()
        return self.time.now_ms

    def read(self) -> int:
        if (change := self.time.read(self.wall_ms, self.steady_ms)) is not None:
            self.told.append(change)
        return self.time.now_ms


def test_a_step_for_one_reading_is_never_believed() -> None:
    clocks = Clocks()
    assert clocks.pass_(10 * SECOND) == NOW + 10 * SECOND
    clocks.step(2 * DAY)
    assert clocks.pass_(SECOND) == NOW + 11 * SECOND
    assert clocks.time.age_ms(NOW) == 11 * SECOND
    clocks.step(-2 * DAY)
    assert clocks.pass_(SECOND) == NOW + 12 * SECOND
    assert clocks.told == [ClockChange.SUSPECTED, ClockChange.WITHDRAWN]
    assert clocks.pass_(2 * CONFIRM_MS) == NOW + 12 * SECOND + 2 * CONFIRM_MS
    assert clocks.told == [ClockChange.SUSPECTED, ClockChange.WITHDRAWN]


def test_a_step_that_holds_is_believed_and_makes_nothing_older() -> None:
    clocks = Clocks()
    clocks.pass_(10 * SECOND)
    clocks.step(2 * DAY)
    assert clocks.pass_(CONFIRM_MS) == NOW + 10 * SECOND + CONFIRM_MS
    assert clocks.told == [ClockChange.SUSPECTED]
    before = clocks.time.now_ms
    assert clocks.pass_(SECOND) == before + SECOND + 2 * DAY == clocks.wall_ms
    assert clocks.told == [ClockChange.SUSPECTED, ClockChange.BELIEVED]
    assert clocks.time.step_ms == 2 * DAY
    assert clocks.time.age_ms(NOW) == 11 * SECOND + CONFIRM_MS
    assert clocks.time.age_ms(before) == SECOND
    assert clocks.time.age_ms(clocks.wall_ms) == 0
    clocks.pass_(DAY, every=60 * SECOND)
    assert clocks.time.age_ms(clocks.wall_ms - DAY) == DAY
    assert clocks.time.age_ms(NOW) == DAY + 11 * SECOND + CONFIRM_MS


def test_a_step_back_that_holds_stops_the_time_of_records_until_the_clock_has_passed_it() -> None:
    clocks = Clocks()
    clocks.pass_(10 * SECOND)
    clocks.step(-DAY)
    latest = clocks.pass_(CONFIRM_MS)
    assert latest == NOW + 10 * SECOND + CONFIRM_MS
    assert clocks.time.age_ms(NOW) < 0, "the clock denies that it was written before now"
    assert clocks.pass_(SECOND) == latest
    assert clocks.told == [ClockChange.SUSPECTED, ClockChange.BELIEVED]
    assert clocks.pass_(DAY - 60 * SECOND, every=60 * SECOND) == latest
    assert clocks.pass_(120 * SECOND) == clocks.wall_ms > latest


def test_a_clock_that_goes_from_one_wrong_time_to_another_is_watched_from_the_beginning() -> None:
    clocks = Clocks()
    clocks.step(DAY)
    clocks.pass_(CONFIRM_MS - SECOND)
    clocks.step(DAY)
    assert clocks.pass_(CONFIRM_MS - SECOND) == NOW + 2 * (CONFIRM_MS - SECOND)
    assert clocks.told == [ClockChange.SUSPECTED, ClockChange.SUSPECTED]


def test_small_steps_are_followed_at_once_but_not_one_after_the_other() -> None:
    clocks = Clocks()
    clocks.step(STEP_MS)
    assert clocks.pass_(SECOND) == NOW + STEP_MS + SECOND
    for _ in range(100):
        clocks.step(STEP_MS)
        clocks.pass_(SECOND)
    assert clocks.time.now_ms <= NOW + STEP_MS + 101 * SECOND
    clocks = Clocks()
    for _ in range(60):  # a fiftieth too fast, as a clock may be that is being put right
        clocks.pass_(60 * SECOND)
        clocks.step(1200)
        clocks.read()
    assert clocks.time.now_ms == clocks.wall_ms
    assert clocks.told == []


def test_what_passed_before_a_start_counts_as_age_once_the_clock_has_held() -> None:
    clocks = Clocks()
    assert not clocks.time.begin_after(NOW - 2 * DAY)
    assert clocks.read() == NOW, "records carry the clock's time at once"
    clocks.pass_(CONFIRM_MS - SECOND)
    assert clocks.time.age_ms(NOW - 2 * DAY) == CONFIRM_MS - SECOND
    clocks.pass_(SECOND)
    assert clocks.time.age_ms(NOW - 2 * DAY) == 2 * DAY + CONFIRM_MS


def test_a_clock_that_was_wrong_at_the_start_and_is_put_right_ages_nothing() -> None:
    clocks = Clocks(NOW + 2 * DAY)
    assert not clocks.time.begin_after(NOW)
    clocks.pass_(60 * SECOND)
    clocks.step(-2 * DAY)
    for _ in range(100):
        clocks.pass_(60 * SECOND)
        assert clocks.time.age_ms(NOW) <= clocks.steady_ms
    assert clocks.time.now_ms == NOW + 2 * DAY + 60 * SECOND + CONFIRM_MS


def test_a_start_soon_after_the_newest_record_has_nothing_to_confirm() -> None:
    clocks = Clocks()
    assert clocks.time.begin_after(NOW - STEP_MS)
    assert clocks.time.age_ms(NOW - STEP_MS) == STEP_MS
    assert clocks.time.begin_after(NOW + DAY)
    assert clocks.time.now_ms == NOW + DAY
    assert clocks.time.age_ms(NOW + DAY) == -DAY


ClockStep = st.one_of(
    st.tuples(st.just("set"), st.integers(-72, 72).map(lambda hours: hours * HOUR)),
    st.tuples(st.just("pass"), st.integers(1, 5 * HOUR)),
)


@given(st.lists(ClockStep, max_size=20))
def test_time_never_goes_back_and_nothing_is_older_than_it_is(steps: list[tuple[str, int]]) -> None:
    clocks = Clocks()
    written: list[tuple[int, int]] = []
    last = 0
    for what, number in steps:
        if what == "set":
            clocks.step(number)
            clocks.read()
        else:
            clocks.pass_(number, every=max(number // 50, 1))
        assert clocks.time.now_ms >= last
        last = clocks.time.now_ms
        for time_ms, steady_ms in written:
            assert clocks.time.age_ms(time_ms) <= clocks.steady_ms - steady_ms
        written.append((clocks.time.now_ms, clocks.steady_ms))


def test_each_step_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    clock = Clock(lambda: clocks.wall_ms * 1_000_000, lambda: clocks.steady_ms)

    def pass_(ms: int) -> None:
        clocks.wall_ms += ms
        clocks.steady_ms += ms
        clock.now_ms()

    with caplog.at_level(logging.WARNING):
        clock.begin_after(NOW - DAY)
        clocks.wall_ms += DAY
        pass_(SECOND)
        clocks.wall_ms -= DAY
        pass_(SECOND)
        clocks.wall_ms += DAY
        pass_(SECOND)
        pass_(CONFIRM_MS)
    assert [re.split("[:;]", record.getMessage())[0] for record in caplog.records] == [
        "newest record is old by_s=86400",
        "wall clock stepped by_s=86400",
        "wall clock is back after a step of by_s=86400 that was not believed",
        "wall clock stepped by_s=86400",
        "wall clock step believed by_s=86400",
    ]


def test_the_clock_is_the_wall_clock_while_that_does_nothing_odd_and_never_goes_back() -> None:
    clocks = Clocks()
    clock = Clock(lambda: clocks.wall_ms * 1_000_000, lambda: clocks.steady_ms)
    last = 0
    for ms in (0, 1, 50, 40, 99, 98, 100, 150, 149, 300, 120, 301):
        clocks.wall_ms, clocks.steady_ms = NOW + ms, 5 * SECOND + ms
        assert clock.now_ms() == max(last, NOW + ms)
        last = clock.now_ms()
    clocks.wall_ms += DAY
    assert clock.now_ms() == last
