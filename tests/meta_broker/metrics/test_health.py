"""Health of brokers in trouble: a hang, ZooKeeper away, a start that has to wait."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from meta_client.protocol.requests import Put
from tests.fixtures.broker import BrokerProcess, running_broker
from tests.fixtures.frozen_disk import FreezableDisk, freezable_disk, make_busy
from tests.fixtures.scrape import ADMIN, Scrape, admin_url, health, wait_for
from tests.fixtures.tcp_proxy import TcpProxy
from zk.embedded.chroot import Chroot


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FreezableDisk]:
    with freezable_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture
def link(zookeeper: Chroot) -> Iterator[tuple[TcpProxy, str]]:
    """A way to ZooKeeper that can be cut, and the connect string through it."""
    server, _, chroot = zookeeper.connect.partition("/")
    with TcpProxy(int(server.rpartition(":")[2])) as proxy:
        yield proxy, f"{proxy.connect}/{chroot}"


@pytest.mark.parametrize("flush", ["sync", "interval:20"])
def test_a_disk_that_hangs_is_told_and_forgiven(disk: FreezableDisk, flush: str) -> None:
    """In mode sync it holds up the busy loop, otherwise the thread that fsyncs."""
    config = ADMIN.replace("[broker]\n", "[broker]\nhang_seconds_max = 0.5\n")
    broker = BrokerProcess(disk.directory / "broker", None, config=config)
    broker.flush = flush
    try:
        broker.start()
        url = admin_url(broker)
        with broker.client() as client:
            assert health(url, "ready")[0] == health(url, "live")[0] == 200
            make_busy(client)
            disk.freeze()
            client.send(Put("orders", 0, 0, None, None, 9, b"held up"))
            status, told = wait_for(lambda: health(url, "ready"), lambda found: found[0] == 503)
            assert "its disk or event loop hangs: see the log" in told["why_not"] or "has not turned" in str(told)
            status, told = health(url, "live")
            assert status == 200 or "its event loop has not turned for" in told["why_not"][0]
            assert Scrape(url).get("metaq_broker_ready") == 0, "a scrape needs neither the disk nor the loop"
            disk.thaw()
            client.receive()
            wait_for(lambda: health(url, "ready")[0], lambda status: status == 200)
            assert health(url, "live")[0] == 200
    finally:
        disk.thaw()
        broker.kill()


def test_without_zookeeper_it_is_unknown_whether_a_broker_is_registered(
    tmp_path: Path, link: tuple[TcpProxy, str]
) -> None:
    proxy, connect = link
    with running_broker(tmp_path / "broker", connect, config=ADMIN) as broker:
        url = admin_url(broker)
        assert health(url, "ready")[0] == 200
        assert Scrape(url).get("metaq_broker_registered") == 1
        proxy.refuse()
        _, told = wait_for(lambda: health(url, "ready"), lambda found: found[0] == 503)
        assert told["why_not"] == ["ZooKeeper is away, perhaps it is not registered"]
        assert Scrape(url).get("metaq_broker_registered") is None
        assert health(url, "live")[0] == 200
        proxy.heal()
        wait_for(lambda: health(url, "ready")[0], lambda status: status == 200)
        assert Scrape(url).get("metaq_broker_registered") == 1


def test_a_broker_that_waits_for_zookeeper_is_alive_and_not_ready(tmp_path: Path, link: tuple[TcpProxy, str]) -> None:
    proxy, connect = link
    proxy.swallow()
    config = ADMIN.replace("[zookeeper]\n", "[zookeeper]\nconnect_timeout_ms = 60000\n")
    broker = BrokerProcess(tmp_path / "broker", connect, config=config)
    broker.launch()
    try:
        url = wait_for(lambda: _url(broker), bool)
        assert health(url, "live")[0] == 200
        status, told = health(url, "ready")
        assert status == 503
        assert told["why_not"] == ["its journal is not open: it recovers, waits for ZooKeeper, or stops"]
        seen = Scrape(url)
        assert seen.get("metaq_broker_ready") == 0
        of_logs = {"metaq_log_records_total", "metaq_log_records_lost_total"}
        assert seen.families == {"metaq_broker_info", "metaq_broker_ready"} | of_logs, "nobody knows more"
        proxy.heal()
        broker.wait_ready()
        wait_for(lambda: health(url, "ready")[0], lambda status: status == 200)
    finally:
        broker.kill()


def _url(broker: BrokerProcess) -> str:
    with contextlib.suppress(IndexError):
        return admin_url(broker)
    return ""


def test_a_pause_is_no_hang(tmp_path: Path) -> None:
    config = ADMIN.replace("[broker]\n", "[broker]\nhang_seconds_max = 0.2\n")
    with running_broker(tmp_path / "broker", None, config=config) as broker:
        url = admin_url(broker)
        for _ in range(5):
            broker.pause()
            broker.resume()
            assert health(url, "live")[0] == 200
