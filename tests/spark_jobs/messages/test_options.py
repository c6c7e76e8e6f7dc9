"""Options of a read: what each says, and every one that is refused, with its name and the remedy. Starts no Spark."""

import json
from collections.abc import Mapping

import pytest

from spark_jobs.messages.options import InvalidOption, read_options

JOURNAL = {"path": "/data"}
BROKERS = {"zookeeper": "127.0.0.1:2181", "subscribe": "orders"}


def test_offsets_by_partition_and_their_defaults() -> None:
    places = {"orders": {"0-0": 1024, "0-1": -2, "1-0": -1}}
    given = read_options(BROKERS | {"startingOffsets": json.dumps(places)}, is_stream=False)
    assert given.cluster is not None
    assert isinstance(given.start, Mapping)
    assert (given.start["orders", "0-0"], given.start["orders", "0-1"]) == (1024, 0)
    assert given.start["orders", "1-0"] > 2**60
    assert (given.end, given.partitions_min, given.fails_on_data_loss) == ("latest", 1, True)


def test_a_stream_starts_at_the_end_and_a_batch_at_the_beginning() -> None:
    assert read_options(BROKERS, is_stream=True).start == "latest"
    assert read_options(JOURNAL, is_stream=False).start == "earliest"
    assert read_options({"paths": '["/a", "/b"]'}, is_stream=False).paths == ("/a", "/b")
    assert read_options({"from": "JOURNAL", "path": "/a"}, is_stream=False).cluster is None


def test_a_cluster_by_its_brokers_with_tls_and_a_login() -> None:
    more = {"tlsCa": "/ca.pem", "user": "spark", "passwordFile": "/secret"}
    cluster = read_options({"brokers": "a:8123, b:8123", "subscribePattern": "ord.*"} | more, is_stream=True).cluster
    assert cluster is not None
    assert (cluster.addresses, cluster.user) == (("a:8123", "b:8123"), "spark")
    assert cluster.tls is not None


def test_topics_are_trimmed_and_each_is_read_once() -> None:
    for to in (JOURNAL, BROKERS):
        given = read_options(to | {"subscribe": " orders , refunds ,orders"}, is_stream=False)
        assert given.selection.topics == frozenset({"orders", "refunds"})


@pytest.mark.parametrize(
    ("options", "is_stream", "told"),
    [
        (JOURNAL | {"subscibe": "orders"}, False, "did you mean subscribe"),
        (JOURNAL | {"xyzzyq": "1"}, False, "it has brokers"),
        (JOURNAL | {"subscribe": " "}, False, '"subscribe" is empty'),
        *(
            (to | {"subscribe": names}, is_stream, '^option "subscribe" is .*: a topic between its commas is blank')
            for to in (JOURNAL, BROKERS)
            for is_stream in (False, True)
            for names in ("orders,", ",", "orders,,refunds", " , orders")
        ),
        (JOURNAL | {"startingTimestamp": "-1"}, False, "whole number from 0"),
        (BROKERS | {"minPartitions": "0"}, False, "whole number from 1"),
        (BROKERS | {"failOnDataLoss": "yes"}, False, "true or false"),
        (BROKERS | {"endingOffsets": "latest"}, True, "a stream has no end"),
        (BROKERS | {"maxOffsetsPerTrigger": "5"}, False, "is for streams"),
        (JOURNAL | {"zookeeper": "127.0.0.1:2181"}, False, "is for from=brokers"),
        (BROKERS | {"from": "brokers", "path": "/data"}, False, "is for from=journal"),
        (JOURNAL | {"startingOffsets": "latest"}, False, "has no messages"),
        (JOURNAL | {"endingOffsets": "earliest"}, False, "has no messages"),
        (JOURNAL | {"startingOffsets": "earliest", "startingTimestamp": "5"}, False, "exclude each other"),
        (JOURNAL | {"startingOffsets": "[]"}, False, "no object of objects"),
        (JOURNAL | {"startingOffsets": '{"orders": {"zero": 1}}'}, False, "no partition"),
        (JOURNAL | {"startingOffsets": '{"orders": {"0-0": -3}}'}, False, "no offset"),
        (JOURNAL | {"startingOffsets": '{"orders": {"0-0": true}}'}, False, "no offset"),
        (JOURNAL | {"startingOffsets": "[" * 100_000}, False, "use earliest, latest"),
        ({}, False, "needs option"),
        ({"from": "kafka"}, False, "use journal or brokers"),
        ({"from": "journal"}, False, 'needs option "path"'),
        ({"from": "brokers", "subscribe": "orders"}, False, "one of them"),
        (BROKERS | {"brokers": "a:8123"}, False, "one of them"),
        ({"brokers": "a:8123", "subscribe": "orders", "root": "/meta"}, False, "named by its ZooKeeper"),
        (BROKERS | {"tls": "false", "tlsCa": "/ca.pem"}, False, "leave one out"),
        (BROKERS | {"user": "spark"}, False, "go together"),
        (BROKERS | {"subscribePattern": ".*"}, False, "exclude each other"),
        ({"zookeeper": "127.0.0.1:2181"}, False, "needs option"),
        (JOURNAL | {"subscribePattern": "("}, False, "subscribePattern"),
    ],
)
def test_what_is_refused(options: dict[str, str], is_stream: bool, told: str) -> None:
    with pytest.raises(InvalidOption, match=told):
        read_options(options, is_stream=is_stream)
