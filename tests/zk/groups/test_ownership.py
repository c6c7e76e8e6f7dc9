"""Owner nodes: one owner at a time, conflicts as values, epochs that rise."""

from collections.abc import Callable

import pytest
from kazoo.security import make_acl, make_digest_acl

from zk.errors import RefusedNode
from zk.groups.offsets import ZooKeeperOffsets
from zk.groups.ownership import ClaimOutcome, Ownership
from zk.session.session import ZooKeeperSession
from zk.tree.claims import Claimed, OwnedBy, Unclaimable
from zk.tree.nodes import OffsetNode, Partition

P0, P1 = Partition(0, 0), Partition(0, 1)
PATH = "/meta/consumers/g1/owners/t/0-0"
EPOCH = "/meta/metaq/epochs/g1/t/0-0"
OpenSession = Callable[..., ZooKeeperSession]


def claim(owner: Ownership, partition: Partition) -> ClaimOutcome:
    return owner.claim_many([("t", partition)])["t", partition]


def release(owner: Ownership, partition: Partition, claimed: Claimed) -> bool:
    return owner.release_many({("t", partition): claimed})["t", partition]


def owners(session: ZooKeeperSession) -> dict[Partition, str]:
    """The owners of topic t, by partition."""
    paths = {f"/meta/consumers/g1/owners/t/{partition}": partition for partition in (P0, P1)}
    return {paths[path]: node.data.decode() for path, node in session.read_many(paths).items()}


@pytest.fixture
def one(session: ZooKeeperSession) -> Ownership:
    return Ownership(session, "g1", "g1_one")


@pytest.fixture
def two(open_session: OpenSession) -> Ownership:
    return Ownership(open_session(), "g1", "g1_two")


def test_a_claim_is_an_ephemeral_node_with_the_consumers_id(session: ZooKeeperSession, one: Ownership) -> None:
    claimed = claim(one, P0)
    node = session.read(PATH)
    assert node is not None
    assert (node.data, node.session_id) == (b"g1_one", session.session_id)
    assert claimed == Claimed(epoch=1, owner_version=1, epoch_version=0)
    assert node.version == 1  # a genuine member's is at 0
    assert claim(one, P0) == Claimed(epoch=2, owner_version=2, epoch_version=1)
    epoch = session.read(EPOCH)
    assert epoch is not None
    assert (epoch.data, epoch.session_id) == (b"2", 0)


def test_a_conflict_names_the_owner(session: ZooKeeperSession, one: Ownership, two: Ownership) -> None:
    first = claim(one, P0)
    assert claim(two, P0) == OwnedBy("g1_one")
    assert isinstance(first, Claimed)
    assert owners(session) == {P0: "g1_one"}
    assert release(one, P0, first)
    assert not release(one, P0, first)
    second = claim(two, P0)
    assert isinstance(second, Claimed)
    assert second.epoch > first.epoch


def test_what_a_crashed_process_of_ours_left_is_claimed_again(
    session: ZooKeeperSession, one: Ownership, open_session: OpenSession
) -> None:
    former = open_session()
    before = claim(Ownership(former, "g1", "g1_one"), P0)
    after = claim(one, P0)
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
    claim(one, P0)
    expire(session)
    assert isinstance(claim(two, P0), Claimed)
    assert claim(one, P0) == OwnedBy("g1_two")


def test_hundreds_are_claimed_and_released_together(session: ZooKeeperSession, one: Ownership, two: Ownership) -> None:
    many = [("t", Partition(0, number)) for number in range(300)]
    taken = claim(two, P1)
    outcomes = one.claim_many(many)
    assert outcomes.pop(("t", P1)) == OwnedBy("g1_two")
    claims = {key: claimed for key, claimed in outcomes.items() if isinstance(claimed, Claimed)}
    assert set(claims) == {key for key in many if key != ("t", P1)}
    assert isinstance(taken, Claimed)
    claims["t", P1] = taken  # as if it were one's: the node says otherwise once two has claimed it again
    assert isinstance(claim(two, P1), Claimed)
    assert [key for key, released in one.release_many(claims).items() if not released] == [("t", P1)]
    assert owners(session) == {P1: "g1_two"}


def test_an_epoch_rises_above_what_a_broker_has_seen_and_outlives_its_node(
    session: ZooKeeperSession, one: Ownership
) -> None:
    assert one.claim_many([("t", P0)], {("t", P0): 700})["t", P0] == Claimed(700, 1, 0)
    assert claim(one, P0) == Claimed(701, 2, 1)
    session.delete(EPOCH)
    assert claim(one, P0) == Claimed(1, 3, 0)


def test_an_epoch_that_is_no_number_costs_its_partition(session: ZooKeeperSession, one: Ownership) -> None:
    session.write(EPOCH, b"soon")
    outcomes = one.claim_many([("t", P0), ("t", P1)])
    assert outcomes["t", P1] == Claimed(1, 1, 0)
    assert isinstance(outcomes["t", P0], Unclaimable)
    assert f"{EPOCH} holds b'soon'" in str(session.malformed.found[EPOCH])


