"""Owner nodes: one owner at a time, conflicts as values, epochs that rise."""

from collections.abc import Callable

import pytest

from zk.nodes import Partition
from zk.ownership import Claimed, OwnedBy, Ownership
from zk.session import ZooKeeperSession

P0, P1 = Partition(0, 0), Partition(0, 1)
PATH = "/meta/consumers/g1/owners/t/0-0"
OpenSession = Callable[..., ZooKeeperSession]


@pytest.fixture
def one(session: ZooKeeperSession) -> Ownership:
    return Ownership(session, "g1", "g1_one")


@pytest.fixture
def two(open_session: OpenSession) -> Ownership:
    return Ownership(open_session(), "g1", "g1_two")


def test_a_claim_is_an_ephemeral_node_with_the_consumers_id(session: ZooKeeperSession, one: Ownership) -> None:
    claimed = one.claim("t", P0)
    node = session.read(PATH)
    assert node is not None
    assert (node.data, node.session_id) == (b"g1_one", session.session_id)
    assert one.claim("t", P0) == claimed
    assert claimed == Claimed(node.created)


def test_a_conflict_names_the_owner(one: Ownership, two: Ownership) -> None:
    first = one.claim("t", P0)
    assert two.claim("t", P0) == OwnedBy("g1_one")
    assert not two.release("t", P0)
    assert two.owners("t", [P0, P1]) == {P0: "g1_one"}
    assert one.release("t", P0)
    assert not one.release("t", P0)
    second = two.claim("t", P0)
    assert isinstance(first, Claimed)
    assert isinstance(second, Claimed)
    assert second.epoch > first.epoch


def test_what_a_crashed_process_of_ours_left_is_claimed_anew(
    session: ZooKeeperSession, one: Ownership, open_session: OpenSession
) -> None:
    former = open_session()
    before = Ownership(former, "g1", "g1_one").claim("t", P0)
    after = one.claim("t", P0)
    former.close()
    node = session.read(PATH)
    assert node is not None
    assert node.session_id == session.session_id
    assert isinstance(before, Claimed)
    assert isinstance(after, Claimed)
    assert after.epoch > before.epoch


def test_expiry_frees_the_partition(
    session: ZooKeeperSession, one: Ownership, two: Ownership, expire: Callable[[ZooKeeperSession], None]
) -> None:
    one.claim("t", P0)
    expire(session)
    assert isinstance(two.claim("t", P0), Claimed)
    assert one.claim("t", P0) == OwnedBy("g1_two")
