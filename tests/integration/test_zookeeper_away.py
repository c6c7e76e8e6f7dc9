"""ZooKeeper dies and comes back under a running client: sending goes on, delivery waits, nothing is lost."""

import time
from pathlib import Path

import pytest

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from tests.fixtures.broker import running_broker
from tests.integration.conftest import Inbox, wait_until
from zk.embedded.server import EmbeddedZooKeeper
from zk.errors import ZooKeeperUnavailable
from zk.session.session import CONNECT_TIMEOUT_MS


@pytest.mark.parametrize(
    ("session_ms", "away_s"), [(4_000, 1.0), (2_000, 3.5)], ids=["session survives", "session expires"]
)
def test_zookeeper_is_killed_and_restarted(tmp_path: Path, session_ms: int, away_s: float) -> None:
    inbox = Inbox()
    with (
        EmbeddedZooKeeper(tmp_path / "zookeeper") as server,
        running_broker(tmp_path / "broker", server.connect),
        Client(server.connect, session_timeout_ms=session_ms) as client,
        client.consumer("group", config=ConsumerConfig(backoff_s_max=0.2)) as consumer,
    ):
        consumer.subscribe("orders", inbox)
        consumer.start()
        producer = client.producer()
        producer.send("orders", b"before")
        wait_until(lambda: len(inbox.messages) == 1)
        server.kill()
        wait_until(lambda: not client.session.is_connected)
        for number in range(20):
            producer.send("orders", b"during-%d" % number)
        time.sleep(away_s)
        assert len(inbox.messages) == 1
        server.restart()
        wait_until(lambda: len(inbox.payloads) == 21)
        wait_until(lambda: len(consumer.owned()) == 4)
        producer.send("orders", b"after")
        wait_until(lambda: len(inbox.payloads) == 22)


def test_no_zookeeper_is_said_in_bounded_time() -> None:
    started = time.monotonic()
    with pytest.raises(ZooKeeperUnavailable, match=r"no ZooKeeper at 127\.0\.0\.1:1 within .*metaq zookeeper"):
        Client("127.0.0.1:1", connect_timeout_ms=500)
    assert time.monotonic() - started < CONNECT_TIMEOUT_MS / 1000  # which it would be otherwise
