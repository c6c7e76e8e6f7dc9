"""Answers of commands about brokers that refuse or are silent, and nodes in ZooKeeper that can't be read."""

import json

import pytest

from meta_client.client import Client
from meta_client.consumer.offsets import OffsetEntry, ZooKeeperOffsetStore
from meta_client.protocol.messages import encode_frame
from meta_client.protocol.requests import (
    BranchCommand,
    BranchVerb,
    Get,
    OffsetQuery,
    Offsets,
    Request,
    Stats,
    TopicCommand,
    TransactionCommand,
)
from tests.meta_client.cli.conftest import Metaq
from tests.meta_client.conftest import StartBroker
from tests.meta_client.peer import Answer, Answers, answering
from zk.tree.nodes import Partition

A = Partition(0, 0)
KEY = "XID:1:696e:646f756274:q"


def store(client: Client, offset: int) -> ZooKeeperOffsetStore:
    offsets = ZooKeeperOffsetStore(client.session, "billing")
    offsets.commit([OffsetEntry("orders", A, offset)])
    return offsets


def test_ends_that_a_broker_refuses_are_missing(metaq: Metaq, client: Client, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, answering({Offsets: lambda request: (503, b"no")}, "offsets"))
    status, listed, said = metaq("offsets", "orders", "--json")
    assert (status, json.loads(listed)["end"]) == (1, None)
    assert "error: some brokers did not answer, or are not up: their partitions have no end above" in said.lower()
    offsets = store(client, 40)
    status, listed, said = metaq("groups", "reset", "billing", "--to", "latest", "--yes")
    assert (status, listed) == (2, "")
    assert "the brokers of orders/0-0 do not answer: start them, or name other partitions" in said
    assert offsets.load("orders", A) == 40


def test_what_retention_deletes_during_a_reset_is_not_shifted_to(
    metaq: Metaq, client: Client, start_broker: StartBroker
) -> None:
    def get(request: Request) -> Answer:
        assert isinstance(request, Get)
        return (200, encode_frame(7, 0, b"x")) if request.offset == 200 else (301, b"200")

    answers: Answers = {
        Offsets: lambda request: (200, b"0 300 300"),
        OffsetQuery: lambda request: (200, b"100"),
        Get: get,
    }
    start_broker(0, {"orders": 1}, answering(answers, "offsets"))
    offsets = store(client, 200)
    status, _, said = metaq("groups", "reset", "billing", "--to", "-1", "--yes")
    assert (status, said) == (2, "error: orders/0-0: no message before 200 could be found\n")
    assert offsets.load("orders", A) == 200


def test_a_group_that_can_not_be_reset(metaq: Metaq, client: Client, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, answering({Offsets: lambda request: (200, b"0 300 300")}, "offsets"))
    status, _, said = metaq("groups", "reset", "billing", "--to", "latest", "--yes")
    assert (status, "group billing has read nothing yet: name topics behind it, or correct its name" in said) == (
        2,
        True,
    )
    offsets = store(client, 40)
    client.session.create("/meta/consumers/billing/ids/billing_java", b"orders", ephemeral=True)
    status, _, said = metaq("groups", "reset", "billing", "--to", "latest", "--yes", "--members", "wait:0.5")
    assert (status, said.count("waiting up to 0.5 s: group billing has members alive")) == (2, 1)
    assert said.endswith("or say --members wait:SECONDS or --members force; nothing was changed\n")
    client.session.delete("/meta/consumers/billing/ids/billing_java")
    client.session.write_many({"/meta/metaq/epochs/billing/orders/0-0": b"unreadable"})
    status, _, said = metaq("groups", "reset", "billing", "--to", "latest", "--yes")
    assert (status, "/meta/metaq/epochs/billing/orders/0-0" in said) == (2, True)
    assert said.endswith("nothing was changed: see `metaq doctor zookeeper`\n")
    assert offsets.load("orders", A) == 40


