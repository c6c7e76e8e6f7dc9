"""A client on the test's chroot of ZooKeeper, and scripted brokers that are really registered there."""

import contextlib
from collections.abc import Iterator
from typing import Protocol

import pytest

from meta_client.client import Client
from tests.meta_client.peer import Handler, Peer, listening, ok
from zk.brokers.registration import BrokerRegistration, TopicRegistration
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import BrokerName


class StartBroker(Protocol):
    def __call__(
        self, broker_id: int, topics: dict[str, int], handler: Handler = ok, slave_id: int | None = None
    ) -> "ScriptedBroker": ...


class ScriptedBroker:
    """A peer with its registration."""

    def __init__(self, peer: Peer, registration: BrokerRegistration) -> None:
        self.peer = peer
        self.registration = registration


@pytest.fixture
def client(zookeeper: Chroot) -> Iterator[Client]:
    with Client(zookeeper.connect) as it:
        yield it


@pytest.fixture
def start_broker(zookeeper: Chroot) -> Iterator[StartBroker]:
    """Start scripted brokers, each with a ZooKeeper session of its own; topics are given with their partitions."""
    with contextlib.ExitStack() as stack:

        def start(
            broker_id: int, topics: dict[str, int], handler: Handler = ok, slave_id: int | None = None
        ) -> ScriptedBroker:
            peer = stack.enter_context(listening(handler))
            session = stack.enter_context(ZooKeeperSession(zookeeper.connect))
            registration = BrokerRegistration(
                session,
                BrokerName(broker_id, slave_id),
                BrokerUrl(peer.url.host, peer.url.port),
                topics={topic: TopicRegistration(count) for topic, count in topics.items()},
            )
            registration.register()
            return ScriptedBroker(peer, registration)

        yield start
