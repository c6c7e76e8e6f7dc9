"""A consumer's watchdog against a real broker and a real ZooKeeper."""

import threading

import pytest

from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.messages.batch import Batch
from tests.fixtures.broker import BrokerProcess
from tests.integration.conftest import Inbox, OpenClient, wait_until
from zk.groups.membership import ConsumerMembership
from zk.tree.nodes import Partition

ALL = [("wide", Partition(0, number)) for number in range(8)]
WATCHFUL = ConsumerConfig(
    backoff_s_max=0.1, commit_period_s=0.2, fetch_wait_s=0.2, fetch_timeout_s=2.0, watchdog_s=0.8, runners=2
)


def test_what_stands_still_is_named(
    wide_broker: BrokerProcess, open_client: OpenClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A listener that does not return, and one that raises each time; what is well is not named."""
    inbox, sender = Inbox(), open_client()
    release = threading.Event()

    def hold(batch: Batch) -> None:
        if batch.partition == Partition(0, 2):
            assert release.wait(60)
        if batch.partition == Partition(0, 5) and not release.is_set():
            raise ValueError("no such customer")

    inbox.before = hold
    consumer = open_client().consumer("group", config=WATCHFUL)
    consumer.subscribe("wide", inbox)
    consumer.start()
    for number in (2, 4, 5):
        sender.producer().send("wide", b"%d" % number, partition=Partition(0, number))
    wait_until(lambda: len(consumer.findings()) == 2)
    found = {finding.key[1].number: finding.text for finding in consumer.findings()}
    assert "its listener has not returned" in found[2]
    assert "its listener raises ValueError('no such customer') at offset 0" in found[5]
    assert caplog.text.count("watchdog: ") == 2
    assert sorted(consumer.owned()) == ALL
    release.set()
    wait_until(lambda: consumer.findings() == ())
    wait_until(lambda: sorted(inbox.payloads) == [b"2", b"4", b"5"])
    del wide_broker


def test_an_owner_node_that_was_deleted_is_made_again(
    wide_broker: BrokerProcess, open_client: OpenClient, caplog: pytest.LogCaptureFixture
) -> None:
    client = open_client()
    consumer = client.consumer("group", config=WATCHFUL)
    consumer.subscribe("wide", Inbox())
    consumer.start()
    path = "/meta/consumers/group/owners/wide/0-3"
    assert client.session.delete(path)
    wait_until(lambda: client.session.read(path) is not None)
    wait_until(lambda: sorted(consumer.owned()) == ALL)
    assert "its owner node is gone" in caplog.text
    assert "watchdog" in [reason for record in consumer.rebalances() for reason in record.reasons]
    del wide_broker


def test_a_share_that_nobody_claims_or_lets_go_is_named(
    wide_broker: BrokerProcess, open_client: OpenClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A member that claims nothing, and an owner that is no member: genuine ones can do both."""
    stuck, client = open_client(), open_client(session_timeout_ms=2_000)
    ConsumerMembership(stuck.session, "group", "group_aaa").join_group(frozenset({"wide"}), print)
    assert stuck.session.create("/meta/consumers/group/owners/wide/0-7", b"group_ghost", ephemeral=True)
    consumer = client.consumer("group", config=WATCHFUL)
    consumer.subscribe("wide", Inbox())
    consumer.start()
    # The session's timeout of 2 s and two more: a dead member's partitions may be without an owner for so long.
    wait_until(lambda: len(consumer.findings()) == 5)
    found = {finding.key[1].number: finding.text for finding in consumer.findings()}
    for number in range(4):
        assert "nobody owns it: look why group_aaa does not, or restart that one" in found[number]
    assert "group_ghost holds this consumer's share and is no member of the group any more" in found[7]
    wait_until(lambda: caplog.text.count("watchdog: ") == 5)
    assert [partition.number for _, partition in consumer.owned()] == [4, 5, 6]
    stuck.close()
    wait_until(lambda: sorted(consumer.owned()) == ALL)
    wait_until(lambda: consumer.findings() == ())
    del wide_broker
