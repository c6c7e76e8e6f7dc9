"""A slave in sync takes its master's place while the relay's row has a batch that its broker has not committed: each
message comes once and in order."""

import time
from pathlib import Path

from meta_client import Client
from tests.fixtures.broker import CONFIG
from tests.fixtures.forked import start_module
from tests.fixtures.postgres import Database
from tests.fixtures.reading import read_whole
from tests.fixtures.replicas import Replicas, wait_until
from tests.meta_client.outbox.conftest import OutboxWorld
from tests.meta_client.transactions.conftest import World, make_postgres
from zk.embedded.chroot import Chroot

REPLICATED = CONFIG.replace("timeout_ms = 4000", "timeout_ms = 1000") + '[replication]\nmode = "sync"\n'


def test_a_slave_takes_over_a_batch_that_is_recorded(tmp_path: Path, zookeeper: Chroot, database: Database) -> None:
    with Replicas(tmp_path, zookeeper.connect, REPLICATED) as running, Client(zookeeper.connect) as client:
        (slave,) = running.slaves
        wait_until(lambda: running.is_in_sync(slave), "the slave is in sync")
        on = OutboxWorld(World(make_postgres(database), [running.master], zookeeper.connect, client, {}))
        with on.closing:
            on.work(*range(20))
            assert start_module("tests.meta_client.outbox.relaying", on.url, zookeeper.connect, "DECIDED").wait() == -9
            assert on.status().waiting == 0
            on.work(*range(20, 40))
            running.master.kill()
            slave.kill()
            with on.relay() as relay:
                former = running.promote(slave)
                former.link = None
                former.start()  # as the master that it was: it follows
                running.slaves.append(former)
                deadline = time.monotonic() + 60
                while on.status().waiting or on.world.prepared():
                    assert time.monotonic() < deadline, (relay.trouble, relay.waiting_for)
                    time.sleep(0.05)
            last = dict[str | None, int]()
            found = read_whole(client, "orders", 4)
            assert sorted(int(one.payload) for one in found) == list(range(40))
            for one in found:
                assert int(one.payload) > last.get(one.attribute, -1), "in order"
                last[one.attribute] = int(one.payload)
