"""Processes that tests start end with them, also when the tests are killed."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from tests.fixtures.forked import start_module

ROOT = Path(__file__).parent.parent

WAIT_S = 60


def main(*words: str) -> None:
    """Sleep for ever; with a word: start a process that does, and say which."""
    if words:
        print(start_module("tests.test_forked").pid, flush=True)
    signal.pause()


def test_nothing_outlives_tests_that_are_killed() -> None:
    command = [sys.executable, "-c", "from tests.test_forked import main; main('starts')"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as tests:
        assert tests.stdout is not None
        left = os.pidfd_open(int(tests.stdout.readline()))
        tests.kill()
    try:
        assert select.select([left], [], [], WAIT_S)[0], "it has not ended"
    finally:
        os.close(left)
