"""A planned restart of a slave, one of two masters' in mode sync, while threads send: each message is stored once."""

import threading
import time
from pathlib import Path

from meta_client.client import Client
from meta_client.protocol.errors import MetaError
from tests.fixtures.replicas import Replicas, wait_until
from tests.integration.conftest import OpenClient
from tests.integration.test_rolling_restart import REPLICATED, TOPIC, in_sync
from zk.embedded.chroot import Chroot

SENDERS = 4
SEND_S = 60.0  # time of a send: far more than a restart takes


class Sender(threading.Thread):
    """Sends numbered messages to any partition, one after the other; every second sender in batches."""

    def __init__(self, client: Client, number: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[bytes] = []
        self.failures: list[MetaError] = []
        self._producer = client.producer()
        self._number = number
        self._stopping = stop

    def run(self) -> None:
        while not self._stopping.is_set():
            payload = f"{self._number} {len(self.acknowledged) + len(self.failures)}".encode()
            try:
                if self._number % 2:
                    self._producer.send_async(TOPIC, payload).result(SEND_S)
                else:
                    self._producer.send(TOPIC, payload, timeout_s=SEND_S)
                self.acknowledged.append(payload)
            except MetaError as error:
                self.failures.append(error)
            time.sleep(0.01)


def state(running: Replicas) -> str:
    """The state of writes, as the master reports it."""
    with running.master.client() as wire:
        for words in map(str.split, wire.stats("replication")):
            if words[:1] == ["master"]:
                return dict(zip(words[1::2], words[2::2], strict=True))["state"]
    raise AssertionError("the master has no replication")


def test_no_send_fails(tmp_path: Path, zookeeper: Chroot, open_client: OpenClient) -> None:
    stop = threading.Event()
    with (
        Replicas(tmp_path / "a", zookeeper.connect, REPLICATED, broker_id=0) as one,
        Replicas(tmp_path / "b", zookeeper.connect, REPLICATED, broker_id=1) as other,
    ):
        client = open_client()
        wait_until(lambda: in_sync(one, client) and in_sync(other, client), "both slaves are in sync")
        senders = [Sender(client, number, stop) for number in range(SENDERS)]
        for sender in senders:
            sender.start()
        wait_until(lambda: all(len(sender.acknowledged) > 20 for sender in senders), "all of them send")
        slave = one.slaves[0]
        assert slave.stop() == 0, slave.log
        wait_until(lambda: state(one) == "refusing", "its master knows")
        late = [Sender(client, SENDERS + number, stop) for number in range(SENDERS)]  # nothing of theirs waits there
        for sender in late:
            sender.start()
        wait_until(lambda: all(len(it.acknowledged) + len(it.failures) > 20 for it in late), "these send meanwhile")
        senders += late
        before = [len(sender.acknowledged) for sender in senders]
        slave.start()
        wait_until(lambda: state(one) == "sync", "it is in sync again")
        wait_until(
            lambda: all(len(sender.acknowledged) > count + 20 for sender, count in zip(senders, before, strict=True)),
            "all of them send again",
        )
        stop.set()
        for sender in senders:
            sender.join(SEND_S)
            assert not sender.is_alive()
        assert [failure for sender in senders for failure in sender.failures] == []
        acknowledged = sorted(payload for sender in senders for payload in sender.acknowledged)
        assert sorted(message.payload for message in client.browse(TOPIC)) == acknowledged
