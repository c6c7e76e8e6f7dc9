"""The cluster's id: named once however many begin, and never believed where it holds something else."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from kazoo.security import make_digest_acl

from journal.wal.storage import DirectoryStorage
from meta_broker.cluster.cluster_identity import (
    FILE_NAME,
    ClusterIdentity,
    OtherCluster,
    check_cluster,
    read_cluster_file,
    save_cluster_file,
)
from meta_broker.errors import ConfigError
from zk.brokers.cluster_id import name_cluster, read_cluster_id
from zk.embedded.chroot import Chroot
from zk.errors import MalformedNode, RefusedNode
from zk.session.session import ZooKeeperSession

NODE = "/meta/metaq/cluster"
OWN, OTHER = "5d51f00d-17a0-4352-a61e-3e2e7ea62aad", "b4b9e099-762e-4107-9639-9d2536847cf7"


@pytest.fixture
def session(zookeeper: Chroot) -> Iterator[ZooKeeperSession]:
    with ZooKeeperSession(zookeeper.connect) as session:
        yield session


def test_of_many_brokers_at_once_one_names_the_cluster(zookeeper: Chroot, tmp_path: Path) -> None:
    together = Barrier(8)

    def begin(number: int) -> str:
        with ZooKeeperSession(zookeeper.connect) as session:
            identity = ClusterIdentity(session, tmp_path / str(number), lambda what, ask: ask())
            together.wait(30)
            assert identity.check()
            with contextlib.closing(DirectoryStorage.open_for_writing(tmp_path / str(number))) as storage:
                assert identity.join(storage)
            assert identity.id is not None
            assert read_cluster_file(tmp_path / str(number)) == identity.id
            return identity.id

    with ThreadPoolExecutor(8) as threads:
        (only,) = set(threads.map(begin, range(8)))
    with ZooKeeperSession(zookeeper.connect) as session:
        assert read_cluster_id(session) == only


def test_the_file_keeps_what_was_saved(tmp_path: Path) -> None:
    assert read_cluster_file(tmp_path / "missing") is None
    storage = DirectoryStorage.open_for_writing(tmp_path)
    for cluster_id in (OWN, OTHER):
        save_cluster_file(storage, cluster_id)
        assert read_cluster_file(tmp_path) == cluster_id
    storage.close()


@pytest.mark.parametrize(
    "data",
    [b"", b"\n", OWN[:-1].encode(), OWN.encode() * 2, OWN.upper().encode(), b"\xff" * 36, b"\0" * 37, b"x" * (1 << 24)],
    ids=["empty", "blank", "torn", "twice", "upper", "not UTF-8", "zeros", "huge"],
)
def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path, data: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(data)
    with pytest.raises(ConfigError, match=r"is no cluster's id: .*delete the file") as refused:
        read_cluster_file(tmp_path)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"\xff", b"[" * 900, b'{"id":7}', b'{"id":"../.."}', b'{"id":"%s\\n"}' % OWN.encode(), b"x" * 100_000],
)
def test_a_node_that_holds_something_else_is_refused(session: ZooKeeperSession, data: bytes) -> None:
    session.write(NODE, data)
    for ask in (read_cluster_id, lambda session: name_cluster(session, OWN)):
        with pytest.raises(MalformedNode, match=f"{NODE} holds .*: correct or delete the node"):
            ask(session)


def test_a_node_that_may_not_be_read_is_refused(session: ZooKeeperSession) -> None:
    session.ensure("/meta/metaq")
    session._client.create(NODE, b"", acl=[make_digest_acl("stranger", "secret", all=True)])
    try:
        with pytest.raises(RefusedNode, match=NODE):
            name_cluster(session, OWN)
    finally:
        session.delete(NODE)


def test_what_differs_is_told_with_both_and_what_to_do(session: ZooKeeperSession, tmp_path: Path) -> None:
    assert check_cluster(session, tmp_path, None) is None
    with pytest.raises(OtherCluster, match=f"{OWN}, and ZooKeeper at {session.connect} has no {NODE}: .*metaq adopt"):
        check_cluster(session, tmp_path, OWN)
    assert session.read(NODE) is None
    assert name_cluster(session, OTHER) == name_cluster(session, OWN) == OTHER
    with pytest.raises(OtherCluster) as refused:
        check_cluster(session, tmp_path, OWN)
    for fact in (OWN, OTHER, session.connect, f"metaq adopt {tmp_path} --zk"):
        assert fact in str(refused.value)
