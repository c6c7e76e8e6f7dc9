"""`metaq broker --processes N`: what starts, what is started again, and what every end leaves running: nothing."""

import dataclasses
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from meta_broker.app.supervisor import BACKOFF_S, BACKOFF_S_MAX, NEVER, STEADY_S, Child, configs
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.config.loading import load
from meta_broker.errors import ConfigError
from meta_client import Client
from tests.fixtures.broker import CONFIG, READY
from tests.fixtures.replicas import wait_until
from zk.embedded.chroot import Chroot

COUNT = 3
STARTED = re.compile(r"broker started id=(\d+) pid=(\d+)")


def config_of(tmp_path: Path, *, port: int = 0, admin_port: int | None = None, broker_id: int = 5) -> BrokerConfig:
    return load(None, data=tmp_path, broker_id=broker_id, port=port, admin_port=admin_port)


def test_ids_ports_and_directories_count_up(tmp_path: Path) -> None:
    made = configs(config_of(tmp_path, port=8000, admin_port=9000), 3)
    assert [(one.broker_id, one.port, one.admin.port, one.data.name) for one in made] == [
        (5, 8000, 9000, "broker-5"),
        (6, 8001, 9001, "broker-6"),
        (7, 8002, 9002, "broker-7"),
    ]
    assert [(one.port, one.admin.port) for one in configs(config_of(tmp_path), 2)] == [(0, None)] * 2
    assert [one.admin.port for one in configs(config_of(tmp_path, admin_port=0), 2)] == [0, 0]


