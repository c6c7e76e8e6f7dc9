"""A slave whose disk is full waits, and one whose disk fails ends; its master goes on, and later it follows again."""

import contextlib
from pathlib import Path

from tests.crash.replicated import REPLICATED
from tests.crash.workload import CONFIG, NO_CHECKPOINTS
from tests.fixtures.failing_device import FailingDevice, failing_device
from tests.fixtures.replicas import ReplicaProcess, Replicas, wait_identical, wait_until
from tests.fixtures.small_disk import enlarge, small_disk
from tests.fixtures.wire import Refused, WireClient
from zk.brokers.replication import read_replication
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession

SYNC = REPLICATED.replace(CONFIG, NO_CHECKPOINTS).replace("MODE", "sync")
SMALL, LARGE = "3m", "64m"
DEGRADING = REPLICATED.replace("MODE", "sync").replace("[replication]\n", '[replication]\nwithout_slaves = "degrade"\n')
BODY = bytes(20_000)


def test_a_slave_without_room_waits_and_follows_once_it_has_some(tmp_path: Path, zookeeper: Chroot) -> None:
    directory = tmp_path / "both"
    with (
        small_disk(directory / "1", SMALL),
        Replicas(directory, zookeeper.connect, DEGRADING) as running,
        ZooKeeperSession(zookeeper.connect) as session,
        WireClient(running.master.port) as client,
    ):
        slave = running.slaves[0]

        def in_sync() -> tuple[int, ...]:
            node = read_replication(session, 0).node
            return node.in_sync if node is not None else ()

        wait_until(lambda: in_sync() == (1,), "the slave is in sync")
        for _ in range(250):  # twice what the slave has room for
            with contextlib.suppress(Refused):
                client.put("orders", 0, BODY)
        wait_until(lambda: in_sync() == (), "the master goes on without it")
        client.put("orders", 0, b"alone")
        assert "disk low, the copy waits until more is free" in slave.log
        with WireClient(slave.port) as reader:
            assert reader.read_all("orders", 0), "it serves what it has"
        slave.stop()
        slave.start()  # without room, too
        enlarge(directory / "1", LARGE)
        wait_until(lambda: in_sync() == (1,), "the slave is in sync again")
        client.put("orders", 0, b"together")
        wait_identical(running.master.data, slave.data)


class SlaveOnDevice(Replicas):
    """A master, and a slave on a disk that can fail."""

    def __init__(self, directory: Path, zookeeper: str, device: FailingDevice) -> None:
        self._device = device
        super().__init__(directory, zookeeper, SYNC)

    def new_process(self, number: int) -> ReplicaProcess:
        if not number:
            return super().new_process(number)
        return ReplicaProcess(self._device.directory, self._zookeeper, number, self._config)


def test_what_a_slave_confirms_after_its_disk_has_failed_outlives_a_power_cut(
    tmp_path: Path, zookeeper: Chroot
) -> None:
    """The slave must not build on bytes whose fsync failed: they are in its page cache alone."""
    acknowledged: dict[int, bytes] = {}

    def put(count: int) -> None:
        """Some are refused while there is no slave."""
        with WireClient(running.master.port) as client:
            for _ in range(count):
                body = b"%d." % len(acknowledged) + bytes(5000)
                with contextlib.suppress(Refused):
                    if (offset := client.put("orders", 0, body).offset) is not None:
                        acknowledged[offset] = body

    with (
        failing_device(tmp_path / "device") as device,
        SlaveOnDevice(tmp_path / "both", zookeeper.connect, device) as running,
        ZooKeeperSession(zookeeper.connect) as session,
    ):
        slave = running.slaves[0]

        def is_in_sync() -> bool:
            node = read_replication(session, 0).node
            return node is not None and node.in_sync == (1,)

        wait_until(is_in_sync, "the slave is in sync")
        put(20)
        slave.pause()
        device.refuse_writes(slave.data.glob("*.journal*"))
        slave.resume()
        put(5)
        assert slave.wait() == 1, slave.log
        assert "Input/output error" in slave.log.splitlines()[-1], slave.log
        device.heal()
        slave.start()
        before = len(acknowledged)

        def is_confirmed() -> bool:
            put(1)
            return len(acknowledged) > before

        wait_until(is_confirmed, "the slave confirms again")
        put(20)
        slave.kill()
        running.master.kill()
        device.cut_power()
        device.power_on()
        slave.config_path.write_text(SYNC.replace('mode = "sync"', 'mode = "async"'))  # it shows all without a slave
        running.promote(slave)
        with WireClient(running.master.port) as client:
            shown = {offset: message.payload for offset, message in client.read_all("orders", 0)}
    lost = [offset for offset, body in acknowledged.items() if shown.get(offset) != body]
    assert not lost, f"acknowledged, and gone or another: offsets {lost}"
