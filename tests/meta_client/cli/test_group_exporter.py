"""`metaq groups exporter`: what is known of groups, with members and without, and what is not."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from tests.fixtures.broker import BrokerProcess
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
