"""A broker with a topic of eight partitions, clients beside it, and listeners that remember."""

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meta_client.client import Client
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from zk.embedded.chroot import Chroot, chroot
from zk.embedded.server import EmbeddedZooKeeper

WIDE = """
[topics.wide]
partitions = 8
"""

OpenClient = Callable[..., Client]


@pytest.fixture
def wide_broker(tmp_path: Path, zookeeper: Chroot) -> Iterator[BrokerProcess]:
    """Broker 0, with topic `wide` of eight partitions beside the usual ones."""
    with running_broker(tmp_path / "broker", zookeeper.connect, config=CONFIG + WIDE) as process:
        yield process


@pytest.fixture
def open_client(zookeeper: Chroot) -> Iterator[OpenClient]:
    """Open any number of clients; closed at the end, those that were closed before included."""
    with contextlib.ExitStack() as stack:
        yield lambda session_timeout_ms=30_000: stack.enter_context(
            Client(zookeeper.connect, session_timeout_ms=session_timeout_ms)
        )


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


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


TOPICS = 80
ONE_PARTITION = "".join(
    f"\n[topics.one-{number}{more}]\npartitions = 1\n" for number in range(TOPICS) for more in ("", "-b")
)
_topic_numbers = itertools.cycle(range(TOPICS))  # more than any module has tests
_shared_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def shared(zookeeper_server: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chroot]:
    """The chroot of ZooKeeper of a broker that the tests of a module share; each takes a `topic` of its own."""
    with (
        chroot(zookeeper_server.connect, f"shared-{next(_shared_numbers)}") as part,
        running_broker(tmp_path_factory.mktemp("shared") / "broker", part.connect, config=CONFIG + ONE_PARTITION),
    ):
        yield part


@pytest.fixture
def topic(shared: Chroot) -> str:
    """A topic of one partition that nobody has used: what is sent to it is in order, from offset 0 on."""
    del shared
    return f"one-{next(_topic_numbers)}"
