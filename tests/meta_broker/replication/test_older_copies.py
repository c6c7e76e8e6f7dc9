"""Copies of both directories, of a master and of its slave in sync, that lack what was acknowledged since."""

import shutil
from pathlib import Path

from meta_broker.replication.stale_copy import WRITE_S
from tests.fixtures.broker import CONFIG
from tests.fixtures.replicas import Replicas, wait_until
from tests.fixtures.wire import WireClient
from zk.brokers.journal_position import read_position
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession

SYNC = CONFIG.replace("session_timeout_ms = 4000", "session_timeout_ms = 5000") + '\n[replication]\nmode = "sync"\n'


def test_an_older_copy_of_a_slave_in_sync_confirms_nothing(tmp_path: Path, zookeeper: Chroot) -> None:
    """The number is in the in-sync set; the directory is not the one that was."""
    with (
        Replicas(tmp_path / "pair", zookeeper.connect, SYNC) as running,
        ZooKeeperSession(zookeeper.connect) as session,
    ):
        master, (slave,) = running.master, running.slaves
        pair = (master, slave)

        def acknowledged() -> int:
            found = read_position(session, 0).node
            return 0 if found is None else found.end

        def put(*bodies: bytes) -> None:
            before = acknowledged()
            wait_until(lambda: running.is_in_sync(slave), "it is in sync")
            with WireClient(master.port) as wire:
                for body in bodies:
                    wire.put("orders", 0, body)
            wait_until(lambda: acknowledged() > before, f"ZooKeeper knows, which takes {WRITE_S} s")

        def kill_both() -> None:
            for each in pair:
                each.kill()

        put(b"first")
        kill_both()
        older = [Path(shutil.copytree(each.data, tmp_path / f"older-{number}")) for number, each in enumerate(pair)]
        master.start()
        slave.start()
        put(b"second", b"third")
        kill_both()
        newer = slave.data
        for each, copy in zip(pair, older, strict=True):
            each.data = copy
        master.start()
        slave.start()
        told = "slave 1 was in sync, and has less than was acknowledged"
        wait_until(lambda: told in master.log, "the older copy is refused")
        slave.kill()
        slave.data = newer
        slave.start()
        wait_until(lambda: stored(master.port) == [b"first", b"second", b"third"], "the newer one gives it back")


def stored(port: int) -> list[bytes]:
    """Return what consumers see; nothing while the master begins anew, with what it has been given back."""
    try:
        with WireClient(port) as wire:
            return [message.payload for _, message in wire.read_all("orders", 0)]
    except ConnectionError:
        return []