@pytest.mark.parametrize(
    ("port", "admin_port", "broker_id", "count", "named"),
    [
        (0, None, 0, 0, "--processes 0"),
        (0, None, 0, 65, "--processes 65"),
        (0, None, 1022, 3, "--id 1022"),
        (65_534, None, 0, 3, "--port 65534"),
        (0, 65_535, 0, 2, "--admin-port 65535"),
        (8000, 8002, 0, 3, "leave 3 ports"),
        (8002, 8000, 0, 3, "leave 3 ports"),
    ],
)
def test_what_has_no_room_is_refused(
    tmp_path: Path, port: int, admin_port: int | None, broker_id: int, count: int, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        configs(config_of(tmp_path, port=port, admin_port=admin_port, broker_id=broker_id), count)


def test_one_master_for_several_slaves_is_refused(tmp_path: Path) -> None:
    first = config_of(tmp_path)
    first = dataclasses.replace(first, slave=msgspec.structs.replace(first.slave, master="127.0.0.1:8123"))
    with pytest.raises(ConfigError, match="--master"):
        configs(first, 2)


def test_an_archive_for_several_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(f'[retention]\npolicy = "archive"\narchive = "{tmp_path}/old"\n[topics.orders]\n')
    with pytest.raises(ConfigError, match=r"retention\.archive"):
        configs(load(file, data=tmp_path / "data", broker_id=0, port=0), 2)


def test_a_killed_broker_starts_again_ever_later_until_it_is_steady() -> None:
    child, now, waits = Child(1), 100.0, []
    for _ in range(7):
        child.started(now)
        child.ended(-signal.SIGKILL, now + 1, is_stopping=False)
        waits.append(child.due - (now + 1))
        now = child.due
    assert waits == [1, 2, 4, 8, 16, BACKOFF_S_MAX, BACKOFF_S_MAX]
    child.started(now)
    child.ended(-signal.SIGKILL, now + STEADY_S, is_stopping=False)
    assert child.due == now + STEADY_S + BACKOFF_S
    assert not child.is_over


@pytest.mark.parametrize(
    ("code", "is_stopping", "status"),
    [(0, False, 0), (1, False, 1), (2, False, 2), (0, True, 0), (1, True, 1), (-signal.SIGKILL, True, 137)],
)
def test_any_other_end_is_for_good(code: int, is_stopping: bool, status: int) -> None:
    child = Child(1)
    child.started(0.0)
    child.ended(code, 1.0, is_stopping=is_stopping)
    assert (child.is_over, child.status, child.due) == (True, status, NEVER)


class Supervised:
    """Three brokers of one `metaq broker`."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self.data = directory / "data"
        self._log = directory / "log"
        config = directory / "broker.toml"
        config.write_text(CONFIG)
        words = ["broker", "--data", str(self.data), "--id", "3", "--port", "0", "--processes", str(COUNT)]
        words += ["--zk", zookeeper, "--config", str(config)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "meta_client.cli.main", *words], stdout=log, stderr=log, start_new_session=True
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_serving(self, times: int) -> None:
        wait_until(lambda: len(READY.findall(self.log)) == times, f"{times} brokers were started")

    def pids(self) -> dict[int, int]:
        """Process ids by broker, of the latest starts."""
        return {int(broker): int(pid) for broker, pid in STARTED.findall(self.log)}

    def end(self) -> None:
        for pid in [self.process.pid, *self.pids().values()]:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def is_running(pid: int) -> bool:
    """Return False of a zombie, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def supervised(tmp_path: Path, zookeeper: Chroot) -> Iterator[Supervised]:
    started = Supervised(tmp_path, zookeeper.connect)
    try:
        started.wait_serving(COUNT)
        yield started
    finally:
        started.end()


def test_a_killed_broker_comes_back_and_one_that_was_told_to_stop_does_not(
    supervised: Supervised, zookeeper: Chroot
) -> None:
    assert sorted(path.name for path in supervised.data.iterdir()) == ["broker-3", "broker-4", "broker-5"]
    with Client(zookeeper.connect) as client:
        producer = client.producer()
        sent = {producer.send("orders", b"before", partition=f"{broker}-0").partition for broker in (3, 4, 5)}
        assert {partition.broker_id for partition in sent} == {3, 4, 5}
        before = supervised.pids()
        os.kill(before[4], signal.SIGKILL)
        supervised.wait_serving(COUNT + 1)
        assert "broker was killed id=4 signal=9" in supervised.log
        assert supervised.pids() == before | {4: supervised.pids()[4]}
        assert [message.payload for message in client.browse("orders")] == [b"before"] * COUNT
        os.kill(before[3], signal.SIGTERM)
        wait_until(lambda: "not started again id=3 status=0" in supervised.log, "its end is told")
        producer.send("orders", b"after", partition="5-0")
    supervised.process.send_signal(signal.SIGHUP)
    wait_until(lambda: supervised.log.count("reloaded file=") == 2, "the others have read the file again")
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.process.wait(60) == 0
    assert not any(map(is_running, supervised.pids().values()))
    assert supervised.log.count("broker ended") == 1
    lines = [line for line in supervised.log.splitlines() if "stop began" in line]
    assert sorted(line.rpartition(" broker=")[2] for line in lines) == ["3", "4", "5"]


def test_a_broker_that_cannot_be_started_again_stops_no_other(supervised: Supervised) -> None:
    """No descriptors are left here for a while, or no memory to fork."""
    before = supervised.pids()
    victim = min(before)
    limits = resource.prlimit(supervised.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(supervised.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    os.kill(before[victim], signal.SIGKILL)
    wait_until(lambda: "broker not started" in supervised.log, "it was tried")
    resource.prlimit(supervised.process.pid, resource.RLIMIT_NOFILE, limits)
    supervised.wait_serving(COUNT + 1)
    assert supervised.pids() == before | {victim: supervised.pids()[victim]}


def test_ctrl_c_reaches_each_broker_once(supervised: Supervised) -> None:
    os.killpg(supervised.process.pid, signal.SIGINT)
    assert supervised.process.wait(60) == 0
    assert not any(map(is_running, supervised.pids().values()))
    assert supervised.log.count("stop began") == COUNT


def test_brokers_stop_when_their_supervisor_is_killed(supervised: Supervised) -> None:
    supervised.process.kill()
    wait_until(lambda: not any(map(is_running, supervised.pids().values())), "the brokers have stopped")
    assert supervised.log.count("stop began") == COUNT


def test_brokers_that_cannot_start_end_the_command_with_their_status(tmp_path: Path, zookeeper: Chroot) -> None:
    tmp_path.joinpath("data").mkdir()
    tmp_path.joinpath("data", "broker-4").write_text("in the way")
    refused = Supervised(tmp_path, zookeeper.connect)
    try:
        wait_until(lambda: "not started again id=4 status=2" in refused.log, "one could not start")
        refused.wait_serving(COUNT - 1)
        refused.process.send_signal(signal.SIGTERM)
        assert refused.process.wait(60) == 2
    finally:
        refused.end()
