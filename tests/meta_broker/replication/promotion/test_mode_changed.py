"""A master that changes from mode sync to async: what a promotion of its slave says meanwhile."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id, Permissions

from meta_client.protocol.responses import Result
from tests.fixtures.broker import CONFIG
from tests.fixtures.replicas import Replicas, wait_until
from tests.fixtures.wire import WireClient
from zk.brokers.replication import read_replication
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession

SYNC, ASYNC = (f'{CONFIG}\n[replication]\nmode = "{mode}"\n' for mode in ("sync", "async"))
READ_ONLY = [ACL(Permissions.READ | Permissions.ADMIN, Id("world", "anyone"))]


@contextlib.contextmanager
def changing_rules(zookeeper: Chroot) -> Iterator[Any]:
    client = KazooClient(zookeeper.connect)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def test_nothing_is_acknowledged_in_mode_async_before_zookeeper_says_so(tmp_path: Path, zookeeper: Chroot) -> None:
    with (
        Replicas(tmp_path / "pair", zookeeper.connect, SYNC) as pair,
        changing_rules(zookeeper) as rules,
    ):
        master, (slave,) = pair.master, pair.slaves
        wait_until(lambda: pair.is_in_sync(slave), "it is in sync")
        assert slave.stop() == master.stop() == 0
        node = "/meta/metaq/brokers/0/replication"
        rules.set_acls(node, READ_ONLY)
        master.config_path.write_text(ASYNC)
        master.start()
        with WireClient(master.port) as client:
            client.socket.settimeout(2)
            with pytest.raises(TimeoutError):
                client.put("orders", 0, b"x")
            rules.set_acls(node, OPEN_ACL_UNSAFE)
            client.socket.settimeout(60)
            answer = client.receive()
            assert isinstance(answer, Result)
            assert answer.is_success
        with ZooKeeperSession(zookeeper.connect) as session:
            written = read_replication(session, 0).node
            assert written is not None
            assert written.mode == "async"
        master.kill()
