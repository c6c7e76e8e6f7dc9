"""`metaq brokers`: what is made of a master's text and of ZooKeeper's node, and the command with a real broker."""

import json
import time

from meta_client.operations.broker_rows import parse_report, rows_of
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.forked import run_metaq
from zk.brokers.cluster import BrokerEntry, read_broker
from zk.brokers.replication import ReplicationNode, write_replication
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession
from zk.tree.broker_url import BrokerUrl

TEXT = """STATS\r
master mode sync epoch 3 in_sync 1 in_sync_min 1 without_slaves refuse state sync high_watermark 500 end 900\r
slave 1 peer 10.0.0.1:5 in_sync true reason - flushed 500 lag_bytes 400 lag_ms 1250 serves true\r
slave 2 peer - in_sync false reason silent flushed 0 lag_bytes 900 lag_ms 60000 serves false\r
slave x peer - odd\r
END\r
"""
MASTER, SLAVE = BrokerUrl("h", 1), BrokerUrl("h", 2)
NODE = ReplicationNode(epoch=3, mode="sync", in_sync=(1,), in_sync_min=1, master="meta://h:1")


def told(rows: list[dict[str, object]]) -> list[tuple[object, ...]]:
    return [(row["role"], row["url"], row["state"], row["in_sync"], row["lag_bytes"], row["lag_s"]) for row in rows]


def test_a_master_and_its_slaves() -> None:
    rows = list(rows_of(7, BrokerEntry(MASTER, {1: SLAVE}), parse_report(TEXT), NODE))
    assert told(rows) == [
        ("master", "meta://h:1", "sync", None, None, None),
        ("slave 1", "meta://h:2", "follows", True, 400, 1.25),
        ("slave 2", None, "silent", False, 900, 60.0),
    ]
    assert (rows[0]["broker"], rows[0]["epoch"], rows[0]["in_sync_set"]) == (7, 3, "1")


def test_without_a_master_zookeeper_tells_who_may_be_promoted() -> None:
    rows = list(rows_of(7, BrokerEntry(None, {2: SLAVE}), None, NODE))
    assert told(rows) == [
        ("master", None, "away", None, None, None),
        ("slave 1", None, "not-connected", True, None, None),
        ("slave 2", "meta://h:2", "not-connected", False, None, None),
    ]
    assert [row["in_sync_set"] for row in rows] == ["1", None, None]


def test_any_text_is_taken() -> None:
    for text in ("", "no master", "master", "master mode", "slave 99999999999999999999999 x y", TEXT[:80]):
        assert next(rows_of(0, BrokerEntry(MASTER, {}), parse_report(text), None))["role"] == "master"


def test_the_command(broker: BrokerProcess, zookeeper: Chroot) -> None:
    done = run_metaq("brokers", "--zk", zookeeper.connect, "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["broker"], row["role"], row["url"], row["state"]) for row in rows] == [
        (0, "master", broker.url, "async")
    ]


def test_a_master_that_is_gone_is_named(broker: BrokerProcess, zookeeper: Chroot) -> None:
    broker.kill()
    with ZooKeeperSession(zookeeper.connect) as session:
        while BrokerEntry() != read_broker(session, 0):  # until the broker's session has ended
            time.sleep(0.01)
        write_replication(session, 7, NODE, None)
    done = run_metaq("brokers", "--zk", zookeeper.connect, "--json")
    assert done.returncode == 1
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["broker"], row["role"], row["state"], row["in_sync_set"]) for row in rows] == [
        (0, "master", "away", None),
        (7, "master", "away", "1"),
        (7, "slave 1", "not-connected", None),
    ]
    assert "error: broker 7 has no master, last at meta://h:1: start it, or promote a slave (1)" in done.stderr
    assert "error: broker 0 has no master: start it" in done.stderr
