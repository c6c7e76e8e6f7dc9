"""Clusters of both kinds that users' tests have, a real broker and one in memory: one for a whole file, same topics."""

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from meta_broker.testing.memory.cluster import MemoryCluster
from meta_broker.testing.real import DEFAULT_CONFIG, RealBroker
from meta_client import aio
from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.net.opaques import next_opaque
from meta_client.producer.partition_queues import BatchingConfig
from meta_client.producer.producer import Producer
from meta_client.protocol.requests import TopicCommand, TopicVerb
from meta_client.protocol.responses import Result
from tests.fixtures.expiry import expire_session

ANSWER_S = 60.0
OWN_TOPICS = 60
TOPICS = {"single": 1, "dynamic-*": 2, "notices": 1} | {f"t-{number}": 2 for number in range(OWN_TOPICS)}
CONFIG = DEFAULT_CONFIG.partition("[topics.")[0] + "".join(
    f'[topics."{topic}"]\npartitions = {count}\n' for topic, count in TOPICS.items()
)

CONSUMER = ConsumerConfig(backoff_s_max=0.1, commit_period_s=0.1)
_numbers = itertools.count()


class RealCluster(RealBroker):
    """A real broker with those methods of a MemoryCluster that it lacks."""

    def start(self, broker_id: int = 0) -> None:
        super().start()

    def kill(self, broker_id: int = 0) -> None:
        super().kill()

    def aio_client(self, **options: Any) -> aio.Client:
        return aio.Client(self.connect, session_timeout_ms=60_000, **options)

    def client(self, **options: Any) -> Client:
        return super().client(session_timeout_ms=60_000, **options)  # it must outlive a machine that stalls

    def close_partition(self, topic: str, partition: str, *, is_closed: bool = True) -> None:
        verb = TopicVerb.CLOSE if is_closed else TopicVerb.OPEN
        with self.client() as client:
            (url,) = client.topology.read_masters().values()
            command = TopicCommand(verb, topic, (("partitions", partition.partition("-")[2]),), next_opaque())
            answer = client.connections.get(url, ANSWER_S).submit(command).wait(ANSWER_S)
        assert isinstance(answer, Result)
        assert answer.is_success, answer.text

    def expire(self, client: Client | aio.Client) -> None:
        expire_session(client.session)

    def advance(self, seconds: float) -> None:
        """Do nothing: its time passes by itself."""


Cluster = MemoryCluster | RealCluster


@pytest.fixture(scope="module", params=[pytest.param("real", marks=pytest.mark.servers), "memory"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all tests of a file: each has topics, groups and branches of its own."""
    if request.param == "memory":
        with MemoryCluster(TOPICS) as memory:
            yield memory
    else:
        directory: Path = tmp_path_factory.mktemp("contract")
        server = request.getfixturevalue("zookeeper_server")
        with RealCluster(directory, server.connect, f"contract-{next(_numbers)}", CONFIG) as real:
            yield real


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with cluster.client(batching=BatchingConfig(linger_s=0.001)) as it:
        yield it


@pytest.fixture
def topic() -> str:
    return f"t-{next(_numbers) % OWN_TOPICS}"


@pytest.fixture
def producer(client: Client, topic: str) -> Producer:
    return client.producer(qualifier=topic)


def wait_until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def read_all(client: Client, topic: str, group: str = "reader") -> list[ReceivedMessage]:
    """Return what a new group gets until it has caught up."""
    found: list[ReceivedMessage] = []
    with client.consumer(f"{group}-{time.time_ns()}", config=CONSUMER) as consumer:
        consumer.subscribe(topic, lambda batch: found.extend(batch.messages))
        consumer.start()
        wait_until(consumer.is_caught_up)
    return sorted(found, key=lambda message: (message.partition, message.offset))


def payloads(client: Client, topic: str) -> list[bytes]:
    return sorted(message.payload for message in read_all(client, topic))
