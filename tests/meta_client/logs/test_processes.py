"""Logs of real processes: text and JSON, bounded under a flood, with connection, branch and rebalance."""

import json
import os
import re
from pathlib import Path
from typing import Any

from journal.records.xid import XaKey, Xid
from meta_client.logs.limit import BURST
from meta_client.protocol.requests import Put, TransactionVerb
from tests.fixtures.broker import BrokerProcess, running_broker
from tests.fixtures.forked import start_metaq
from tests.fixtures.scrape import wait_for
from zk.embedded.chroot import Chroot

V = TransactionVerb


class JsonBroker(BrokerProcess):
    """A broker that logs JSON."""

    def words(self) -> list[str]:
        return [*super().words(), "--log-format", "json"]


def entries(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_a_brokers_log_is_json_and_names_connection_and_branch(tmp_path: Path) -> None:
    broker = JsonBroker(tmp_path / "broker", None).start()
    try:
        xid = XaKey(Xid.of("order-1", "b"), "uq")
        with broker.client() as client:
            conn = ":".join(map(str, client.socket.getsockname()))
            client.verb(V.BEGIN, xid, timeout_seconds=1)
            client.put("orders", 0, b"message", xid)
            client.socket.sendall(b"no such verb \xff\n\r\x1b[31m level=error\r\n")
            found = wait_for(lambda: entries(broker.log), lambda it: any("timed out" in one["event"] for one in it))
        (closed,) = [one for one in found if one["event"] == "connection closed"]
        assert closed["conn"] == conn
        (late,) = [one for one in found if one["event"] == "branch timed out"]
        assert late["xid"] == str(xid)
        assert broker.stop() == 0
        lines = [line for line in broker.log.splitlines() if not line.startswith("broker 0 serves")]
        assert all(line.startswith('{"timestamp": "2') for line in lines), "nothing stands beside the objects"
    finally:
        broker.kill()


def test_a_flood_is_a_few_kilobytes_of_log(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", None) as broker:
        before, count = len(broker.log), 3_000
        with broker.client() as client:
            for number in range(count):
                xid = XaKey(Xid.of(f"order-{number}", "b"), "uq")
                client.verb(V.BEGIN, xid, timeout_seconds=1)
                client.send(Put("orders", 0, 0, None, xid, number, b"message"))
                client.receive()
            wait_for(client.stats, lambda told: f"tx_rollback {count}" in told)
        assert broker.stop() == 0
    lines = [line for line in broker.log[before:].splitlines() if "branch timed out" in line]
    omitted = [
        int(number) for number in re.findall(r"(?:omitted_before=|left out, too many alike count=)(\d+)", broker.log)
    ]
    assert BURST <= len(lines) < BURST + 60
    assert len(lines) + sum(omitted) == count, "each is there, or counted"


def test_lines_of_a_rebalance_say_which(tmp_path: Path, zookeeper: Chroot) -> None:
    log = tmp_path / "consume.log"
    with running_broker(tmp_path / "broker", zookeeper.connect) as broker:
        words = ["consume", "orders", "--zk", zookeeper.connect, "--group", "billing", "--follow"]
        with log.open("wb") as err, Path(os.devnull).open("r+b") as nothing:
            process = start_metaq(
                [*words, "--log-level", "info", "--log-format", "json"], stdin=nothing, stdout=nothing, stderr=err
            )
        try:
            is_done = lambda it: any(one["event"] == "rebalanced" for one in it)  # noqa: E731
            found = wait_for(lambda: entries(log.read_text()), is_done)
        finally:
            process.kill()
            process.wait()
        assert broker.is_running
    (done,) = [one for one in found if one["event"] == "rebalanced"]
    assert re.fullmatch(r"billing_.+/1", done["rebalance"])
    assert done["owned"] == 4
