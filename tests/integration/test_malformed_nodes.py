"""Nodes in ZooKeeper that hold rubbish: each costs itself; groups rebalance, producers send, commands list the rest."""

import json
import logging
from typing import Any

import pytest
from kazoo.security import make_digest_acl

from meta_client.client import Client
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.forked import run_metaq
from tests.integration.conftest import Inbox, OpenClient, wait_until
from tests.integration.test_rebalance import ALL, join
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

BAD_EPOCH, BAD_OFFSET, DENIED_OWNER = (Partition(0, number) for number in (1, 2, 3))
NODES = {
    "/meta/brokers/ids/7/master": b"http://h:1",
    "/meta/brokers/ids/8/slave1": b"\xff",
    "/meta/brokers/topics-pub/wide/7-m": b"{",
    "/meta/brokers/topics-sub/wide/7-m": b'{"numParts":-1}',
    "/meta/brokers/topics-sub/wide/odd": b"odd",
    "/meta/consumers/group/ids/group_x": b"\xff\xfe",
    f"/meta/consumers/group/offsets/wide/{BAD_OFFSET}": b"far",
    f"/meta/metaq/epochs/group/wide/{BAD_EPOCH}": b"soon",
    "/meta/metaq/brokers/0/odd": b"odd",
}
DENIED = [f"/meta/consumers/group/owners/wide/{DENIED_OWNER}", "/meta/consumers/secret"]


def break_nodes(client: Client) -> None:
    for path, data in NODES.items():
        client.session.write(path, data)
    client.session.ensure_parents(DENIED)
    for path in DENIED:
        client.session._client.create(path, b"", acl=[make_digest_acl("stranger", "secret", all=True)])


def rows(zookeeper: Chroot, *words: str, status: int) -> list[dict[str, Any]]:
    done = run_metaq(*words, "--json", "--zk", zookeeper.connect)
    assert done.returncode == status, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("is_running", [False, True], ids=["before", "while they run"])
def test_each_costs_itself(
    wide_broker: BrokerProcess,
    open_client: OpenClient,
    zookeeper: Chroot,
    caplog: pytest.LogCaptureFixture,
    is_running: bool,
) -> None:
    caplog.set_level(logging.WARNING)
    inbox, client, other = Inbox(), open_client(), open_client()
    if not is_running:
        break_nodes(client)
    one = join(client, inbox)
    if is_running:
        wait_until(lambda: len(one.owned()) == len(ALL))
        producer = client.producer()
        one.close()
        break_nodes(client)
        one = join(client, inbox)
    two = join(other, inbox)
    kept = sorted(key for key in ALL if key[1] not in (BAD_EPOCH, BAD_OFFSET, DENIED_OWNER))

    def is_balanced() -> bool:
        return sorted([*one.owned(), *two.owned()]) == kept

    wait_until(is_balanced)
    producer = other.producer()
    for _, partition in kept:
        producer.send("wide", str(partition).encode(), partition=partition)
    wait_until(lambda: len(inbox.messages) == len(kept))
    assert inbox.overlaps == 0
    named = {path for client in (client, other) for path in client.session.malformed.found}
    assert named >= NODES.keys() - {"/meta/brokers/topics-sub/wide/odd", "/meta/metaq/brokers/0/odd"} - {
        f"/meta/consumers/group/offsets/wide/{BAD_OFFSET}",
    }
    texts = [record.getMessage() for record in caplog.records]
    for path in named:
        skipped = [text for text in texts if text.startswith("node skipped: ") and path in text]
        assert 1 <= len(skipped) <= 2, path  # once a client, not once a rebalance

    listed = rows(zookeeper, "groups", "describe", "group", status=1)
    states = {row["partition"]: row["state"] for row in listed}
    assert states.pop(str(BAD_OFFSET)) == "malformed"
    assert len(states) == len(ALL) - 1
    assert [row["group"] for row in rows(zookeeper, "groups", status=1)] == ["group", "secret"]
    assert {row["broker"] for row in rows(zookeeper, "topics", status=1) if row["topic"] == "wide"} == {"0-m"}
    masters = {row["broker"]: row["state"] for row in rows(zookeeper, "brokers", status=1) if row["role"] == "master"}
    assert masters == {0: "async", 7: "away", 8: "away"}
    (row,) = rows(zookeeper, "topics", "show", "wide", status=1)  # and broker 7 is named, which can't be asked
    assert row["broker"] == "0"
    done = run_metaq("brokers", "--zk", zookeeper.connect)
    assert "node skipped: ZooKeeper node /meta/brokers/ids/7/master holds b'http://h:1'" in done.stderr
    one.close()
    two.close()
    assert all(client.session.delete(path) for path in DENIED)  # the fixture can't look below them
