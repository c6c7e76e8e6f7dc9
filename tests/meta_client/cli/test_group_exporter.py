"""`metaq groups exporter`: what is known of groups, with members and without, and what is not."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.operations.group_watch import GroupWatch
from meta_client.operations.positions import ANSWER_TIMEOUT_S
from tests.fixtures.broker import CONFIG as BROKER
from tests.fixtures.broker import BrokerProcess, running_broker
from tests.fixtures.forked import run_metaq, start_metaq
from tests.fixtures.scrape import SERVED, Scrape, health, wait_for
from zk.embedded.chroot import Chroot
from zk.embedded.server import EmbeddedZooKeeper

GROUP = {"consumergroup": "billing"}
ORDERS = GROUP | {"topic": "orders"}
MEMBERS = "metaq_consumergroup_members"
LAG = "metaq_consumergroup_stored_lag_"
FRAME = 25  # bytes of a message of five
CONFIG = ConsumerConfig(commit_period_s=0.05)
ADMIN_ONLY = make_acl("world", "anyone", admin=True)


@pytest.fixture
def wide_broker(tmp_path: Path, zookeeper: Chroot) -> Iterator[BrokerProcess]:
    """With a topic of eight partitions."""
    config = f"{BROKER}\n[topics.wide]\npartitions = 8\n"
    with running_broker(tmp_path / "broker", zookeeper.connect, config=config) as process:
        yield process


@contextlib.contextmanager
def exporting(log: Path, connect: str, *words: str) -> Iterator[str]:
    """Run an exporter that reads ten times a second; yields its URL."""
    words = ("groups", "exporter", "--zk", connect, "--admin-port", "0", "--interval", "0.1", *words)
    with log.open("wb") as out, Path(os.devnull).open("rb") as nothing:
        process = start_metaq(words, stdin=nothing, stdout=out, stderr=out)
    try:
        yield wait_for(lambda: SERVED.search(log.read_text()), bool)[1]
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(60)
    assert status == 128 + signal.SIGTERM, log.read_text()


def consume_one(client: Client, broker: BrokerProcess) -> None:
    """Have the group consume a message, and end."""
    with broker.client() as sender, client.consumer("billing", config=CONFIG) as consumer:
        sender.put("orders", 0, b"12345")
        consumer.subscribe("orders")
        consumer.start()
        assert consumer.fetch(1, timeout_s=60)


def test_a_group_is_known_after_its_last_member(tmp_path: Path, zookeeper: Chroot, broker: BrokerProcess) -> None:
    with exporting(tmp_path / "log", zookeeper.connect) as url, Client(zookeeper.connect) as client:
        wait_for(lambda: health(url, "ready")[0], lambda status: status == 200)
        with client.consumer("billing", config=CONFIG) as consumer:
            consumer.subscribe("orders")
            consumer.start()
            wait_for(lambda: Scrape(url).get(MEMBERS, **GROUP), lambda count: count == 1)
            unowned = "metaq_consumergroup_partitions_unowned"
            wait_for(lambda: Scrape(url).get(unowned, **ORDERS), lambda count: count == 0)
        wait_for(lambda: Scrape(url).get(MEMBERS, **GROUP), lambda count: count == 0)
        consume_one(client, broker)
        wait_for(lambda: Scrape(url).get(f"{LAG}bytes", **ORDERS), lambda lag: lag == 0)
        with broker.client() as sender:
            sender.put("orders", 0, b"12345")
            sender.put("orders", 1, b"12345")
        wait_for(lambda: Scrape(url).get(f"{LAG}bytes", **ORDERS), lambda lag: lag == 2 * FRAME)
        assert Scrape(url).get(f"{LAG}messages", **ORDERS) == 2
        seconds = Scrape(url).get(f"{LAG}seconds", **ORDERS)
        assert seconds is not None
        wait_for(lambda: Scrape(url).get(f"{LAG}seconds", **ORDERS), lambda now: now > seconds)


def test_of_a_broker_that_is_away_nothing_is_known(tmp_path: Path, zookeeper: Chroot, broker: BrokerProcess) -> None:
    unknown = "metaq_consumergroup_partitions_unknown"
    with exporting(tmp_path / "log", zookeeper.connect) as url, Client(zookeeper.connect) as client:
        consume_one(client, broker)
        wait_for(lambda: Scrape(url).get(f"{LAG}bytes", **ORDERS), lambda lag: lag == 0)
        broker.kill()
        wait_for(lambda: Scrape(url).get(unknown, **ORDERS), bool)
        assert [Scrape(url).get(f"{LAG}{unit}", **ORDERS) for unit in ("bytes", "messages", "seconds")] == [None] * 3
        status, said = health(url, "ready")
        assert status == 503
        assert "broker 0" in str(said["why_not"])
        broker.start()
        wait_for(lambda: Scrape(url).get(f"{LAG}bytes", **ORDERS), lambda lag: lag == 0)


def test_without_zookeeper_nothing_is_known(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path / "zookeeper") as server, Client(server.connect) as client:
        broker = BrokerProcess(tmp_path / "broker", server.connect)
        try:
            consume_one(client, broker.start())
            with exporting(tmp_path / "log", server.connect) as url:
                wait_for(lambda: Scrape(url).get(MEMBERS, **GROUP), lambda count: count == 0)
                server.kill()
                wait_for(lambda: Scrape(url).get(MEMBERS, **GROUP), lambda count: count is None)
                assert health(url, "ready")[0] == 503
                server.restart()
                wait_for(lambda: Scrape(url).get(MEMBERS, **GROUP), lambda count: count == 0)
        finally:
            broker.kill()


def test_a_group_that_it_may_not_read_is_unknown(tmp_path: Path, zookeeper: Chroot, broker: BrokerProcess) -> None:
    ready = "metaq_consumergroup_exporter_ready"
    with exporting(tmp_path / "log", zookeeper.connect) as url, Client(zookeeper.connect) as client:
        consume_one(client, broker)
        wait_for(lambda: Scrape(url).get(MEMBERS, **GROUP), lambda count: count == 0)
        wait_for(lambda: Scrape(url).get(f"{LAG}bytes", **ORDERS), lambda lag: lag == 0)
        for folder in ("ids", "offsets"):
            path = f"/meta/consumers/billing/{folder}"
            client.session._client.set_acls(path, [make_digest_acl("other", "secret", all=True), ADMIN_ONLY])
            wait_for(lambda: Scrape(url).get(MEMBERS, **GROUP), lambda count: count is None)
            assert Scrape(url).get(f"{LAG}bytes", **ORDERS) is None
            assert Scrape(url).get(ready) == 0
            status, said = health(url, "ready")
            assert (status, f"ZooKeeper refused {path}" in str(said["why_not"])) == (503, True)
            client.session._client.set_acls(path, OPEN_ACL_UNSAFE)
            wait_for(lambda: Scrape(url).get(ready), lambda is_ready: is_ready == 1)
        assert Scrape(url).get(MEMBERS, **GROUP) == 0


def test_a_broker_that_hangs_takes_one_time_limit_for_all_its_partitions(
    zookeeper: Chroot, wide_broker: BrokerProcess
) -> None:
    with Client(zookeeper.connect) as client:
        client.session.write_many({f"/meta/consumers/billing/offsets/wide/0-{it}": b"0-0" for it in range(8)})
        watch = GroupWatch(client, (), 60)
        watch.read()
        assert watch.ready().why_not == ()
        wide_broker.pause()
        began = time.monotonic()
        watch.read()
        assert time.monotonic() - began < 3 * ANSWER_TIMEOUT_S
        wide_broker.resume()
        values = {(sample.family.name, *sample.labels): sample.value for sample in watch.samples()}
        assert values["metaq_consumergroup_partitions_unknown", "billing", "wide"] == 8
        assert "gave no answer within 5 s" in watch.ready().why_not[0]


def test_an_offset_beyond_the_end_is_read(zookeeper: Chroot, broker: BrokerProcess) -> None:
    """A group that nobody needs any more is counted, and every answer was got."""
    with Client(zookeeper.connect) as client:
        client.session.write_many({"/meta/consumers/former/offsets/orders/0-0": b"0-99999"})
        watch = GroupWatch(client, (), 60)
        watch.read()
        values = {(sample.family.name, *sample.labels): sample.value for sample in watch.samples()}
    assert values["metaq_consumergroup_partitions_unknown", "former", "orders"] == 1
    assert values["metaq_consumergroup_exporter_ready",] == 1
    assert watch.ready().why_not == ()


def test_one_group_alone(tmp_path: Path, zookeeper: Chroot, broker: BrokerProcess) -> None:
    with exporting(tmp_path / "log", zookeeper.connect, "--group", "shipping") as url:
        with Client(zookeeper.connect) as client:
            consume_one(client, broker)
        wait_for(lambda: Scrape(url).get(MEMBERS, consumergroup="shipping"), lambda count: count == 0)
        assert Scrape(url).get(MEMBERS, **GROUP) is None


def test_its_port_is_named() -> None:
    done = run_metaq("groups", "exporter")
    assert done.returncode == 2
    assert "Missing option '--admin-port'" in done.stderr


@pytest.mark.parametrize("interval", ["0", "-1", "nan"])
def test_it_does_not_look_without_a_pause(interval: str) -> None:
    done = run_metaq("groups", "exporter", "--admin-port", "0", "--interval", interval)
    assert done.returncode == 2, done.stderr