@pytest.mark.parametrize("path", [EPOCH, "/meta/consumers/g1/owners/t/0-0"])
def test_a_node_that_access_rules_deny_costs_its_partition(
    session: ZooKeeperSession, one: Ownership, path: str
) -> None:
    reading = [make_digest_acl("stranger", "secret", all=True), make_acl("world", "anyone", read=True)]
    nobody = reading[:1]
    for rules in (reading, nobody):
        session.ensure_parents([path])
        session._client.create(path, b"1", acl=rules)
        outcomes = one.claim_many([("t", P0), ("t", P1)])
        assert isinstance(outcomes["t", P1], Claimed)
        assert not isinstance(outcomes["t", P0], Claimed)
        session.delete(path)


def test_a_denied_offset_node_costs_its_partition(session: ZooKeeperSession, one: Ownership) -> None:
    claims = one.claim_many([("t", P0), ("t", P1)])
    path = "/meta/consumers/g1/offsets/t/0-0"
    session.ensure_parents([path])
    session._client.create(path, b"5", acl=[make_acl("world", "anyone", read=True)])
    offsets = ZooKeeperOffsets(session, "g1")
    entries = {key: (OffsetNode(9), claimed) for key, claimed in claims.items() if isinstance(claimed, Claimed)}
    with pytest.raises(RefusedNode, match=path):
        offsets.commit_as_owner(entries)
    assert offsets.load_many([("t", P0), ("t", P1)]) == {("t", P0): OffsetNode(5), ("t", P1): OffsetNode(9)}


def test_what_was_claimed_without_an_answer_is_let_go(
    session: ZooKeeperSession, one: Ownership, two: Ownership
) -> None:
    one.claim_many([("t", P0)])
    two.claim_many([("t", P1)])
    one.abandon_many([("t", P0), ("t", P1)])
    assert owners(session) == {P1: "g1_two"}


def test_another_consumer_of_the_same_session_keeps_its_own(session: ZooKeeperSession, one: Ownership) -> None:
    sibling = Ownership(session, "g1", "g1_sibling")
    sibling.claim_many([("t", P0)])
    one.abandon_many([("t", P0)])
    assert owners(session) == {P0: "g1_sibling"}


def test_a_stale_owner_moves_no_offset_and_lets_nothing_go(
    session: ZooKeeperSession, one: Ownership, two: Ownership, expire: Callable[[ZooKeeperSession], None]
) -> None:
    offsets = ZooKeeperOffsets(session, "g1")
    former, kept = claim(one, P0), claim(one, P1)
    assert isinstance(former, Claimed)
    assert isinstance(kept, Claimed)
    assert offsets.commit_as_owner({("t", P0): (OffsetNode(10), former), ("t", P1): (OffsetNode(5), kept)}) == []
    expire(session)
    assert isinstance(claim(two, P0), Claimed)
    kept = claim(one, P1)
    assert isinstance(kept, Claimed)
    stale = offsets.commit_as_owner({("t", P0): (OffsetNode(20), former), ("t", P1): (OffsetNode(6), kept)})
    assert stale == [("t", P0)]
    assert offsets.load_many([("t", P0), ("t", P1)]) == {("t", P0): OffsetNode(10), ("t", P1): OffsetNode(6)}
    assert not release(one, P0, former)
    assert owners(session) == {P0: "g1_two", P1: "g1_one"}


def test_a_genuine_owner_makes_ours_stale_though_it_raises_no_epoch(session: ZooKeeperSession, one: Ownership) -> None:
    """Java creates the node and writes nothing more: version 0, with its id as data."""
    former = claim(one, P0)
    assert isinstance(former, Claimed)
    session.delete(PATH)
    session.create(PATH, b"g1_java", ephemeral=True)
    offsets = ZooKeeperOffsets(session, "g1")
    assert offsets.commit_as_owner({("t", P0): (OffsetNode(20), former)}) == [("t", P0)]
    assert offsets.load("t", P0) is None
    assert not release(one, P0, former)
    assert claim(one, P0) == OwnedBy("g1_java")
    session.delete(PATH)
    assert offsets.commit_as_owner({("t", P0): (OffsetNode(20), former)}) == [("t", P0)]  # nobody's is not ours


def test_an_operator_is_above_owners_that_know_epochs_and_below_those_that_do_not(
    session: ZooKeeperSession, one: Ownership, two: Ownership
) -> None:
    offsets = ZooKeeperOffsets(session, "g1")
    claimed = claim(one, P0)
    assert isinstance(claimed, Claimed)
    assert offsets.commit_as_owner({("t", P0): (OffsetNode(900), claimed)}) == []
    epochs = offsets.commit_fencing_owners({("t", P0): OffsetNode(50), ("t", P1): OffsetNode(60)})
    assert epochs == {("t", P0): claimed.epoch + 1, ("t", P1): 1}
    assert offsets.commit_as_owner({("t", P0): (OffsetNode(925), claimed)}) == [("t", P0)]
    assert offsets.load_many([("t", P0), ("t", P1)]) == {("t", P0): OffsetNode(50), ("t", P1): OffsetNode(60)}
    assert owners(session) == {P0: "g1_one"}
    again = claim(one, P0)
    assert isinstance(again, Claimed)
    assert again.epoch > claimed.epoch + 1
    session.create("/meta/consumers/g1/owners/t/0-1", b"g1_java", ephemeral=True)
    refused = offsets.commit_fencing_owners({("t", P0): OffsetNode(1), ("t", P1): OffsetNode(2)})
    assert refused == {("t", P1): OwnedBy("g1_java")}
    assert offsets.load("t", P0) == OffsetNode(50)
