"""`metaq zookeeper` as a process: it serves, stops on a signal, and fails in one line."""

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from zk.session.session import ZooKeeperSession

COMMAND = [sys.executable, "-m", "meta_client.cli.main", "zookeeper"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [*COMMAND, "--port", "0", "--data", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        match = re.fullmatch(r"ZooKeeper serves at (127\.0\.0\.1:\d+), data in (.+); stop with Ctrl-C\n", line)
        assert match, (line, process.stderr.read() if process.poll() is not None else "")
        assert match[2] == str(tmp_path)
        with ZooKeeperSession(match[1]) as session:
            session.write("/kept", b"1")
        process.send_signal(number)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


def test_a_taken_port_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [*COMMAND, "--port", str(taken.getsockname()[1]), "--data", str(tmp_path)]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert re.fullmatch(r"error: port \d+ on 127\.0\.0\.1 is taken.*\n", answer.stderr)


def test_help_teaches(tmp_path: Path) -> None:
    answer = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0
    assert "metaq broker --zk 127.0.0.1:2181" in answer.stdout
