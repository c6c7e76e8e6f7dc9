"""`metaq doctor zookeeper`: malformed nodes are listed, metaq's own repaired, and everything else left alone."""

import json
from typing import Any

from kazoo.security import make_digest_acl

from tests.fixtures.forked import run_metaq
from zk.brokers.replication import ReplicationNode, write_replication
from zk.embedded.chroot import Chroot
from zk.groups.ownership import Ownership
from zk.session.session import ZooKeeperSession
from zk.tree.claims import Claimed
from zk.tree.nodes import Partition

OURS = "/meta/metaq/epochs/g/t/0-0"
OTHERS = {
    "/meta/brokers/ids/7": b"somewhere",
    "/meta/brokers/ids/7/master": b"http://h:1",
    "/meta/brokers/ids/7/slave1": b"\xff",
    "/meta/brokers/topics-pub/t/7-m": b"{",
    "/meta/brokers/topics-sub/t/7-m": b'{"numParts":-1}',
    "/meta/consumers/g/ids/g_x": b"\xff\xfe",
    "/meta/consumers/g/offsets/t/0-0": b"far",
    "/meta/consumers/g/owners/t/0-7": b"nobody",
    "/meta/metaq/brokers/7/replication": b"{}",
    "/meta/metaq/tables/0123": b'{"generation":-1}',
    "/meta/metaq/spark/query": b"\xff",
}
DENIED = "/meta/consumers/secret"


def metaq(zookeeper: Chroot, *words: str, status: int) -> list[dict[str, Any]]:
    done = run_metaq("doctor", "zookeeper", *words, "--json", "--zk", zookeeper.connect)
    assert done.returncode == status, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_malformed_nodes_are_listed_and_only_ours_repaired(zookeeper: Chroot) -> None:
    done = run_metaq("doctor", "zookeeper", "--zk", zookeeper.connect)
    assert done.returncode == 1
    assert "has no /meta: no broker was ever registered there" in done.stderr
    with ZooKeeperSession(zookeeper.connect) as session:
        owner = Ownership(session, "g", "g_c")
        owner.claim_many([("t", Partition(0, 0)), ("t", Partition(0, 1))])
        write_replication(session, 0, ReplicationNode(epoch=3), None)
        session.write("/meta/consumers/g/offsets/t/0-1", b"-1-7")
        session.write("/meta/brokers/ids/odd", b"odd")
        assert metaq(zookeeper, status=0) == []
        for path, data in {OURS: b"soon", **OTHERS}.items():
            session.write(path, data)
        session._client.create(DENIED, b"", acl=[make_digest_acl("stranger", "secret", all=True)])
        found = {row["path"]: row for row in metaq(zookeeper, status=1)}
        assert found.keys() == {OURS, *OTHERS, DENIED}
        assert [path for path, row in found.items() if row["ours"]] == [OURS]
        assert found[OURS]["problem"] == "holds b'soon', expected a decimal number"
        assert found["/meta/consumers/g/offsets/t/0-0"]["advice"].startswith("metaq groups reset g t/0-0 --to")
        assert not any(row["repaired"] for row in found.values())

        repaired = {row["path"]: row["repaired"] for row in metaq(zookeeper, "--apply", status=1)}
        assert repaired == {path: path == OURS for path in found}
        assert session.read(OURS) is None
        assert {path: node.data for path, node in session.read_many(OTHERS).items()} == OTHERS
        assert isinstance(owner.claim_many([place := ("t", Partition(0, 0))])[place], Claimed)
        assert session.delete(DENIED)  # the fixture can't look below it
        for path in sorted(OTHERS, reverse=True):
            session.delete(path)
        assert metaq(zookeeper, "--apply", status=0) == []


def test_without_zookeeper_it_is_status_2() -> None:
    done = run_metaq("doctor", "zookeeper", "--zk", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
