"""One sector of a real disk that can't be read: real processes, an ext4 on a device that answers with EIO.

Nothing dies of it: a start is refused with the place, the commands tell and mend it, a live broker serves all else.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meta_client.protocol.messages import HEADER_BYTES
from meta_client.protocol.requests import Fetch, Put
from meta_client.protocol.responses import Result, Value
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.failing_device import FailingDevice, failing_device
from tests.fixtures.replicas import ProxyLink, ReplicaProcess, wait_until
from tests.fixtures.wire import WireClient

BAD_AT = 3 * 64 * 1024 + 700  # in the first segment
BODY = bytes(range(256)) * 40
COUNT = 600  # 6 MiB: more than one segment


@pytest.fixture
def device(tmp_path: Path) -> Iterator[FailingDevice]:
    with failing_device(tmp_path / "device") as made:
        yield made


@pytest.fixture
def data(device: FailingDevice) -> Path:
    """The directory of a broker that has stopped in good order, with messages in orders-0 and orders-1."""
    directory = device.directory / "broker"
    with running_broker(directory, None) as broker, WireClient(broker.port) as client:
        for start in range(0, COUNT, 100):
            bodies = [b"%d:" % number + BODY for number in range(start, start + 100)]
            client.send(*(Put("orders", n % 2, 0, None, None, n, body) for n, body in enumerate(bodies)))
            for _ in bodies:
                answer = client.receive()
                assert isinstance(answer, Result)
                assert answer.is_success
        assert broker.stop() == 0
    return directory


def metaq(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meta_client.cli.main", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode >= 0, f"{words} died of signal {-done.returncode}"
    return done


def checked(data: Path, status: int) -> dict[str, Any]:
    done = metaq("journal", "check", data, "--json")
    assert done.returncode == status, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def read_everything(broker: BrokerProcess) -> list[bytes]:
    with WireClient(broker.port) as client:
        return [message.payload for number in (0, 1) for _, message in client.read_all("orders", number)]


def first_segment(data: Path) -> Path:
    return data / f"{0:020d}.journal"


def test_a_start_names_the_place_and_a_copy_mends_it(device: FailingDevice, data: Path, tmp_path: Path) -> None:
    for checkpoint in data.glob("checkpoint.*"):
        checkpoint.unlink()  # so that a start reads everything
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    device.make_unreadable(first_segment(data), BAD_AT)
    broker = BrokerProcess(data, None)
    broker.launch()
    assert broker.wait() > 0
    bad = BAD_AT - BAD_AT % 4096
    place = f"{first_segment(data)}: bytes {bad} to {bad + 4096} cannot be read: Input/output error"
    assert place in broker.log
    lsn = re.search(r"corrupt at LSN (\d+)", broker.log)
    assert lsn is not None
    assert bad - len(BODY) - 200 < int(lsn[1]) < bad + 4096
    assert "metaq journal check" in broker.log

    affected = checked(data, 1)["affected"]
    assert affected["unreadable"] == [{"start": bad, "end": bad + 4096, "error": place}]
    ((start, behind),) = [(one["start"], one["end"]) for one in affected["lsns"]]
    assert start == int(lsn[1])
    dump = metaq("journal", "dump", data)
    assert dump.returncode == 1
    assert f"go on with --from {behind}" in dump.stderr
    assert dump.stdout.count(" PUT ") > 10
    assert metaq("journal", "dump", data, "--from", str(behind)).returncode == 0

    planned = metaq("journal", "repair", data)
    assert planned.returncode == 1
    assert f"drop: LSN {start} to LSN {behind}" in planned.stdout
    mended = metaq("journal", "repair", data, "--from", copy, "--yes")
    assert mended.returncode == 0, mended.stdout
    assert f"recreate: {first_segment(data).name}" in mended.stdout
    assert first_segment(data).read_bytes() == first_segment(copy).read_bytes()
    assert checked(data, 0)["verdict"] == "whole"
    with pytest.raises(OSError, match="Input/output error"):
        (data / f"before-repair.{first_segment(data).name}").read_bytes()
    with running_broker(data, None) as again:
        assert sorted(read_everything(again)) == sorted(b"%d:" % number + BODY for number in range(COUNT))


def test_a_segment_header_that_cannot_be_read(device: FailingDevice, data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    device.make_unreadable(first_segment(data), 0)
    broker = BrokerProcess(data, None)
    broker.launch()
    assert broker.wait() > 0
    assert f"{first_segment(data)}: bytes 0 to 4096 cannot be read: Input/output error" in broker.log
    assert checked(data, 1)["end"] == 0
    assert metaq("journal", "dump", data).returncode == 1
    mended = metaq("journal", "repair", data, "--from", copy, "--yes")
    assert mended.returncode == 0, mended.stdout
    assert first_segment(data).read_bytes() == first_segment(copy).read_bytes()


def test_a_broker_that_runs_says_which_messages_and_serves_all_others(device: FailingDevice, data: Path) -> None:
    device.make_unreadable(first_segment(data), BAD_AT)
    with running_broker(data, None) as broker, WireClient(broker.port) as client:
        bad = BAD_AT - BAD_AT % 4096
        for request in (0, 1):
            answers = [
                client.get("orders", request, 0),
                client.ask(Fetch("orders", "g", request, 0, 1 << 20, 1, 0, client.opaque())),
            ]
            for answer in answers:
                assert isinstance(answer, Result)
                assert answer.status == 500
                assert f"cannot read orders-{request} at offset 0: {first_segment(data)}: bytes {bad} to" in answer.text
                assert "Input/output error" in answer.text
        assert isinstance(client.get("orders", 0, 0, 4096), Value)  # what stands before it
        behind = sum(HEADER_BYTES + len(b"%d:" % number + BODY) for number in range(1, 100, 2))
        assert [message.payload for _, message in client.read_all("orders", 1, behind)] == [
            b"%d:" % number + BODY for number in range(101, COUNT, 2)
        ]
        client.put("orders", 0, b"more")
        stats = client.stats()
        assert "get_unreadable 4" in stats
        assert "unreadable_ranges 1" in stats
        assert broker.log.count("messages unreadable") == 1
        assert broker.stop() == 0
        device.heal()


def test_a_slave_that_needs_what_cannot_be_read_keeps_its_link_and_is_fed_once_it_can(
    device: FailingDevice, data: Path, tmp_path: Path
) -> None:
    config = CONFIG + "[replication]\nsilence_ms = 60000\nlag_ms = 60000\n"  # no stall ends the link
    device.make_unreadable(first_segment(data), BAD_AT)
    with (
        running_broker(data, None, config=config) as master,
        WireClient(master.port) as client,
        ProxyLink(master.port) as link,
    ):
        slave = ReplicaProcess(tmp_path / "slave", None, 1, config)
        slave.link = link
        try:
            slave.launch()
            wait_until(lambda: "slave gets nothing more slave=1" in master.log, "the master says why")
            (line,) = [line for line in client.stats("replication") if line.startswith("slave 1 ")]
            assert "reason unreadable" in line
            with WireClient(master.port) as other:
                other.put("orders", 0, b"more")  # everything else is served
            device.heal()
            wait_until(lambda: "lag_bytes 0 " in client.stats("replication")[2], "the slave has everything")
            assert master.log.count("slave linked") == 1
            assert master.log.count("slave gets nothing more") == 1
        finally:
            slave.kill()
        assert first_segment(slave.data).read_bytes() == first_segment(data).read_bytes()
