"""A broker that is started with another cluster's ZooKeeper, or an empty one, changes nothing there and ends."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from meta_broker.cluster.cluster_identity import FILE_NAME, read_cluster_file
from meta_broker.replication.replica.slave_file import SlaveFacts, SlaveFile
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker, wait_with
from tests.fixtures.expiry import empty
from tests.fixtures.forked import run_metaq
from tests.fixtures.replicas import ProxyLink, ReplicaProcess, Replicas, wait_identical
from tests.fixtures.tcp_proxy import TcpProxy
from tests.fixtures.zookeeper_tree import snapshot, wait_until
from zk.brokers.cluster_id import name_cluster, new_cluster_id, read_cluster_id
from zk.brokers.replication import ReplicationNode, write_replication
from zk.embedded.chroot import Chroot
from zk.embedded.server import EmbeddedZooKeeper
from zk.session.session import ZooKeeperSession
from zk.tree.paths import ClusterKey, Paths

NODE = Paths().of(ClusterKey())
MASTER = "/meta/brokers/ids/0/master"
DECLINED = 1
CONNECTED_BYTES = 41  # of the answer that makes a session


def metaq(*words: object, status: int = 0) -> "subprocess.CompletedProcess[str]":
    done = run_metaq(*map(str, words))
    assert done.returncode == status, done.stdout + done.stderr
    return done


def cluster_of(connect: str) -> str | None:
    with ZooKeeperSession(connect) as session:
        return read_cluster_id(session)


def tree(connect: str) -> dict[str, tuple[bytes, bool]]:
    with ZooKeeperSession(connect) as session:
        return snapshot(session, "/meta")


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


@pytest.fixture
def here(zookeeper: Chroot) -> str:
    return f"{zookeeper.connect}/here"


@pytest.fixture
def elsewhere(zookeeper: Chroot) -> str:
    """Another cluster's ZooKeeper, with a broker that was there."""
    connect = f"{zookeeper.connect}/elsewhere"
    with ZooKeeperSession(connect) as session:
        name_cluster(session, new_cluster_id())
        write_replication(session, 0, ReplicationNode(epoch=1), None)
    return connect


@pytest.fixture
def directory(tmp_path: Path, here: str) -> Path:
    """Directory of a stopped broker, which was *here*."""
    with running_broker(tmp_path / "broker", here) as broker:
        assert broker.stop() == 0
    return broker.data


@contextlib.contextmanager
def broker_of(directory: Path, connect: str | None, broker_id: int = 0) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(directory, connect, broker_id=broker_id)
    try:
        yield broker
    finally:
        broker.end()


def test_the_first_start_names_the_cluster_and_others_join_it(tmp_path: Path, here: str) -> None:
    with broker_of(tmp_path / "0", here) as one, broker_of(tmp_path / "1", here, 1) as other:
        begun = [(broker, broker.launch()) for broker in (one, other)]
        for broker, before in begun:
            broker.wait_ready(before)
        cluster_id = cluster_of(here)
        assert cluster_id is not None
        assert read_cluster_file(one.data) == read_cluster_file(other.data) == cluster_id
        assert f"joined cluster={cluster_id} zookeeper={here}" in one.log
        rows = [json.loads(line) for line in metaq("brokers", "--zk", here, "--json").stdout.splitlines()]
        assert [row["cluster_id"] for row in rows] == [cluster_id] * 2
        assert cluster_id in metaq("doctor", "zookeeper", "--zk", here).stdout
        assert one.stop() == 0
        at = one.launch()
        one.wait_ready(at)
        assert "joined cluster" not in one.log_from(at)


def test_a_directory_of_before_joins_at_its_next_start(directory: Path, here: str, elsewhere: str) -> None:
    """Of a metaq that knew no ids: it has none, and ZooKeeper perhaps has."""
    (directory / FILE_NAME).unlink()
    with broker_of(directory, elsewhere) as broker:
        broker.start()
    assert read_cluster_file(directory) == cluster_of(elsewhere) != cluster_of(here)


