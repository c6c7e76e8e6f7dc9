"""Progress: silent for the first second, then a bar on a terminal or lines elsewhere."""

import os
import pty
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pytest

from meta_client.operations import progress as progress_module
from meta_client.operations.progress import Progress
from tests.meta_client.cli.conftest import Metaq
from tests.meta_client.cli.test_genuine import Genuine
from tests.meta_client.conftest import StartBroker


def test_lines_once_a_second_and_none_before(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Progress("sent", "messages") as progress:
        for _ in range(40):
            now += 0.1
            progress.advance()
        assert (progress.count, round(progress.seconds, 1)) == (40, 4.0)
    told = capsys.readouterr().err.splitlines()
    assert len(told) in (3, 4)
    assert all(line.startswith("sent ") and line.endswith(" messages, 10/s") for line in told)
    with Progress("searched orders/0-0 up to offset", "", 500) as progress:
        now += 2
        progress.at(250)
    assert capsys.readouterr().err == "searched orders/0-0 up to offset 250 of 500\n"


@contextmanager
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, IO[str]]]:
    """Have progress, told at once, go to a terminal: its other end, and what is written to."""
    primary, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(progress_module, "TELL_EVERY_S", 0.0)
        yield primary, screen
    os.close(primary)


def test_a_bar_on_a_terminal_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = b""
    with on_terminal(monkeypatch) as (primary, screen):
        with Progress("sent", "messages", 40) as progress:
            progress.at(20)
            while b"20/40" not in shown:  # or pytest's timeout
                shown += os.read(primary, 65536)
            time.sleep(0.1)  # a bar moves ten times a second
            progress.at(30)
            while b"30/40" not in shown:
                shown += os.read(primary, 65536)
        screen.flush()
        while not shown.endswith(b"\x1b[2K"):  # the line is wiped
            shown += os.read(primary, 65536)


def test_a_terminal_sees_how_much_is_read_of_what_goes_elsewhere(
    metaq: Metaq, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Genuine(3)
    start_broker(0, {"orders": 1}, broker)
    shown = b""
    with on_terminal(monkeypatch) as (primary, screen):
        assert metaq("consume", "orders")[:2] == (0, "0\n1\n2\n")
        screen.flush()
        while b"/%d" % broker.starts[3] not in shown:  # or pytest's timeout
            shown += os.read(primary, 65536)
    assert b"read" in shown
