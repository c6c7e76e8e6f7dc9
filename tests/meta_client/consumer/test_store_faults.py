"""Offset stores of users, with a real broker, that raise what is no Exception."""

import asyncio
import logging
import threading
from collections.abc import Sequence

import pytest

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.offsets import OffsetEntry
from tests.fixtures.broker import BrokerProcess
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

PATIENCE_S = 60
FAULTS: list[type[BaseException]] = [asyncio.CancelledError, SystemExit, GeneratorExit]


class FaultyStore:
    """Offsets in memory. The first loads and commits raise *faults*, each one once."""

    def __init__(self, faults: list[type[BaseException]]) -> None:
        self.offsets: dict[tuple[str, Partition], int] = {}
        self.faults = {"load": faults.copy(), "commit": faults.copy()}

    def load(self, topic: str, partition: Partition) -> int | None:
        if self.faults["load"]:
            raise self.faults["load"].pop(0)
        return self.offsets.get((topic, partition))

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        if self.faults["commit"]:
            raise self.faults["commit"].pop(0)
        self.offsets |= {(entry.topic, entry.partition): entry.offset for entry in entries}


@pytest.mark.parametrize("is_assigned", [False, True])
def test_whatever_a_store_raises_it_is_called_again(
    zookeeper: Chroot, broker: BrokerProcess, is_assigned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore(FAULTS)
    config = ConsumerConfig(commit_period_s=0.05, backoff_s_max=0.05)
    with caplog.at_level(logging.WARNING, "meta_client"), Client(zookeeper.connect) as client:
        consumer = client.consumer("reader", store, config=config)
        consumer.subscribe("orders")
        if is_assigned:
            consumer.assign(("orders", "0-0"))
        starting = threading.Thread(target=consumer.start, daemon=True)
        starting.start()
        starting.join(PATIENCE_S)
        assert not starting.is_alive(), "start() waits for a thread that has ended"
        client.producer().send("orders", b"one", partition="0-0")
        (message,) = consumer.fetch(timeout_s=PATIENCE_S)
        while store.faults["commit"]:
            assert not consumer.fetch(timeout_s=0.05)
        consumer.close()
    assert store.offsets["orders", Partition(0, 0)] == message.next_offset
    for error in ("CancelledError()", "sys.exit(None)", "GeneratorExit()"):
        assert f"offsets not committed, trying again later error=ListenerExited('{error}')" in caplog.text
