"""A signal to a command that runs until one comes, while a library swallows what its handler raises."""

import contextlib
import signal

import pytest

from meta_client.cli.decision_table import raised_again


def swallowed(number: signal.Signals) -> None:
    """Do as kazoo where it sends."""
    with contextlib.suppress(BaseException):
        signal.raise_signal(number)


def test_what_a_signal_raises_is_raised_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    with raised_again() as check:
        check()
        swallowed(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with raised_again() as check:
            swallowed(signal.SIGTERM)
            check()
    finally:
        signal.signal(signal.SIGTERM, before)
