"""Names of clients, by which brokers tell a repetition from a new message."""

import importlib
from types import SimpleNamespace

import pytest

from meta_client.client import Client
from meta_client.net import identity
from tests.fixtures.broker import BrokerProcess
from zk.embedded.chroot import Chroot


def test_containers_that_start_together(
    zookeeper: Chroot, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one host name, each with process 1, in one millisecond: a broker took one's messages for the other's."""
    now_ns = 1_800_000_000_000_000_000
    for body in (b"one", b"other"):
        importlib.reload(identity)  # as a new process has it
        monkeypatch.setattr(identity, "time", SimpleNamespace(time_ns=lambda: now_ns))
        monkeypatch.setattr(identity, "os", SimpleNamespace(getpid=lambda: 1))
        with Client(zookeeper.connect) as client:
            producer = client.producer()
            producer.send("orders", body, partition="0-0")
            producer.send_async("orders", body, partition="0-1").result(60)
            with producer.transaction():
                producer.send("orders", body, partition="0-2")
    with Client(zookeeper.connect) as client:
        stored = [(str(message.partition), message.payload) for message in client.browse("orders")]
    assert stored == [(partition, body) for partition in ("0-0", "0-1", "0-2") for body in (b"one", b"other")]
