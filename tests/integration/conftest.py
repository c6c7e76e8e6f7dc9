"""A broker with a topic of eight partitions, clients beside it, and listeners that remember."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from meta_client.client import Client
from meta_client.consumer.batch import Batch, ReceivedMessage
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from zk.corner import Corner

WIDE = """
[topics.wide]
partitions = 8
"""

OpenClient = Callable[[], Client]


@pytest.fixture
def wide_broker(tmp_path: Path, zookeeper: Corner) -> Iterator[BrokerProcess]:
    """Broker 0, with topic `wide` of eight partitions beside the usual ones."""
    with running_broker(tmp_path / "broker", zookeeper.connect, config=CONFIG + WIDE) as process:
        yield process


@pytest.fixture
def open_client(zookeeper: Corner) -> Iterator[OpenClient]:
    """Open any number of clients; closed at the end, those that were closed before included."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(Client(zookeeper.connect, session_timeout_ms=4_000))


@pytest.fixture
def client(open_client: OpenClient) -> Client:
    return open_client()


class Inbox:
    """A listener that keeps everything, and complains if it is called twice at a time for one partition."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[tuple[str, object]] = set()
        self.messages: list[ReceivedMessage] = []
        self.overlaps = 0
        self.before: Callable[[Batch], object] = lambda batch: None  # runs inside; may raise or wait

    def __call__(self, batch: Batch) -> None:
        key = batch.topic, batch.partition
        with self._lock:
            self.overlaps += key in self._busy
            self._busy.add(key)
        try:
            self.before(batch)
            with self._lock:
                self.messages += batch.messages
        finally:
            with self._lock:
                self._busy.discard(key)

    @property
    def payloads(self) -> Counter[bytes]:
        with self._lock:
            return Counter(message.payload for message in self.messages)


def expire(client: Client) -> None:
    """End the client's ZooKeeper session at the server, while it still believes in it."""
    epoch = client.session.epoch
    identity = client.session._client.client_id
    usurper = KazooClient(client.session.connect, client_id=identity)
    usurper.start()
    usurper.stop()
    usurper.close()
    wait_until(lambda: client.session.epoch > epoch)


def wait_until(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
