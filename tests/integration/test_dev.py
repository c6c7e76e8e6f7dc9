"""`metaq dev`: ZooKeeper and a broker in one command, and what it prints works."""

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meta_client import Client
from tests.fixtures.scrape import health

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
        assert f"export METAQ_ZK={connect}\n" in log.read_text()
        admin = wait_for(log, r"metrics at (http://127\.0\.0\.1:\d+)/metrics", process)[1]
        assert health(admin, "ready")[0] == 200
        with Client(connect) as client:
            sent = client.producer().send("orders", b"kept")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0, log.read_text()

        process, log = start(tmp_path, "--topic", "orders:3")
        connect = wait_for(log, r'Client\("([^"]+)"\)', process)[1]
        shown = subprocess.run(
            [*METAQ, "consume", "orders", "--zk", connect, "--count", "1", "--json"],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert shown.returncode == 0, shown.stderr
        assert str(sent.message_id) in shown.stdout
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def test_dev_names_every_port_that_is_taken(tmp_path: Path) -> None:
    """Before it starts anything, with the way out; the same for one of them."""
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        ports = [first.getsockname()[1], second.getsockname()[1]]
        for port in (ports[1], 0):
            process, log = start(tmp_path, "--zk-port", str(ports[0]), "--port", str(port))
            assert process.wait(timeout=60) == 2
            names = [f"port {ports[0]} (ZooKeeper's, --zk-port)", f"port {port} (the broker's, --port)"]
            assert log.read_text() == (
                "error: taken on 127.0.0.1, perhaps by another `metaq dev`: "
                f"{' and '.join(names if port else names[:1])}: stop what listens there, or take free ones with "
                "`metaq dev --zk-port 0 --port 0`; nothing was started\n"
            )
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("named", [[], ["--zk", "127.0.0.1:1"]])
def test_at_a_terminal_a_command_without_an_address_names_the_one_it_uses(named: list[str]) -> None:
    """The default address may be that of an unrelated ZooKeeper."""
    controller, terminal = pty.openpty()
    with os.fdopen(controller, "rb", buffering=0) as screen:
        environment = {name: value for name, value in os.environ.items() if name != "METAQ_ZK"}
        process = subprocess.Popen(
            [*METAQ, "topics", "show", "orders", *named], env=environment, stdout=subprocess.DEVNULL, stderr=terminal
        )
        os.close(terminal)
        shown = screen.read(10_000)
        process.kill()
        process.wait()
    told = b"ZooKeeper 127.0.0.1:2181, the default: name another with --zk or METAQ_ZK"
    assert shown.startswith(told) == (not named), shown


def test_dev_refuses_a_bad_topic_before_it_starts_anything(tmp_path: Path) -> None:
    process, log = start(tmp_path, "--topic", "orders:none")
    assert process.wait(timeout=60) == 2
    assert log.read_text() == "error: --topic orders:none: write NAME or NAME:PARTITIONS, with at least one partition\n"
    assert not (tmp_path / "data").exists()
