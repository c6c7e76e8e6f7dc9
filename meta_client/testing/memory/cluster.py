"""What a unit test holds: brokers in memory, and clients of them."""

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from meta_client.client import Client
from meta_client.connections import Connections
from meta_client.errors import NotConnected
from meta_client.testing.memory.broker import MemoryBroker
from meta_client.testing.memory.link import MemoryLink
from meta_client.testing.memory.session import MemorySession
from meta_client.testing.memory.tree import Tree
from zk.broker_url import BrokerUrl
from zk.nodes import BrokerName
from zk.registration import BrokerRegistration, TopicRegistration

TOPICS: Mapping[str, int] = {"*": 2}


class MemoryCluster:
    """Brokers in memory, by default one that takes every topic, with two partitions. Use as a context manager; its
    clients are closed with it. Any thread.

    *topics*: names, or patterns with `*`, and how many partitions each broker has of them; *brokers*: their ids.
    """

    def __init__(self, topics: Mapping[str, int] = TOPICS, brokers: Iterable[int] = (0,)) -> None:
        self.tree = Tree()
        self._offset_s = 0.0
        self._lock = threading.Lock()  # guards the next
        self._links: list[MemoryLink] = []
        self._members = {broker_id: _Member(self, broker_id, dict(topics)) for broker_id in brokers}
        self._opened = contextlib.ExitStack()
        for broker_id in self._members:
            self.start(broker_id)

    def client(self, **options: Any) -> Client:
        """A new client of these brokers, closed when the cluster is, if not before. *options* are `batching` and
        `default_topic`, as Client has them."""
        client = Client.over(lambda enqueue: MemorySession(self.tree, enqueue), Connections(self._open), **options)
        return self._opened.enter_context(client)

    def kill(self, broker_id: int = 0) -> None:
        """As if the broker had crashed: connections break, ZooKeeper shows it no more. Branches that are not prepared
        are gone when it starts again; everything acknowledged is there."""
        member = self._members[broker_id]
        member.is_up = False
        for link in [link for link in self._links if link.url == member.url]:
            link.break_()
        member.session.close()
        member.broker.restart()

    def start(self, broker_id: int = 0) -> None:
        """Start a broker that was killed."""
        self._members[broker_id].start()

    def close_partition(self, topic: str, partition: str, *, is_closed: bool = True) -> None:
        """As an operator's `metaq topics close`, or open. *partition* as in `0-1`."""
        broker_id, _, number = partition.partition("-")
        self._members[int(broker_id)].broker.close_partition(topic, int(number), is_closed=is_closed)

    def expire(self, client: Client) -> None:
        """Let a client's ZooKeeper session end, as it does after too long a silence; a new one begins at once."""
        assert isinstance(client.session, MemorySession)
        client.session.expire()

    def advance(self, seconds: float) -> None:
        """Let time pass for the brokers: transactions run out of it, fetches have waited long enough."""
        self._offset_s += seconds

    def now(self) -> float:
        """The brokers' time, in Unix seconds."""
        return time.time() + self._offset_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def _open(self, url: BrokerUrl, timeout_s: float) -> MemoryLink:
        del timeout_s
        member = next((member for member in self._members.values() if member.url == url and member.is_up), None)
        if member is None:
            raise NotConnected(f"no connection to {url}: is the broker up and its port reachable?")
        link = MemoryLink(url, member.broker, self._forget)
        with self._lock:
            self._links.append(link)
        return link

    def _forget(self, link: MemoryLink) -> None:
        with self._lock:
            self._links.remove(link)


class _Member:
    """One broker and its registration."""

    def __init__(self, cluster: MemoryCluster, broker_id: int, topics: dict[str, int]) -> None:
        self.url = BrokerUrl("memory", broker_id + 1)
        self.is_up = False
        self.session = MemorySession(cluster.tree)
        self.broker = MemoryBroker(broker_id, topics, cluster.now, self._used)
        self._cluster = cluster
        self._name = BrokerName(broker_id)
        self._topics = {topic: TopicRegistration(count) for topic, count in topics.items()}
        self._registration: BrokerRegistration

    def start(self) -> None:
        assert not self.is_up, f"broker {self._name} runs already"
        self.session = MemorySession(self._cluster.tree)
        self.session.start()
        self._registration = BrokerRegistration(self.session, self._name, self.url, topics=self._topics)
        self._registration.register()
        self.is_up = True

    def _used(self, topic: str, partitions: int) -> None:
        self._topics[topic] = TopicRegistration(partitions)
        self._registration.set_topic(topic, self._topics[topic])
