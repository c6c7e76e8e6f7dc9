"""A slave's number in the in-sync set, and an older directory of that number."""

from pathlib import Path

from meta_broker.replication.promotion.promotion import read_cluster
from meta_broker.replication.stale_copy import WRITE_S
from tests.fixtures.broker import CONFIG
from tests.fixtures.replicas import Replicas, wait_until
from tests.fixtures.wire import WireClient
from zk.brokers.journal_position import read_position
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession

SYNC = CONFIG.replace("session_timeout_ms = 4000", "session_timeout_ms = 5000") + '\n[replication]\nmode = "sync"\n'


def test_the_directory_that_another_one_of_its_number_has_replaced_is_not_called_in_sync(
    tmp_path: Path, zookeeper: Chroot
) -> None:
    with (
        Replicas(tmp_path / "pair", zookeeper.connect, SYNC) as running,
        ZooKeeperSession(zookeeper.connect) as session,
    ):
        master, (slave,) = running.master, running.slaves

        def acknowledged() -> int:
            found = read_position(session, 0).node
            return 0 if found is None else found.end

        def put(count: int) -> None:
            before = acknowledged()
            wait_until(lambda: running.is_in_sync(slave), "it is in sync")
            with WireClient(master.port) as wire:
                for _ in range(count):
                    wire.put("orders", 0, b"acknowledged")
            wait_until(lambda: acknowledged() > before, f"ZooKeeper knows, which takes {WRITE_S} s")

        put(3)
        slave.stop()
        older, slave.data = slave.data, tmp_path / "pair" / "replaced"
        slave.start()  # a new disk, the same number
        put(3)
        newer, slave.data = slave.data, older
        master.kill()
        slave.kill()
        wait_until(lambda: read_cluster(session, 0)[0].master is None, "its session has ended")
        told = slave.dry_run()
        assert told["in_sync"] == [1]
        assert told["can_lose"], told["findings"]
        slave.data = newer
        assert not slave.dry_run()["can_lose"]