def test_another_cluster_s_zookeeper_is_refused_until_the_directory_is_adopted(
    directory: Path, here: str, elsewhere: str
) -> None:
    own, other = cluster_of(here), cluster_of(elsewhere)
    before = content(directory), tree(elsewhere)
    with broker_of(directory, elsewhere) as broker:
        assert not broker.maybe_start()
        told = broker.log.splitlines()[-1]
        assert told.startswith(
            f"error: {directory} is of cluster {own}, and ZooKeeper at {elsewhere} is of cluster {other}"
        )
        assert f"run `metaq adopt {directory} --zk {elsewhere}`" in told
        assert (content(directory), tree(elsewhere)) == before
        asked = run_metaq("adopt", str(directory), "--zk", elsewhere, stdin="n\n")
        assert asked.returncode == DECLINED
        assert f"is of cluster {other}: make {directory} of it, instead of {own}?" in asked.stderr
        assert content(directory) == before[0]
        metaq("adopt", directory, "--zk", elsewhere, "--yes")
        broker.start()
        metaq("adopt", directory, "--zk", here, "--yes", status=2)  # it runs
    assert read_cluster_file(directory) == other
    assert f"former={own}" in (directory / "audit.log").read_text()
    with broker_of(directory, here) as broker:
        assert not broker.maybe_start()


def test_a_zookeeper_without_an_id_gets_the_cluster_s_by_one_command(
    tmp_path: Path, directory: Path, here: str
) -> None:
    """A mistyped chroot is empty, too; so is a ZooKeeper that lost its data while every broker was down."""
    own, nowhere = cluster_of(here), f"{here}-mistyped"
    with running_broker(tmp_path / "other", here, broker_id=1) as other:
        assert other.stop() == 0
    with broker_of(directory, nowhere) as broker, broker_of(tmp_path / "other", nowhere, 1) as other:
        assert not broker.maybe_start()
        assert f"ZooKeeper at {nowhere} has no {NODE}" in broker.log
        assert tree(nowhere) == {}
        metaq("adopt", directory, "--zk", nowhere, "--yes")
        assert cluster_of(nowhere) == own
        broker.start()
        other.start()
        metaq("adopt", tmp_path / "other", "--zk", nowhere, status=2)
    assert "can be started" in metaq("adopt", directory, "--zk", nowhere).stderr  # nothing to ask


def test_a_broker_killed_at_any_step_of_its_first_start_joins_the_same_cluster(tmp_path: Path, here: str) -> None:
    with broker_of(tmp_path / "0", here) as broker, ZooKeeperSession(here) as session:
        broker.launch()
        wait_until(lambda: session.read(NODE) is not None)
        broker.kill()
        named = read_cluster_id(session)
        assert read_cluster_file(broker.data) in (None, named)
        broker.start()
        assert read_cluster_file(broker.data) == read_cluster_id(session) == named


def test_running_brokers_name_a_zookeeper_that_was_emptied(tmp_path: Path) -> None:
    with (
        EmbeddedZooKeeper(tmp_path / "zookeeper") as server,
        running_broker(tmp_path / "broker", server.connect) as broker,
    ):
        named = cluster_of(server.connect)
        empty(server)
        server.start()
        wait_until(lambda: "registered again" in broker.log)
        assert cluster_of(server.connect) == named == read_cluster_file(broker.data)
        assert broker.stop() == 0
        broker.start()


def test_a_running_broker_does_not_register_in_another_cluster(tmp_path: Path) -> None:
    """A name that leads to another ensemble while it runs. It serves on, and registers where it belongs."""
    with (
        EmbeddedZooKeeper(tmp_path / "zookeeper") as server,
        TcpProxy(int(server.connect.rpartition(":")[2])) as proxy,
        running_broker(tmp_path / "broker", proxy.connect) as broker,
    ):
        proxy.refuse()
        empty(server)
        server.start()
        with ZooKeeperSession(server.connect) as session:
            other = name_cluster(session, new_cluster_id())
            proxy.heal()
            wait_until(lambda: f"is of cluster {other}" in broker.log)
            assert snapshot(session, "/meta").keys() == {NODE}
            with broker.client() as client:
                client.put("orders", 0, b"served")
            session.delete(NODE)
            wait_until(lambda: session.read(MASTER) is not None)
            assert read_cluster_id(session) == read_cluster_file(broker.data)


