"""`metaq dev`: ZooKeeper and a broker in one command, and what it prints works."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from meta_client import Client

METAQ = [sys.executable, "-m", "meta_client.cli.main"]
START_TIMEOUT_S = 60


def start(tmp_path: Path, *words: str) -> tuple[subprocess.Popen[str], Path]:
    log = tmp_path / "dev.log"
    with log.open("w") as out:
        command = [*METAQ, "dev", "--data", str(tmp_path / "data"), "--port", "0", "--zk-port", "0", *words]
        return subprocess.Popen(command, stdout=out, stderr=out, text=True), log


def wait_for(log: Path, pattern: str, process: subprocess.Popen[str]) -> re.Match[str]:
    deadline = time.monotonic() + START_TIMEOUT_S
    while (match := re.search(pattern, log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return match


def test_dev_prints_how_to_connect_and_keeps_what_it_was_given(tmp_path: Path) -> None:
    process, log = start(tmp_path, "--topic", "orders:3")
    try:
        connect = wait_for(log, r'Client\("([^"]+)"\)', process)[1]
        assert f"metaq produce orders --zk {connect}" in log.read_text()
        with Client(connect) as client:
            sent = client.producer().send("orders", b"kept")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0, log.read_text()

        process, log = start(tmp_path, "--topic", "orders:3")
        connect = wait_for(log, r'Client\("([^"]+)"\)', process)[1]
        shown = subprocess.run(
            [*METAQ, "consume", "orders", "--zk", connect, "--count", "1", "--json"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert shown.returncode == 0, shown.stderr
        assert str(sent.message_id) in shown.stdout
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def test_dev_refuses_a_bad_topic_before_it_starts_anything(tmp_path: Path) -> None:
    process, log = start(tmp_path, "--topic", "orders:none")
    assert process.wait(timeout=30) == 2
    assert log.read_text() == "error: --topic orders:none: write NAME or NAME:PARTITIONS, with at least one partition\n"
    assert not (tmp_path / "data").exists()
