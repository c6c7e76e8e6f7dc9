"""pytest fixtures for services that use metaq. pytest finds them in every environment with metaq installed; nothing is
imported or started before a test requests one.

metaq_broker        a fresh broker for one test: a process, with its own chroot of a real ZooKeeper
metaq_client        a client of it
metaq_shared_broker one broker for the whole run; tests keep apart by the names of their topics and groups
metaq_shared_client a client of that, for one test
metaq_memory        a fresh cluster in memory for one test: no process, no disk, no Java
metaq_memory_client a client of it
metaq_config        the brokers' toml text; override it with a fixture of this name, of scope session

Without Java, or a ZooKeeper to start, tests that need a real broker are skipped with the reason.
"""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from meta_broker.testing.memory.cluster import MemoryCluster
    from meta_broker.testing.real import RealBroker
    from meta_client.client import Client

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def metaq_config() -> str:
    """Configuration of the real brokers: every topic is accepted, with two partitions."""
    from meta_broker.testing.real import DEFAULT_CONFIG

    return DEFAULT_CONFIG


@pytest.fixture(scope="session")
def metaq_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Connect string of this run's ZooKeeper, started on first use."""
    from zk.embedded.server import EmbeddedZooKeeper
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
    from meta_broker.testing.real import RealBroker

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
    from meta_broker.testing.real import RealBroker

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
    from meta_broker.testing.memory.cluster import MemoryCluster

    with MemoryCluster() as cluster:
        yield cluster


@pytest.fixture
def metaq_memory_client(metaq_memory: "MemoryCluster") -> "Iterator[Client]":
    """A client of the cluster in memory."""
    with metaq_memory.client() as client:
        yield client
