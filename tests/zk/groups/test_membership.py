"""Consumers in their group: id nodes, conflicts, crashes, and the group as every member sees it."""

import os
import threading
from collections.abc import Callable

import pytest

from zk.errors import ZooKeeperError
from zk.groups.membership import ConsumerIdTaken, ConsumerMembership, new_consumer_id, read_group
from zk.session.session import ZooKeeperSession
from zk.tree.paths import InvalidName

OpenSession = Callable[..., ZooKeeperSession]


def no_wait(text: str) -> None:
    raise AssertionError(f"waited: {text}")


def test_consumer_ids() -> None:
    assert new_consumer_id("g1", "10.0.0.20", "mine") == "g1_mine"
    assert new_consumer_id("g1", "10.0.0.20").startswith(f"g1_10.0.0.20-{os.getpid()}-")
    assert new_consumer_id("g1", "h") != new_consumer_id("g1", "h")
    with pytest.raises(InvalidName):
        new_consumer_id("g1", "h", "a/b")


def test_members_by_topic_in_string_order(session: ZooKeeperSession, open_session: OpenSession) -> None:
    for consumer, topics in {"g1_9": {"a", "b"}, "g1_10": {"a"}}.items():
        ConsumerMembership(open_session(), "g1", consumer).join_group(frozenset(topics), no_wait)
    node = session.read("/meta/consumers/g1/ids/g1_9")
    assert node is not None
    assert (node.data, node.session_id != 0) == (b"a,b", True)
    assert read_group(session, "g1").consumers == {"a": ("g1_10", "g1_9"), "b": ("g1_9",)}
    assert read_group(session, "nobody").consumers == {}


def test_joining_again_changes_the_topics(session: ZooKeeperSession) -> None:
    member = ConsumerMembership(session, "g1", "g1_c")
    member.join_group(frozenset({"a"}), no_wait)
    member.join_group(frozenset({"a"}), no_wait)
    member.join_group(frozenset({"a", "b"}), no_wait)
    assert member.topics() == frozenset({"a", "b"})
    member.leave_group()
    member.leave_group()
    assert member.topics() is None


def test_a_topic_with_a_comma_is_refused(session: ZooKeeperSession) -> None:
    with pytest.raises(ZooKeeperError, match="'a,b' holds a comma"):
        ConsumerMembership(session, "g1", "g1_c").join_group(frozenset({"a,b"}), no_wait)


def test_a_live_consumers_id_is_refused(session: ZooKeeperSession, open_session: OpenSession) -> None:
    ConsumerMembership(session, "g1", "g1_c").join_group(frozenset({"a"}), no_wait)
    second = ConsumerMembership(open_session(), "g1", "g1_c")
    with pytest.raises(ConsumerIdTaken, match="use another consumer id"):
        second.join_group(frozenset({"a"}), lambda text: second.cancel())
    second.leave_group()
    assert read_group(session, "g1").consumers == {"a": ("g1_c",)}


def test_a_crashed_consumers_id_is_waited_for(session: ZooKeeperSession, open_session: OpenSession) -> None:
    crashed = open_session()
    ConsumerMembership(crashed, "g1", "g1_c").join_group(frozenset({"a"}), no_wait)
    told = threading.Event()
    thread = threading.Thread(
        target=ConsumerMembership(session, "g1", "g1_c").join_group, args=[frozenset({"b"}), lambda text: told.set()]
    )
    thread.start()
    assert told.wait(60)
    crashed.close()
    thread.join(60)
    assert not thread.is_alive()
    assert read_group(session, "g1").consumers == {"b": ("g1_c",)}


def test_a_member_comes_back_after_expiry(
    session: ZooKeeperSession, expire: Callable[[ZooKeeperSession], None]
) -> None:
    member = ConsumerMembership(session, "g1", "g1_c")
    member.join_group(frozenset({"a"}), no_wait)
    expire(session)
    assert member.topics() is None
    member.join_group(frozenset({"a"}), no_wait)
    assert member.topics() == frozenset({"a"})


def test_a_malformed_id_node_costs_itself_and_is_named(session: ZooKeeperSession) -> None:
    member = ConsumerMembership(session, "g1", "g1_c")
    member.join_group(frozenset({"a"}), no_wait)
    session.write("/meta/consumers/g1/ids/g1_x", b"\xff\xfe")
    session.write("/meta/consumers/g1/ids/" + "y" * 2_000, b"a")  # longer than metaq would make it
    assert read_group(session, "g1").consumers == {"a": ("g1_c", "y" * 2_000)}
    assert list(session.malformed.found) == ["/meta/consumers/g1/ids/g1_x"]


def test_a_member_whose_id_node_was_overwritten_joins_again(session: ZooKeeperSession) -> None:
    member = ConsumerMembership(session, "g1", "g1_c")
    member.join_group(frozenset({"a"}), no_wait)
    session.write("/meta/consumers/g1/ids/g1_c", b"\xff")
    assert member.topics() is None
    member.join_group(frozenset({"a"}), no_wait)
    assert member.topics() == frozenset({"a"})


def test_who_is_no_member_triggers_no_rebalance(session: ZooKeeperSession, open_session: OpenSession) -> None:
    member = ConsumerMembership(session, "g1", "g1_c")
    member.trigger_rebalance()
    ConsumerMembership(open_session(), "g1", "g1_c").join_group(frozenset({"a"}), no_wait)
    before = session.read("/meta/consumers/g1/ids/g1_c")
    member.trigger_rebalance()  # another session's
    assert session.read("/meta/consumers/g1/ids/g1_c") == before
