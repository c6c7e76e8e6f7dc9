"""Clusters of both kinds that users' tests have, a real broker and one in memory: one for a whole file, same topics."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meta_broker.testing.memory.cluster import MemoryCluster
from meta_broker.testing.real import DEFAULT_CONFIG, RealBroker
from meta_client import aio
from meta_client.client import Client
from meta_client.net.opaques import next_opaque
from meta_client.protocol.requests import TopicCommand, TopicVerb
from meta_client.protocol.responses import Result
from tests.fixtures.expiry import expire_session

ANSWER_S = 60.0
OWN_TOPICS = 60
TOPICS = {"single": 1, "dynamic-*": 2, "notices": 1} | {f"t-{number}": 2 for number in range(OWN_TOPICS)}
CONFIG = DEFAULT_CONFIG.partition("[topics.")[0] + "".join(
    f'[topics."{topic}"]\npartitions = {count}\n' for topic, count in TOPICS.items()
)

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
