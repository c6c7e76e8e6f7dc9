"""Paths: every line of the specification's tree, built and parsed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zk.tree.nodes import BrokerName, Partition
from zk.tree.paths import (
    NAME_CHARACTERS_MAX,
    BrokerKey,
    BrokerNode,
    ConsumerKey,
    ConsumerParentKey,
    DecisionTableKey,
    InvalidName,
    NodeKey,
    PartitionKey,
    PartitionNode,
    Paths,
    PresenceKey,
    QueryKey,
    ResetKey,
    TopicBrokerKey,
    TopicKind,
    TopicParentKey,
    check_name,
)

pytestmark = pytest.mark.scenario("A09")
FIRST, SECOND = Partition(0, 0), Partition(0, 1)

GOLDEN: list[tuple[NodeKey, str]] = [
    (BrokerKey(BrokerNode.ADDRESS, 0), "/meta/brokers/ids/0"),
    (PresenceKey(BrokerName(0)), "/meta/brokers/ids/0/master"),
    (PresenceKey(BrokerName(0, 1)), "/meta/brokers/ids/0/slave1"),
    (BrokerKey(BrokerNode.CONFIG_CHECKSUM, 0), "/meta/brokers/ids/0/master_config_checksum"),
    (TopicBrokerKey(TopicKind.LEGACY, "meta-test", BrokerName(0)), "/meta/brokers/topics/meta-test/0-m"),
    (TopicBrokerKey(TopicKind.LEGACY, "meta-test", BrokerName(0, 1)), "/meta/brokers/topics/meta-test/0-s1"),
    (TopicBrokerKey(TopicKind.PUB, "meta-test", BrokerName(0)), "/meta/brokers/topics-pub/meta-test/0-m"),
    (TopicBrokerKey(TopicKind.SUB, "meta-test", BrokerName(0, 1)), "/meta/brokers/topics-sub/meta-test/0-s1"),
    (TopicParentKey(TopicKind.SUB, "meta-test"), "/meta/brokers/topics-sub/meta-test"),
    (ConsumerParentKey("g1"), "/meta/consumers/g1/ids"),
    (ConsumerKey("g1", "g1_10.0.0.20-4711-0b"), "/meta/consumers/g1/ids/g1_10.0.0.20-4711-0b"),
    (PartitionKey(PartitionNode.OWNER, "g1", "meta-test", SECOND), "/meta/consumers/g1/owners/meta-test/0-1"),
    (PartitionKey(PartitionNode.OFFSET, "g1", "meta-test", FIRST), "/meta/consumers/g1/offsets/meta-test/0-0"),
    (BrokerKey(BrokerNode.REPLICATION, 0), "/meta/metaq/brokers/0/replication"),
    (BrokerKey(BrokerNode.JOURNAL, 0), "/meta/metaq/journals/0"),
    (DecisionTableKey("5e2f"), "/meta/metaq/tables/5e2f"),
    (QueryKey("orders to stock"), "/meta/metaq/spark/orders to stock"),
    (ResetKey("billing"), "/meta/metaq/resets/billing"),
    (PartitionKey(PartitionNode.OWNER_EPOCH, "g1", "meta-test", SECOND), "/meta/metaq/epochs/g1/meta-test/0-1"),
]
names = st.text(st.characters(codec="ascii", exclude_characters="/", min_codepoint=32, max_codepoint=126), min_size=1)


@pytest.mark.parametrize(("place", "path"), GOLDEN)
def test_the_tree(place: NodeKey, path: str) -> None:
    assert Paths().of(place) == path
    assert Paths().maybe_parse(path) == place


@pytest.mark.parametrize("root", ["meta", "/meta", "/meta/", "meta/"])
def test_the_root_is_normalised(root: str) -> None:
    assert Paths(root).of(PresenceKey(BrokerName(3))) == "/meta/brokers/ids/3/master"


def test_another_root() -> None:
    assert Paths("/a/b").of(PresenceKey(BrokerName(3))) == "/a/b/brokers/ids/3/master"
    assert Paths("/a/b").maybe_parse("/meta/brokers/ids/3/master") is None
    assert Paths("/").of(PresenceKey(BrokerName(3))) == "/brokers/ids/3/master"
    assert Paths("/").maybe_parse("/brokers/ids/3/master") == PresenceKey(BrokerName(3))


@given(names.filter(lambda name: name not in {".", ".."}), names.filter(lambda name: name not in {".", ".."}))
def test_names_come_back(group: str, topic: str) -> None:
    owner = PartitionKey(PartitionNode.OWNER, group, topic, Partition(1, 2))
    assert Paths().maybe_parse(Paths().of(owner)) == owner


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/meta",
        "/metabrokers/ids/0",
        "/meta/brokers/ids",
        "/meta/brokers/ids/x",
        "/meta/brokers/ids/0/slave",
        "/meta/brokers/ids/0/slave-1",
        "/meta/brokers/ids/0/master/x",
        "/meta/brokers/topics-x/t",
        "/meta/brokers/topics-pub/t/0-x",
        "/meta/consumers/g/owners/t/x",
        "/meta/consumers/g/owners/t",
        "/meta/consumers//ids",
        "/meta/metaq/epochs/g/t/x",
        "/meta/metaq/epochs",
    ],
)
def test_paths_that_are_none_of_ours(path: str) -> None:
    assert Paths().maybe_parse(path) is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a\0", "a\n", "\x7f", "\ud800", "\U0001f600", "x" * (NAME_CHARACTERS_MAX + 1)]
)
def test_names_that_cannot_be_nodes(name: str) -> None:
    with pytest.raises(InvalidName):
        check_name(name)
    with pytest.raises(InvalidName):
        Paths().of(TopicParentKey(TopicKind.PUB, name))


def test_a_name_is_a_text() -> None:
    with pytest.raises(TypeError, match="a topic, group or consumer id is a str, not NoneType"):
        check_name(None)  # type: ignore[arg-type]  # as users without types may
