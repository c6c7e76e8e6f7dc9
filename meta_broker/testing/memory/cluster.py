"""A cluster for unit tests: brokers in memory, and their clients."""

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from meta_broker.testing.memory.broker import MemoryBroker
from meta_broker.testing.memory.link import MemoryLink
from meta_broker.testing.memory.session import MemorySession
from meta_broker.testing.memory.tree import Tree
from meta_client.client import Client
from meta_client.errors import NotConnected
from meta_client.net.connections import Connections
from zk.brokers.registration import BrokerRegistration, TopicRegistration
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import BrokerName

TOPICS: Mapping[str, int] = {"*": 2}


class MemoryCluster:
    """Brokers in memory, by default one that accepts every topic, with two partitions. Any thread.

    Use as a context manager; its clients are closed with it. *topics*: names, or patterns with `*`, and the number of
    partitions each broker has of them; *brokers*: their ids.
    """

    def __init__(self, topics: Mapping[str, int] = TOPICS, brokers: Iterable[int] = (0,)) -> None:
        self.tree = Tree()
        self._offset_s = 0.0
        self._lock = threading.Lock()  # guards _links
        self._links: list[MemoryLink] = []
        self._members = {broker_id: _Member(self, broker_id, dict(topics)) for broker_id in brokers}
        self._opened = contextlib.ExitStack()
        for broker_id in self._members:
            self.start(broker_id)

    def client(self, **options: Any) -> Client:
        """Return a new client of these brokers, closed with the cluster at the latest.

        *options* are `batching` and `default_topic`, as for Client.
        """
        client = Client.over(lambda enqueue: MemorySession(self.tree, enqueue), Connections(self._open), **options)
        return self._opened.enter_context(client)

    def kill(self, broker_id: int = 0) -> None:
        """Simulate a crash of the broker: connections break and its registration disappears.

        Branches that are not prepared are gone when it starts again; everything acknowledged is kept.
        """
        member = self._members[broker_id]
        member.is_up = False
        for link in [link for link in self._links if link.url == member.url]:
            link.break_()
        member.session.close()
        member.broker.restart()

    def start(self, broker_id: int = 0) -> None:
        """Start a killed broker."""
        self._members[broker_id].start()

    def close_partition(self, topic: str, partition: str, *, is_closed: bool = True) -> None:
        """Close or open a partition, as `metaq topics close` and `open` do. *partition* as in `0-1`."""
        broker_id, _, number = partition.partition("-")
        self._members[int(broker_id)].broker.close_partition(topic, int(number), is_closed=is_closed)

    def expire(self, client: Client) -> None:
        """Expire a client's ZooKeeper session, as a long silence does; a new one begins at once."""
        assert isinstance(client.session, MemorySession)
        client.session.expire()

    def advance(self, seconds: float) -> None:
        """Advance the brokers' time: transactions expire, fetches end their wait."""
        self._offset_s += seconds

    def now(self) -> float:
        """Return the brokers' time, in Unix seconds."""
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
    """A broker and its registration."""

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
