"""Options of a consumer and of its subscriptions that can't be: each is refused with its reason."""

import pytest

from meta_client.consumer.config import FETCH_WAIT_S_MAX, ConsumerConfig
from meta_client.consumer.error_policy import ErrorPolicy, drop, reject_handler
from meta_client.errors import InvalidSecurity
from meta_client.net.security import PASSWORD_BYTES_MAX, Credentials


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"strategy": "best"}, "strategy 'best' is none of "),
        ({"ahead": "back"}, "ahead 'back' is neither stop nor end"),
        ({"runners": 0}, "runners 0: one thread at least"),
        ({"start": "middle"}, "middle"),
        ({"prefetch_bytes": 0}, "prefetch_bytes 0: one byte at least"),
        ({"duplicates_max": -1}, "duplicates_max -1 is negative"),
        ({"commit_period_s": 0.0}, "times must be positive"),
        ({"watchdog_s": -1.0}, "times must be positive"),
        ({"fetch_wait_s": FETCH_WAIT_S_MAX + 1}, f"brokers wait {FETCH_WAIT_S_MAX} s at most"),
    ],
)
def test_an_option_that_cannot_be(options: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ConsumerConfig(**options)  # type: ignore[arg-type]  # one place for every option


def test_a_policy_says_when_a_message_is_rejected_and_what_becomes_of_it() -> None:
    with pytest.raises(ValueError, match="retries_max -1 is negative"):
        ErrorPolicy(retries_max=-1)
    assert [ErrorPolicy(1).is_exhausted(KeyError(), attempt) for attempt in (1, 2)] == [False, True]
    assert reject_handler("stop", drop) is None
    letters: list[object] = []
    handler = reject_handler("dead_letter", lambda message, error: letters.append(message))
    assert handler is not None
    handler(None, KeyError())  # type: ignore[arg-type]  # nobody looks at it
    assert letters == [None]
    assert reject_handler("drop", handler) is drop
    with pytest.raises(ValueError, match="on_reject 'ignore': give 'stop', 'drop', 'dead_letter' or a function"):
        reject_handler("ignore", handler)  # type: ignore[arg-type]


@pytest.mark.parametrize(("user", "password"), [("", "p"), ("u", ""), ("u", "é" * (PASSWORD_BYTES_MAX // 2 + 1))])
def test_credentials_are_a_name_and_a_password(user: str, password: str) -> None:
    with pytest.raises(InvalidSecurity, match=f"a user and a password of 1 to {PASSWORD_BYTES_MAX} bytes are needed"):
        Credentials(user, password)
