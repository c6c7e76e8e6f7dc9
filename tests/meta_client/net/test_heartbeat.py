"""The schedule of heartbeats, as it was measured on the genuine client (spec 1.6)."""

from hypothesis import given
from hypothesis import strategies as st

from meta_client.net.heartbeat import ANSWER_S, FAILURES_MAX, IDLE_S, Beat, HeartBeat


def test_silence_closes_at_thirty_five_seconds() -> None:
    beat, active_at, now = HeartBeat(), 0.0, 0.0
    story = []
    while (verdict := beat.check(active_at, now)) is not Beat.GIVE_UP:
        if verdict is Beat.SEND:
            story.append(now)
            active_at = now  # the heartbeat itself is traffic
        now += max(0.1, beat.wait_s(active_at, now))
    assert story == [10, 20, 30]
    assert 35 <= now < 36


def test_three_bad_answers_close_and_a_good_one_forgives() -> None:
    beat = HeartBeat()
    assert beat.answered(good=False) is Beat.WAIT
    assert beat.answered(good=False) is Beat.WAIT
    assert beat.answered(good=True) is Beat.WAIT
    assert beat.answered(good=False) is Beat.WAIT
    assert beat.answered(good=False) is Beat.WAIT
    assert beat.answered(good=False) is Beat.GIVE_UP


def test_traffic_puts_the_next_one_off() -> None:
    beat = HeartBeat()
    assert beat.check(active_at=5.0, now=12.0) is Beat.WAIT
    assert beat.wait_s(active_at=5.0, now=12.0) == 3.0
    assert beat.check(active_at=5.0, now=15.0) is Beat.SEND


@given(st.lists(st.floats(0.0, 60.0), max_size=40))
def test_it_never_gives_up_before_three_answers_are_overdue(steps: list[float]) -> None:
    beat, now, sent = HeartBeat(), 0.0, 0
    for step in steps:
        now += step
        verdict = beat.check(0.0, now)
        sent += verdict is Beat.SEND
        if verdict is Beat.GIVE_UP:
            assert sent >= FAILURES_MAX
            assert now >= IDLE_S + FAILURES_MAX * ANSWER_S
            return
