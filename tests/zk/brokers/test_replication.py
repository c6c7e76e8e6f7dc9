"""The replication node: compare-and-set, the claim of an epoch, and what others may have written there."""

from collections.abc import Callable

import pytest

from zk.brokers.replication import (
    EPOCH_MAX,
    EpochTaken,
    ReplicationNode,
    VersionedReplication,
    claim_epoch,
    read_replication,
    write_replication,
)
from zk.errors import MalformedNode, ZooKeeperError
from zk.session.session import ZooKeeperSession

PATH = "/meta/metaq/brokers/3/replication"
NODE = ReplicationNode(epoch=4, mode="sync", in_sync=(1, 2), in_sync_min=1, master="meta://10.0.0.9:8123")


def test_who_writes_over_what_he_did_not_read_changes_nothing(session: ZooKeeperSession) -> None:
    assert read_replication(session, 3) == VersionedReplication(None, None)
    assert write_replication(session, 3, NODE, 0) is None
    assert write_replication(session, 3, NODE, None) == 0
    assert write_replication(session, 3, ReplicationNode(epoch=9), None) is None
    assert write_replication(session, 3, NODE, 0) == 1
    assert write_replication(session, 3, ReplicationNode(epoch=9), 0) is None
    assert read_replication(session, 3) == VersionedReplication(NODE, 1)


def test_of_two_promoted_slaves_one_gets_the_epoch(
    session: ZooKeeperSession, open_session: Callable[..., ZooKeeperSession]
) -> None:
    write_replication(session, 3, NODE, None)
    seen = read_replication(session, 3)
    assert claim_epoch(session, 3, seen, 4, "slave 1") == 5
    with pytest.raises(EpochTaken, match="look up the master of broker 3"):
        claim_epoch(open_session(), 3, seen, 4, "slave 2")
    node = read_replication(session, 3).node
    assert node == ReplicationNode(epoch=5, mode="sync", in_sync=(1, 2), in_sync_min=1, claimed_by="slave 1")


@pytest.mark.parametrize(("node", "journal_epoch", "claimed"), [(None, 1, 2), (None, 7, 8), (NODE, 1, 5), (NODE, 4, 5)])
def test_an_epoch_is_above_all_that_were(
    session: ZooKeeperSession, node: ReplicationNode | None, journal_epoch: int, claimed: int
) -> None:
    if node is not None:
        write_replication(session, 3, node, None)
    assert claim_epoch(session, 3, read_replication(session, 3), journal_epoch, "slave 1") == claimed


def test_there_is_a_highest_epoch(session: ZooKeeperSession) -> None:
    with pytest.raises(ZooKeeperError, match=f"broker 3 has epoch {EPOCH_MAX}, the highest there is"):
        claim_epoch(session, 3, VersionedReplication(ReplicationNode(epoch=EPOCH_MAX), 0), 1, "slave 1")
    assert read_replication(session, 3).node is None


def test_the_master_that_was_cut_off_cannot_write_any_more(session: ZooKeeperSession) -> None:
    write_replication(session, 3, NODE, None)
    claim_epoch(session, 3, read_replication(session, 3), 4, "slave 1")
    without_slaves = ReplicationNode(epoch=4, mode="sync", in_sync=(), master=NODE.master)
    assert write_replication(session, 3, without_slaves, 0) is None


def test_what_a_newer_metaq_adds_is_passed_over(session: ZooKeeperSession) -> None:
    session.write(PATH, b'{"epoch":4,"in_sync":[1],"colour":"green"}')
    assert read_replication(session, 3).node == ReplicationNode(epoch=4, in_sync=(1,))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"4",
        b"{}",
        b'{"epoch":0}',
        b'{"epoch":4,"in_sync":["1"]}',
        b'{"epoch":4,"mode":"maybe"}',
        b"\xff",
        b'{"epoch":4,"master":"' + b"x" * 2000 + b'"}',
        b'{"epoch":4,"in_sync":[' + b"1," * 2000 + b"1]}",
        b"[" * 100_000,
    ],
)
def test_what_is_no_replication_node_is_named(session: ZooKeeperSession, data: bytes) -> None:
    session.write(PATH, data)
    with pytest.raises(MalformedNode, match=PATH):
        read_replication(session, 3)
