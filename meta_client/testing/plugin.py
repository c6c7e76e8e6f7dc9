"""pytest's fixtures of metaq, for the tests of services that use it. pytest finds them in every environment that has
metaq installed; nothing is imported or started before a test asks for one.

metaq_broker        a fresh broker for one test: a process, with a part of a real ZooKeeper to itself
metaq_client        a client of it
metaq_shared_broker one broker for the whole run; tests keep apart by the names of their topics and groups
metaq_shared_client a client of that, for one test
metaq_memory        a fresh cluster in memory for one test: no process, no socket, no Java
metaq_memory_client a client of it
metaq_config        the brokers' toml text; define a fixture of this name, of scope session, to have another

Where there is no Java, or no ZooKeeper to start, tests that need a real broker are skipped with the reason.
"""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from meta_client.client import Client
    from meta_client.testing.memory.cluster import MemoryCluster
    from meta_client.testing.real import RealBroker

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def metaq_config() -> str:
    """What the real brokers are configured with: every topic is taken, with two partitions."""
    from meta_client.testing.real import DEFAULT_CONFIG

    return DEFAULT_CONFIG


@pytest.fixture(scope="session")
def metaq_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The connect string of a ZooKeeper of this run, started when it is asked for first."""
    from zk.embedded import EmbeddedZooKeeper
    from zk.errors import EmbeddedZooKeeperMissing, JavaNotFound

    server = EmbeddedZooKeeper(tmp_path_factory.mktemp("metaq-zookeeper"))
    try:
        server.start()
    except (JavaNotFound, EmbeddedZooKeeperMissing) as error:
        pytest.skip(f"a real metaq broker needs ZooKeeper: {error}")
    try:
        yield server.connect
    finally:
        server.stop()


@pytest.fixture(scope="session")
def metaq_shared_broker(
    metaq_zookeeper: str, metaq_config: str, tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[RealBroker]":
    """One broker for the whole run."""
    from meta_client.testing.real import RealBroker

    with RealBroker(tmp_path_factory.mktemp("metaq"), metaq_zookeeper, "metaq-shared", metaq_config) as broker:
        yield broker


@pytest.fixture
def metaq_shared_client(metaq_shared_broker: "RealBroker") -> "Iterator[Client]":
    """A client of the run's broker, for one test."""
    with metaq_shared_broker.client() as client:
        yield client


@pytest.fixture
def metaq_broker(
    metaq_zookeeper: str, metaq_config: str, tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[RealBroker]":
    """A fresh broker for one test, which may kill() it and start() it again."""
    from meta_client.testing.real import RealBroker

    directory = tmp_path_factory.mktemp("metaq")
    with RealBroker(directory, metaq_zookeeper, f"metaq-{next(_numbers)}", metaq_config) as broker:
        yield broker


@pytest.fixture
def metaq_client(metaq_broker: "RealBroker") -> "Iterator[Client]":
    """A client of the test's own broker."""
    with metaq_broker.client() as client:
        yield client


@pytest.fixture
def metaq_memory() -> "Iterator[MemoryCluster]":
    """A fresh cluster in memory for one test."""
    from meta_client.testing.memory.cluster import MemoryCluster

    with MemoryCluster() as cluster:
        yield cluster


@pytest.fixture
def metaq_memory_client(metaq_memory: "MemoryCluster") -> "Iterator[Client]":
    """A client of the cluster in memory."""
    with metaq_memory.client() as client:
        yield client