@pytest.mark.parametrize("state", ["full", "sync"])
def test_a_master_that_takes_no_writes_is_a_fault_without_zookeeper_too(
    metaq: Metaq, start_broker: StartBroker, state: str
) -> None:
    def stats(request: Request) -> Answer:
        assert isinstance(request, Stats)
        report = f"master mode sync epoch 3 in_sync 1 state {state}" if request.item == "replication" else "broker_id 0"
        return 200, f"STATS\r\n{report}\r\nEND\r\n".encode()

    url = start_broker(0, {"orders": 1}, answering({Stats: stats})).peer.url
    status, listed, _ = metaq("brokers", "--broker", f"{url.host}:{url.port}", "--json")
    assert (status, json.loads(listed)["state"]) == (int(state == "full"), state)


def test_topics_that_can_not_be_read_are_a_fault(
    metaq: Metaq, client: Client, start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    start_broker(0, {"orders": 1})
    assert metaq("topics")[0] == 0
    client.session.write_many({"/meta/brokers/topics-sub/orders/7-m": b"many"})
    status, listed, _ = metaq("topics", "--json")
    assert (status, json.loads(listed)["topic"]) == (1, "orders")
    assert "/meta/brokers/topics-sub/orders/7-m" in caplog.text


def test_a_broker_whose_address_can_not_be_read_is_told_nothing_and_named(
    metaq: Metaq, client: Client, start_broker: StartBroker
) -> None:
    state = b"partitions=4 publish=true subscribe=true stat=false"
    start_broker(0, {"orders": 4}, answering({TopicCommand: lambda request: (200, state)}, "topic"))
    client.session.write_many({"/meta/brokers/ids/7/master": b"nonsense"})
    status, listed, said = metaq("topics", "close", "orders", "0", "--json")
    assert (status, json.loads(listed)["broker"]) == (1, "0")
    assert said.startswith("error: broker 7: it has no address in ZooKeeper that can be read: start it, or name its")


def test_a_finding_is_forgotten_by_its_key(metaq: Metaq, start_broker: StartBroker) -> None:
    finding = b'{"who":"ann","why":"half of it","evidence":"rows","time_ms":7}'
    report = b'{"key":"%s","state":"mixed","messages":1,"bytes":9,"finding":%s}' % (KEY.encode(), finding)
    forgotten: list[str] = []

    def transaction(request: Request) -> Answer:
        assert isinstance(request, TransactionCommand)
        forgotten.extend([str(request.key)] if request.key is not None else [])
        return 200, b""

    def branch(request: Request) -> Answer:
        assert isinstance(request, BranchCommand)
        return 200, b"[%b]" % report if request.verb is BranchVerb.LEDGER else report

    answers: Answers = {TransactionCommand: transaction, BranchCommand: branch}
    start_broker(0, {"orders": 1}, answering(answers, "branch", "ledger"))
    status, shown, _ = metaq("txn", "show", KEY, "--broker", "0")
    assert (status, "found by ann: half of it (rows)" in shown) == (0, True)
    assert metaq("txn", "forget", KEY, "--yes")[:2] == (0, "done=1\n")
    assert forgotten == [KEY]


def test_a_branch_on_two_brokers_must_be_named_with_one(metaq: Metaq, start_broker: StartBroker) -> None:
    for broker_id in (0, 1):
        start_broker(broker_id, {"orders": 1}, answering({TransactionCommand: lambda request: (200, KEY.encode())}))
    status, _, said = metaq("txn", "show", KEY)
    assert status == 2
    assert f"2 branches are called {KEY}: name one by its key and --broker, of {KEY} on broker 0, {KEY} on" in said


def test_a_port_for_a_lag_needs_a_group(metaq: Metaq) -> None:
    status, _, said = metaq("consume", "orders", "--admin-port", "0")
    assert (status, "--admin-port goes with --group: only a member has a lag" in said) == (2, True)
