"""Two masters, each with a slave, one group over all: every process is restarted in turn under load."""

import functools
import threading
import time
from collections.abc import Collection
from pathlib import Path

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.errors import SendFailed
from tests.fixtures.broker import CONFIG
from tests.fixtures.replicas import Replicas, wait_until
from tests.integration.conftest import Inbox, OpenClient
from zk.brokers.replication import read_replication
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

TOPIC = "invoices"  # two partitions on each broker
REPLICATED = (
    CONFIG.replace("session_timeout_ms = 4000", "session_timeout_ms = 2000")
    + """
[replication]
mode = "sync"
timeout_ms = 4000
silence_ms = 800
lag_ms = 1000
heartbeat_ms = 100
"""
)


class Source:
    """Sends numbered messages to one partition, one after the other; each until it is acknowledged."""

    def __init__(self, client: Client, partition: Partition, stop: threading.Event) -> None:
        self.acknowledged = 0
        self._producer = client.producer()
        self._partition = partition
        self._stop = stop
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            payload = f"{self._partition} {self.acknowledged}".encode()
            while True:
                try:
                    self._producer.send(TOPIC, payload, partition=self._partition)
                    break
                except SendFailed:
                    time.sleep(0.02)  # the broker is away, or its slave is
            self.acknowledged += 1
            time.sleep(0.002)


def in_sync(running: Replicas, client: Client) -> bool:
    node = read_replication(client.session, running.master.broker_id).node
    return node is not None and node.master == running.master.url and 1 in node.in_sync


def first_seen(inbox: Inbox, partition: Partition) -> list[int]:
    """The numbers of a partition's messages, each where it was delivered first."""
    numbers = [int(message.payload.split()[1]) for message in list(inbox.messages) if message.partition == partition]
    return list(dict.fromkeys(numbers))


def has_arrived(inbox: Inbox, partition: Partition, source: Source) -> bool:
    return len(first_seen(inbox, partition)) >= source.acknowledged


def wait_all_move(sources: Collection[Source]) -> None:
    """Until every partition takes messages again."""
    before = [source.acknowledged for source in sources]
    wait_until(
        lambda: all(source.acknowledged > count for source, count in zip(sources, before, strict=True)),
        "every partition takes messages again",
    )


def test_everything_arrives_in_its_order(tmp_path: Path, zookeeper: Chroot, open_client: OpenClient) -> None:
    inbox, stop = Inbox(), threading.Event()
    with (
        Replicas(tmp_path / "a", zookeeper.connect, REPLICATED, broker_id=0) as one,
        Replicas(tmp_path / "b", zookeeper.connect, REPLICATED, broker_id=1) as other,
    ):
        client = open_client()
        wait_until(lambda: in_sync(one, client) and in_sync(other, client), "both slaves are in sync")
        config = ConsumerConfig(backoff_s_max=0.1, commit_period_s=0.1, fetch_wait_s=0.5)
        partitions = [Partition(broker_id, number) for broker_id in (0, 1) for number in (0, 1)]
        consumers = [open_client().consumer("rolling", config=config) for _ in range(2)]
        for consumer in consumers:
            consumer.subscribe(TOPIC, inbox)
            consumer.start()
        sources = {partition: Source(client, partition, stop) for partition in partitions}
        for running in (one, other):
            for process in (running.slaves[0], running.master):
                assert process.stop() == 0, process.log
                process.start()
                wait_until(functools.partial(in_sync, running, client), "its slave is in sync again")
                wait_all_move(sources.values())
        stop.set()
        for source in sources.values():
            source.join()
        for partition, source in sources.items():
            wait_until(functools.partial(has_arrived, inbox, partition, source), f"everything of {partition} arrives")
            assert first_seen(inbox, partition) == list(range(source.acknowledged)), partition
        assert inbox.overlaps == 0
        for consumer in consumers:
            consumer.close()
