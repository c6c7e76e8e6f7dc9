"""Every so many seconds, or as cron says."""

import datetime

import pytest

from meta_broker.config.schedule import Schedule

NOW = datetime.datetime(2026, 2, 28, 23, 59, 30, tzinfo=datetime.UTC)


def test_seconds_begin_at_once() -> None:
    schedule = Schedule(90.0)
    assert schedule.first_s(NOW) == 0
    assert schedule.next_s(NOW) == 90


@pytest.mark.parametrize(
    ("when", "seconds"),
    [
        ("* * * * *", 30),
        ("30 3 * * *", 30 + 3.5 * 3600),
        ("0 0 29 2 *", 30 + (365 + 365) * 86400),
        ("0 0 * * 1", 86430),
    ],
)
def test_cron_expressions_are_in_utc(when: str, seconds: float) -> None:
    assert Schedule(when).first_s(NOW) == Schedule(when).next_s(NOW) == seconds
    elsewhere = NOW.astimezone(datetime.timezone(datetime.timedelta(hours=8)))
    assert Schedule(when).next_s(elsewhere) == seconds


@pytest.mark.parametrize(
    ("when", "text"),
    [
        ("", "no cron expression"),
        ("x * * * *", "no cron"),
        ("0 25 * * *", "no cron"),
        ("0 0 30 2 *", "never comes|no cron"),
    ],
)
def test_what_never_comes_is_refused(when: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Schedule(when)
