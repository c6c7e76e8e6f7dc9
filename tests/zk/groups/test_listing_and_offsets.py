"""Offsets in ZooKeeper, and the group listing that shows them: the consumer half of spec C.5."""

from collections.abc import Callable

import pytest

from zk.errors import MalformedNode
from zk.groups.listing import GroupListing, PartitionProgress, list_group, list_groups
from zk.groups.membership import ConsumerMembership
from zk.groups.offsets import ZooKeeperOffsets
from zk.groups.ownership import Ownership
from zk.session.session import ZooKeeperSession
from zk.tree.nodes import OffsetNode, Partition

P0, P1 = Partition(0, 0), Partition(0, 1)
CONSUMER = "g1_10.0.0.20-4711-0b9c2d5e"


def data_of(session: ZooKeeperSession, path: str) -> tuple[bytes, bool]:
    node = session.read(path)
    assert node is not None
    return node.data, node.session_id != 0


@pytest.mark.scenario("B09")
def test_offsets_are_stored_as_specified_and_come_back(session: ZooKeeperSession) -> None:
    offsets = ZooKeeperOffsets(session, "g1")
    assert offsets.load("meta-test", P0) is None
    stored = {("meta-test", P0): OffsetNode(25, 100000), ("meta-test", P1): OffsetNode(0)}
    offsets.commit(stored)
    assert data_of(session, "/meta/consumers/g1/offsets/meta-test/0-0") == (b"100000-25", False)
    assert data_of(session, "/meta/consumers/g1/offsets/meta-test/0-1") == (b"-1-0", False)
    assert offsets.load_many([*stored, ("other", P0)]) == stored
    offsets.commit({("meta-test", P0): OffsetNode(1024, -5468930997472964608)})
    assert offsets.load("meta-test", P0) == OffsetNode(1024, -5468930997472964608)


def test_offsets_of_a_thousand_partitions(session: ZooKeeperSession) -> None:
    offsets = ZooKeeperOffsets(session, "g1")
    many = {("t", Partition(0, number)): OffsetNode(number, -number) for number in range(1_000)}
    offsets.commit(many)
    assert offsets.load_many(many) == many


def test_a_broken_offset_is_named(session: ZooKeeperSession) -> None:
    session.write("/meta/consumers/g1/offsets/t/0-0", b"x")
    with pytest.raises(MalformedNode, match="/meta/consumers/g1/offsets/t/0-0 holds b'x'"):
        ZooKeeperOffsets(session, "g1").load("t", P0)


def test_groups_are_listed_with_members_owners_and_offsets(
    session: ZooKeeperSession, open_session: Callable[..., ZooKeeperSession]
) -> None:
    assert list_groups(session) == []
    ConsumerMembership(session, "g1", CONSUMER).join_group(frozenset({"meta-test"}), print)
    Ownership(session, "g1", CONSUMER).claim_many([("meta-test", P0), ("meta-test", P1)])
    ZooKeeperOffsets(session, "g1").commit({("meta-test", P0): OffsetNode(25, 100000), ("old", P1): OffsetNode(7)})
    replica = "meta-slave-group_1_10.0.0.10-1"
    ConsumerMembership(open_session(), "meta-slave-group_1", replica).join_group(frozenset({"meta-test"}), print)
    assert data_of(session, f"/meta/consumers/g1/ids/{CONSUMER}") == (b"meta-test", True)
    assert data_of(session, "/meta/consumers/g1/owners/meta-test/0-0") == (CONSUMER.encode(), True)
    assert list_groups(session) == [
        GroupListing(
            "g1",
            {CONSUMER: frozenset({"meta-test"})},
            (
                PartitionProgress("meta-test", P0, CONSUMER, OffsetNode(25, 100000)),
                PartitionProgress("meta-test", P1, CONSUMER, None),
                PartitionProgress("old", P1, None, OffsetNode(7)),
            ),
            frozenset({"meta-test", "old"}),
        ),
        GroupListing("meta-slave-group_1", {replica: frozenset({"meta-test"})}, ()),
    ]
    assert list_group(session, "unknown") == GroupListing("unknown", {}, ())


def test_malformed_nodes_of_a_group_cost_themselves(session: ZooKeeperSession) -> None:
    ConsumerMembership(session, "g1", CONSUMER).join_group(frozenset({"t"}), print)
    Ownership(session, "g1", CONSUMER).claim_many([("t", P0), ("t", P1)])
    ZooKeeperOffsets(session, "g1").commit({("t", P0): OffsetNode(25)})
    bad = ["/meta/consumers/g1/ids/g1_x", "/meta/consumers/g1/offsets/t/0-1"]
    for path in bad:
        session.write(path, b"\xff")
    session.write("/meta/consumers/g1/owners/t/odd", b"x")
    session.write("/meta/consumers/g1/owners/" + "t" * 2_000 + "/0-0", b"x")  # no topic has such a name
    session.ensure("/meta/consumers/" + "g" * 2_000)
    (listed,) = list_groups(session)
    assert listed.members == {CONSUMER: {"t"}, "g1_x": frozenset()}
    assert listed.progress == (
        PartitionProgress("t", P0, CONSUMER, OffsetNode(25)),
        PartitionProgress("t", P1, CONSUMER, is_malformed=True),
    )
    assert sorted(session.malformed.found) == bad
