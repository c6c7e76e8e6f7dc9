"""Node data and names: the specification's values, both ways, and everything else refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zk.errors import MalformedNode
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import (
    INT64_MAX,
    INT64_MIN,
    PARTITIONS_MAX,
    BrokerName,
    OffsetNode,
    Partition,
    TopicNode,
    decode_broker_url,
    decode_offset_node,
    decode_topic_node,
    decode_topics,
    encode_topics,
    string_order,
)

int31 = st.integers(0, 2**31 - 1)
partitions = st.builds(Partition, int31, int31)
broker_names = st.builds(BrokerName, int31, st.none() | int31)


@pytest.mark.parametrize(
    ("name", "text"), [(BrokerName(0), "0-m"), (BrokerName(0, 1), "0-s1"), (BrokerName(12, 0), "12-s0")]
)
def test_broker_names(name: BrokerName, text: str) -> None:
    assert str(name) == text
    assert BrokerName.maybe_parse(text) == name


@pytest.mark.parametrize(
    "text", ["", "0", "m", "0-", "-m", "0-x", "0-m-m", "a-m", "00-m", "0-s", "0-s-1", "0-s1x", "2147483648-m", "٣-m"]
)
def test_children_that_are_no_brokers(text: str) -> None:
    assert BrokerName.maybe_parse(text) is None


@given(partitions)
def test_partition_names(partition: Partition) -> None:
    assert Partition.maybe_parse(str(partition)) == partition


@pytest.mark.parametrize("text", ["", "0", "0-", "-0", "0-1-2", "0--1", "0-a", "0-01", "0-2147483648", "0-1 "])
def test_names_that_are_no_partitions(text: str) -> None:
    assert Partition.maybe_parse(text) is None


def test_partitions_order_by_number_or_by_string() -> None:
    listed = [Partition(0, 2), Partition(0, 10), Partition(10, 0), Partition(2, 0)]
    assert sorted(listed) == [Partition(0, 2), Partition(0, 10), Partition(2, 0), Partition(10, 0)]
    assert [str(p) for p in sorted(listed, key=string_order)] == ["0-10", "0-2", "10-0", "2-0"]


def test_string_order_is_javas() -> None:
    # U+1F600 is two UTF-16 units that start with D83D, below U+FF21: by code point it would come after.
    assert sorted(["\uff21", "\U0001f600", "a"], key=string_order) == ["a", "\U0001f600", "\uff21"]


def test_topic_nodes_are_written_as_java_reads_them() -> None:
    assert TopicNode(2, BrokerName(0)).encode() == b'{"numParts":2,"broker":"0-m"}'
    assert TopicNode(2, BrokerName(0, 1)).encode() == b'{"numParts":2,"broker":"0-s1"}'


@pytest.mark.parametrize(
    "data",
    [
        b'{"numParts":3,"broker":"0-m"}',
        b'{"broker":"0-m","numParts":3}',
        b'{ "numParts" : 3 , "broker" : null }',
        b'{"numParts":3}',
        b'{"numParts":3,"broker":"0-m","more":[{}]}',
    ],
)
def test_topic_nodes_are_read_tolerantly(data: bytes) -> None:
    assert decode_topic_node("/p", data, BrokerName(0)) == TopicNode(3, BrokerName(0))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"3",
        b"null",
        b"{}",
        b'{"numParts":-1}',
        b'{"numParts":true}',
        b'{"numParts":"3"}',
        b'{"numParts":3.5}',
        b'{"numParts":%d}' % (PARTITIONS_MAX + 1),
        b'{"numParts":3}x',
        b'{"numParts":3,"x":' + b"[" * 100_000,
        b'{"numParts":3,"broker":"\xff"}x',
    ],
)
def test_other_topic_nodes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedNode, match=r"node /meta/x holds .*, expected .*correct or delete") as refusal:
        decode_topic_node("/meta/x", data, BrokerName(0))
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize(
    ("data", "node"),
    [
        (b"100000-25", OffsetNode(25, 100000)),
        (b"-1-0", OffsetNode(0)),
        (b"-1-1024", OffsetNode(1024, -1)),
        (b"-5468930997472964608-25", OffsetNode(25, -5468930997472964608)),
    ],
)
def test_offset_nodes(data: bytes, node: OffsetNode) -> None:
    assert decode_offset_node("/p", data) == node
    assert node.encode() == data


@given(st.integers(0, INT64_MAX), st.integers(INT64_MIN, INT64_MAX))
def test_every_offset_and_id_comes_back(offset: int, message_id: int) -> None:
    node = OffsetNode(offset, message_id)
    assert decode_offset_node("/p", node.encode()) == node


def test_plain_offsets_of_old_clients() -> None:
    assert decode_offset_node("/p", b"1024") == OffsetNode(1024, -1)


@pytest.mark.parametrize(
    "data", [b"", b"-", b"-5", b"1-", b"a-1", b"1-a", b"1 -2", b"1_0-2", b"1-9223372036854775808", b"\xff-1"]
)
def test_other_offset_nodes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedNode, match="expected <message id>-<offset>"):
        decode_offset_node("/p", data)


@pytest.mark.parametrize("text", ["meta://10.0.0.9:8123", "meta://broker-1.example:1", "meta://[fe80::1]:65535"])
def test_broker_urls(text: str) -> None:
    url = decode_broker_url("/p", text.encode())
    assert url is not None
    assert str(url) == text
    assert url.encode() == text.encode()


def test_a_blank_url_is_no_broker() -> None:
    assert decode_broker_url("/p", b" ") is None
    assert decode_broker_url("/p", b"") is None


@pytest.mark.parametrize(
    "text", ["http://h:1", "meta://h", "meta://h:0", "meta://h:65536", "meta://:1", "meta://a b:1", "meta://h:1/x"]
)
def test_other_urls_are_refused(text: str) -> None:
    with pytest.raises(MalformedNode):
        decode_broker_url("/p", text.encode())


def test_url_parts() -> None:
    assert decode_broker_url("/p", b"meta://[::1]:8123") == BrokerUrl("::1", 8123)


def test_topics_of_a_consumer() -> None:
    assert encode_topics({"b", "a"}) == b"a,b"
    assert decode_topics("/p", b"b,a") == {"a", "b"}
    assert decode_topics("/p", b"") == frozenset()
    with pytest.raises(MalformedNode):
        decode_topics("/p", b"\xff")
