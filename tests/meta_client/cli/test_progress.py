"""Progress: silent for the first second, then a bar on a terminal or lines elsewhere."""

import os
import pty
import sys
import time

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


def test_a_bar_on_a_terminal_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    primary, terminal = pty.openpty()
    shown = b""
    with os.fdopen(terminal, "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(progress_module, "TELL_EVERY_S", 0.0)
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
    os.close(primary)


def test_a_terminal_sees_how_much_is_read_of_what_goes_elsewhere(
    metaq: Metaq, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Genuine(3)
    start_broker(0, {"orders": 1}, broker)
    primary, terminal = pty.openpty()
    shown = b""
    with os.fdopen(terminal, "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(progress_module, "TELL_EVERY_S", 0.0)
        assert metaq("consume", "orders")[:2] == (0, "0\n1\n2\n")
        screen.flush()
        while b"/%d" % broker.starts[3] not in shown:  # or pytest's timeout
            shown += os.read(primary, 65536)
    os.close(primary)
    assert b"read" in shown
