"""`metaq topics`, `groups` and `txn list`: what an operator sees."""

import json
import subprocess
from typing import Any

import pytest

from journal.records.xid import Xid
from meta_client.client import Client
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.forked import run_metaq
from tests.fixtures.replicas import wait_until
from zk.embedded.chroot import Chroot


def metaq(zookeeper: Chroot, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = run_metaq(*words, "--zk", zookeeper.connect)
    assert done.returncode == status, done.stderr
    return done


def rows(zookeeper: Chroot, *words: str, status: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in metaq(zookeeper, *words, "--json", status=status).stdout.splitlines()]


def test_topics_are_listed_with_their_brokers(zookeeper: Chroot, broker: BrokerProcess) -> None:
    listed = {row["topic"]: row for row in rows(zookeeper, "topics")}
    assert listed["orders"] == {
        "topic": "orders",
        "broker": "0-m",
        "partitions": 4,
        "publish": True,
        "subscribe": True,
    }
    table = metaq(zookeeper, "topics").stdout
    assert "partitions" in table.splitlines()[0]
    with Client(zookeeper.connect) as client:
        journals = f"{client.session.paths.root}/metaq/journals"
        wait_until(lambda: bool(client.session.children(journals)), "its journal is on record, which outlives it")
    assert broker.stop() == 0
    assert {row["broker"] for row in rows(zookeeper, "topics", status=1)} <= {None}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["topics"], "no topics: start a broker that offers one\n"),
        (["groups"], "ZooKeeper knows no consumer group\n"),
    ],
)
def test_nothing_is_said_to_people_and_not_to_scripts(zookeeper: Chroot, words: list[str], said: str) -> None:
    assert metaq(zookeeper, *words).stdout == said
    assert rows(zookeeper, *words) == []


@pytest.mark.parametrize("words", [["txn", "list"], ["txn", "ledger"], ["txn", "doctor"]])
def test_without_any_broker_nothing_is_known_of_branches(zookeeper: Chroot, words: list[str]) -> None:
    """The wrong ZooKeeper, or one that was emptied, proves nothing."""
    done = metaq(zookeeper, *words, status=2)
    assert done.stdout == ""
    assert "no broker is registered in ZooKeeper at" in done.stderr


def test_a_silent_broker_leaves_the_ends_out(zookeeper: Chroot, broker: BrokerProcess) -> None:
    with Client(zookeeper.connect) as client, client.consumer("audit") as consumer:
        consumer.subscribe("orders", lambda batch: None)
        consumer.start()
        listed = rows(zookeeper, "groups", "describe", "audit")
        assert [(row["partition"], row["end"], row["offset"]) for row in listed] == [
            (f"0-{number}", 0, None) for number in range(4)
        ]
        assert {row["owner"] for row in listed} == {consumer.consumer_id}
        broker.kill()
        done = metaq(zookeeper, "groups", "describe", "audit", status=1)
        assert done.stderr.count("the ends of broker 0's partitions are missing") == 1
        assert "0-3" in done.stdout


def test_what_is_in_doubt(zookeeper: Chroot, broker: BrokerProcess) -> None:
    xid = Xid.of("order-1", "metaq")
    with Client(zookeeper.connect) as client:
        producer = client.producer(qualifier="shop")
        producer.tpc_begin(xid, topics=("orders",))
        producer.send("orders", b"row")
        producer.tpc_prepare()
        (row,) = rows(zookeeper, "txn", "list")
        assert (row["xid"], row["broker"], row["qualifier"]) == (str(xid), 0, "shop")
        assert row["key"] == "XID:1:6f726465722d31:6d65746171:shop"
        assert row["sql"].endswith("gid ^@ '1_b3JkZXItMQ==_'")
        assert rows(zookeeper, "txn", "list", "--qualifier", "other") == []
        assert str(xid) in metaq(zookeeper, "txn", "list").stdout
        broker.kill()
        done = metaq(zookeeper, "txn", "list", status=1)
        assert "the list is incomplete: RECOVER on broker 0: no connection" in done.stderr
        assert done.stdout == "nothing is in doubt on the brokers that answered\n"
        broker.start()
        assert len(rows(zookeeper, "txn", "list")) == 1
        producer.tpc_rollback()
        assert rows(zookeeper, "txn", "list") == []