@pytest.mark.parametrize("damage", ["node", "file"])
def test_what_is_damaged_is_told_and_left(directory: Path, here: str, damage: str) -> None:
    with broker_of(directory, here) as broker:
        if damage == "node":
            with ZooKeeperSession(here) as session:
                session.write(NODE, b"\xff")
        else:
            (directory / FILE_NAME).write_bytes(b"\xff" * 100_000)
        assert not broker.maybe_start()
        assert ("correct or delete the node" if damage == "node" else "delete the file") in broker.log
        if damage == "file":
            (directory / FILE_NAME).unlink()
            broker.start()
            assert read_cluster_file(directory) == cluster_of(here)


def test_a_start_waits_for_the_id_until_it_is_told_to_stop(tmp_path: Path, zookeeper: Chroot) -> None:
    server = zookeeper.connect.partition("/")[0]
    with TcpProxy(int(server.rpartition(":")[2])) as proxy, broker_of(tmp_path / "broker", proxy.connect) as broker:
        proxy.ration(CONNECTED_BYTES)
        broker.launch()
        wait_with(lambda: "reading the cluster's id" in broker.log, broker)
        assert broker.stop() == 0
        assert not broker.data.exists()


def test_without_zookeeper_a_broker_has_no_cluster(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", None) as broker:
        assert read_cluster_file(broker.data) is None


def test_a_slave_has_its_master_s_cluster_and_follows_no_other(tmp_path: Path, here: str, elsewhere: str) -> None:
    with Replicas(tmp_path / "pair", here, CONFIG) as pair:
        wait_identical(pair.master.data, pair.slaves[0].data)
        assert read_cluster_file(pair.slaves[0].data) == read_cluster_file(pair.master.data) == cluster_of(here)
        lost = ReplicaProcess(tmp_path / "lost", elsewhere, 2, CONFIG)
        try:
            with ProxyLink(pair.master.port) as link:
                lost.link = link
                lost.start()
                wait_until(lambda: f"the slave is of the cluster with id {cluster_of(elsewhere)}" in lost.log)
        finally:
            lost.end()


def test_no_slave_is_promoted_in_another_cluster(directory: Path, elsewhere: str) -> None:
    """It would claim the epoch of the other one's broker, which then stops."""
    SlaveFile(directory).write(SlaveFacts(cluster="metaq", broker_id=0, slave_id=1))
    before = tree(elsewhere)
    words = ("promote", directory, "--zk", elsewhere, "--yes", "--accept-loss", "--no-start")
    assert "run `metaq adopt" in metaq(*words, status=2).stderr
    assert tree(elsewhere) == before


def test_a_back_up_is_of_its_cluster(tmp_path: Path, directory: Path, here: str, elsewhere: str) -> None:
    backup, own, other = tmp_path / "backup", cluster_of(here), cluster_of(elsewhere)
    metaq("backup", directory, backup)
    before = tree(elsewhere)
    refused = metaq("restore", backup, tmp_path / "wrong", "--zk", elsewhere, "--yes", status=1)
    assert f"risk: the back-up is of the cluster with id {own}, and ZooKeeper at {elsewhere} of" in refused.stdout
    assert tree(elsewhere) == before
    metaq("restore", backup, tmp_path / "moved", "--zk", elsewhere, "--yes", "--accept-loss")
    assert read_cluster_file(tmp_path / "moved") == other
    metaq("restore", backup, tmp_path / "again", "--zk", here, "--yes")
    assert read_cluster_file(tmp_path / "again") == own
    fresh = f"{here}-fresh"
    metaq("restore", backup, tmp_path / "fresh", "--zk", fresh, "--yes")
    assert read_cluster_file(tmp_path / "fresh") == own == cluster_of(fresh)
    for data, connect in ((tmp_path / "moved", elsewhere), (tmp_path / "again", here), (tmp_path / "fresh", fresh)):
        with broker_of(data, connect) as broker:
            broker.start()
