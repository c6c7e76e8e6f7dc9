"""A slave whose disk is full: it says so and ends, its master goes on, and once there is room it follows again."""

import contextlib
from pathlib import Path

from tests.crash.replicated import REPLICATED, is_identical
from tests.fixtures.replicas import Replicas, check_identical, wait_until
from tests.fixtures.small_disk import enlarge, small_disk
from tests.fixtures.wire import Refused, WireClient
from zk.corner import Corner
from zk.replication import read_replication
from zk.session import ZooKeeperSession

SMALL, LARGE = "3m", "64m"
DEGRADING = REPLICATED.replace("MODE", "sync").replace("[replication]\n", '[replication]\nwithout_slaves = "degrade"\n')
BODY = bytes(20_000)


def test_a_slave_without_room_ends_and_follows_once_it_has_some(tmp_path: Path, zookeeper: Corner) -> None:
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
        assert slave.wait() == 1, slave.log
        assert "No space left on device" in slave.log.splitlines()[-1], slave.log
        wait_until(lambda: in_sync() == (), "the master goes on without it")
        client.put("orders", 0, b"alone")
        enlarge(directory / "1", LARGE)
        slave.start()
        wait_until(lambda: in_sync() == (1,), "the slave is in sync again")
        client.put("orders", 0, b"together")
        wait_until(lambda: is_identical(running.master.data, slave.data), "both copies are the same")
        check_identical(running.master.data, slave.data)
