"""`metaq promote` asks the other slaves how far they are: real ones, beside a master that is gone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from meta_broker.replication.replica.copy_report import CopyReport, parse_copy
from tests.fixtures.broker import CONFIG
from tests.fixtures.replicas import ReplicaProcess, Replicas, wait_until
from tests.fixtures.wire import WireClient
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession

PATIENT = CONFIG.replace("session_timeout_ms = 4000", "session_timeout_ms = 60000")
SLAVES = "/meta/brokers/ids/0"


@pytest.fixture
def session(zookeeper: Chroot) -> Iterator[ZooKeeperSession]:
    with ZooKeeperSession(zookeeper.connect) as session:
        yield session


@pytest.fixture
def trio(tmp_path: Path, zookeeper: Chroot, session: ZooKeeperSession) -> Iterator[Replicas]:
    """A master and slaves 1 and 2, which are registered and have its first message."""
    with Replicas(tmp_path / "trio", zookeeper.connect, PATIENT, slaves=2) as running:
        put(running.master, b"one")
        for slave in running.slaves:
            wait_registered(session, slave)
            wait_whole(slave, running.master)
        yield running


def put(master: ReplicaProcess, body: bytes) -> None:
    with WireClient(master.port) as client:
        client.put("orders", 0, body)


def wait_whole(slave: ReplicaProcess, master: ReplicaProcess) -> None:
    with WireClient(master.port) as client:
        words = client.stats("replication")[1].split()
        end = int(words[words.index("end") + 1])
    wait_until(lambda: copy_of(slave).flushed >= end, f"slave {slave.number} has everything up to LSN {end}")


def wait_registered(session: ZooKeeperSession, slave: ReplicaProcess) -> None:
    """Wait until the new process has registered; a former one's node goes when it stops."""
    path = f"{SLAVES}/slave{slave.number}"
    wait_until(lambda: session.read(path) is not None, f"{path} is there")


def copy_of(slave: ReplicaProcess) -> CopyReport:
    with WireClient(slave.port) as client:
        return parse_copy("\n".join(client.stats("replication")))


def test_a_slave_tells_how_far_its_copy_goes(trio: Replicas) -> None:
    first = trio.slaves[0]
    copy = copy_of(first)
    assert (copy.cluster, copy.broker_id, copy.slave_id, copy.is_complete) == ("metaq", 0, 1, True)
    assert (copy.start, copy.epoch, len(copy.epoch_history), copy.data) == (128, 1, 1, str(first.data))
    assert copy.high_watermark <= copy.end
    trio.master.stop()
    trio.master.start()
    wait_until(lambda: len(copy_of(first).epoch_history) == 2, "it has records of its master's second life")


def test_the_slave_that_has_most_is_named_with_the_command(
    trio: Replicas, zookeeper: Chroot, session: ZooKeeperSession
) -> None:
    first, second = trio.slaves
    assert first.link is not None
    first.link.refuse()
    put(trio.master, b"two")
    wait_whole(second, trio.master)
    trio.master.stop()
    first.stop()
    session.write(f"{SLAVES}/slave8", second.url.encode())
    session.write(f"{SLAVES}/slave9", b"meta://127.0.0.1:1")
    told = first.dry_run()
    ahead, other, silent = told["others"]
    assert (ahead["slave"], ahead["url"], ahead["epoch"]) == (2, second.url, 1)
    assert (ahead["divergence_lsn"], ahead["here"]) == (told["end"], 0)
    assert ahead["there"] == ahead["end"] - told["end"] > 0
    assert other["error"] == "slave 2 of broker 0 of cluster 'metaq' answers there"
    assert silent["error"].startswith("no connection to meta://127.0.0.1:1")
    found = {(one["weight"], one["text"]) for one in told["findings"]}
    assert (
        "risk",
        f"slave 2 at {second.url} has {ahead['there']} bytes more of this journal, up to LSN {ahead['end']}; promote "
        f"that one, which has most: stop it, and on its machine: metaq promote {second.data} --zk {zookeeper.connect}",
    ) in found
    assert ("note", f"slave 9 at meta://127.0.0.1:1 can't be asked how far it is: {silent['error']}") in found
    for number in (8, 9):
        session.delete(f"{SLAVES}/slave{number}")
    second.stop()
    first.start()  # its link is refused still
    wait_registered(session, first)
    told = second.dry_run()
    (behind,) = told["others"]
    assert (behind["slave"], behind["there"]) == (1, 0)
    assert behind["here"] == told["end"] - behind["end"] > 0
    assert {"weight": "note", "text": "slave 1 has nothing that is not here"} in told["findings"]
