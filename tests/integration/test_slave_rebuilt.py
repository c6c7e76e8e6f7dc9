"""Slaves that can't go on where they are: what they cut, give up or refuse to give up, and who decides."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.offline import opened_store
from journal.records import PartitionName
from tests.fixtures.broker import CONFIG
from tests.fixtures.replicas import ReplicaProcess, Replicas, copied_bytes, wait_until
from tests.fixtures.wire import WireClient
from zk.corner import Corner

FORGETFUL = CONFIG.replace(
    "segment_bytes = 4194304\ncheckpoint_bytes = 1048576",
    "segment_bytes = 262144\nmessage_bytes_max = 65536\ncheckpoint_bytes = 131072",
) + (
    """
[retention]
bytes = 300000
when = 0.1
"""
)


@pytest.fixture
def pair(tmp_path: Path, zookeeper: Corner) -> Iterator[Replicas]:
    with Replicas(tmp_path / "pair", zookeeper.connect, CONFIG) as running:
        yield running


def put_all(port: int, count: int, size: int = 20) -> None:
    with WireClient(port) as wire:
        for _ in range(count):
            wire.put("orders", 0, bytes(size))


def end_of(port: int) -> int:
    with WireClient(port) as wire:
        lines = [line.split() for line in wire.stats("offsets")]
        return next((int(line[-1]) for line in lines if line[0] == "orders"), 0)


def wait_same(master: ReplicaProcess, slave: ReplicaProcess) -> None:
    def is_same() -> bool:
        try:
            return end_of(slave.port) == end_of(master.port)
        except ConnectionError:
            return False  # it is closed, while it is rebuilt

    wait_until(is_same, "the slave has everything")


def check_copy(master: ReplicaProcess, slave: ReplicaProcess) -> None:
    """Stop both: the slave's segments are the master's, but for the note of that one's last checkpoint."""
    master.stop()
    slave.stop()
    ours, theirs = copied_bytes(slave.data), copied_bytes(master.data)
    shared = ours.keys() & theirs.keys()
    assert max(ours) == max(theirs) == max(shared)
    assert all(theirs[name].startswith(ours[name]) for name in shared)


def test_what_the_master_never_had_is_cut_and_kept_and_the_slave_goes_on_by_itself(pair: Replicas) -> None:
    (slave,) = pair.slaves
    put_all(pair.master.port, 20)
    wait_same(pair.master, slave)
    slave.stop()
    with opened_store(slave.data, "test", epoch=lambda epoch: epoch) as store:  # as a master would that was alone
        for _ in range(3):
            store.put(PartitionName("orders", 0), [bytes(100)], 100, 1)
    before = slave.port
    slave.start()
    put_all(pair.master.port, 5)
    wait_until(lambda: "cut from=" in slave.log, "it cuts")
    wait_same(pair.master, slave)
    assert slave.port == before
    assert end_of(slave.port) == 25 * 40
    (cut,) = slave.data.glob("cut.*")
    assert f"saved={cut.name}" in slave.log
    check_copy(pair.master, slave)


def test_another_journal_of_the_same_name_is_refused_and_stays_as_it_is(tmp_path: Path, zookeeper: Corner) -> None:
    other = ReplicaProcess(tmp_path / "other", None, None, CONFIG)
    other.start()
    put_all(other.port, 10)
    assert other.stop() == 0
    before = copied_bytes(other.data)
    with Replicas(tmp_path / "pair", zookeeper.connect, CONFIG, slaves=0) as running:
        put_all(running.master.port, 20)
        slave = ReplicaProcess(other.data, zookeeper.connect, 1, CONFIG)
        try:
            slave.start()
            wait_until(lambda: "not following" in slave.log, "it is refused")
            assert "another journal, or damage" in slave.log
            with WireClient(slave.port) as wire:
                assert getattr(wire.get("orders", 0, 0), "status", 200) == 503  # what it has is nobody's to read
            assert slave.stop() == 0
        finally:
            slave.kill()
    assert copied_bytes(other.data) == before


def test_a_slave_that_fell_behind_retention_gives_up_what_it_has_only_when_told_to(
    tmp_path: Path, zookeeper: Corner
) -> None:
    with Replicas(tmp_path / "pair", zookeeper.connect, FORGETFUL) as running:
        master, (slave,) = running.master, running.slaves
        put_all(master.port, 20)
        wait_same(master, slave)
        slave.stop()
        deadline = time.monotonic() + 30
        while (master.data / f"{0:020d}.journal").exists():
            put_all(master.port, 10, 30_000)
            assert time.monotonic() < deadline
        before = copied_bytes(slave.data)
        slave.launch()
        assert slave.wait() == 2
        assert "set begin_anew = true in [slave]" in slave.log
        assert copied_bytes(slave.data) == before
        slave.config_path.write_text(FORGETFUL + "\n[slave]\nbegin_anew = true\n")
        slave.start()
        wait_until(lambda: "begins anew" in slave.log, "it begins anew")
        put_all(master.port, 5)
        wait_same(master, slave)
        with WireClient(master.port) as one, WireClient(slave.port) as two:
            lines = [wire.stats("offsets")[1].split() for wire in (one, two)]
            start = max(int(line[4]) for line in lines)
            assert start > 0
            assert one.read_all("orders", 0, start) == two.read_all("orders", 0, start) != []
        check_copy(master, slave)
