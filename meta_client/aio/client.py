"""What tasks make first: a client of one cluster. The twin of meta_client/client.py."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Collection, Iterator
from types import TracebackType
from typing import Final, Self, cast

from meta_client.aio.bridge import in_thread, run, wait
from meta_client.aio.connections import Connections
from meta_client.aio.consumer import Consumer
from meta_client.aio.producer import Producer
from meta_client.aio.sender import Sender
from meta_client.aio.topology import Topology
from meta_client.aio.workers import Tasks
from meta_client.allowed_codecs import AllowedCodecs
from meta_client.batching.lanes import BatchingConfig
from meta_client.client import BATCHING, COMPRESSION_BYTES_MIN, CONFIG, compression_of
from meta_client.consumer.batch import ReceivedMessage
from meta_client.consumer.browsing import browse
from meta_client.consumer.config import ConsumerConfig, group_of
from meta_client.consumer.consumer import Consumer as ConsumerRules
from meta_client.consumer.offsets import OffsetStore
from meta_client.errors import ClientClosed, ConsumerMisuse
from meta_client.identity import default_qualifier
from meta_client.placing import Partitioner
from meta_client.single_sends import SingleSends
from zk.forks import made_here
from zk.nodes import Node
from zk.session import CONNECT_TIMEOUT_MS, SESSION_TIMEOUT_MS, SessionEvent, ZooKeeperSession

BROWSED: Final = 256  # messages that browse takes at a time


class Client:
    """One ZooKeeper session, shared by everything made here, and so are the connections; one event loop's. There is one
    connection per broker for what is sent, and another one for what consumers read, as meta_client.Client has them.

    *zookeeper* is a connect string, `host:port,...` with an optional /chroot; *root* is the cluster's in it. Entering
    `async with` connects, or raises ZooKeeperError and leaves nothing open; leaving it closes. ZooKeeper is asked about
    brokers and groups, never for a message: that is done by threads of its own.
    """

    def __init__(
        self,
        zookeeper: str,
        root: str = "/meta",
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        batching: BatchingConfig = BATCHING,
        default_topic: str | None = None,
    ) -> None:
        self.session = ZooKeeperSession(
            zookeeper, root, session_timeout_ms, connect_timeout_ms=connect_timeout_ms, enqueue=self._on_session_event
        )
        self.topology = Topology(self.session, default_topic)
        self.connections, self.consumer_connections = Connections(), Connections()
        self._batching = batching
        made_here(self)
        self._allowed = AllowedCodecs(self.connections)
        self._sends = SingleSends(self.topology, self.connections, lambda seconds: wait(asyncio.sleep(seconds)))
        self._sender: Sender | None = None  # once it is open
        self._opened: contextlib.AsyncExitStack | None = None
        self._consumers: tuple[ConsumerRules, ...] = ()  # swapped whole: kazoo's thread walks it

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as opened:
            await in_thread(self.session.start)
            opened.push_async_callback(in_thread, self.session.close)
            self.topology.start()
            opened.push_async_callback(in_thread, self.topology.close)
            opened.push_async_callback(self.connections.close)
            opened.push_async_callback(self.consumer_connections.close)
            self._sender = sender = Sender(self.topology, self.connections, self._batching)
            opened.push_async_callback(sender.close)
            self._opened = opened.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def producer(
        self,
        qualifier: str | None = None,
        *,
        compression: str | None = None,
        compression_bytes_min: int = COMPRESSION_BYTES_MIN,
        partitioner: Partitioner | None = None,
    ) -> Producer:
        """A producer; cheap, one per task for transactions. meta_client.Client.producer says what the arguments mean.

        Raises ClientClosed outside of `async with`, LocalProtocolError for a codec that is unknown or not installed.
        """
        self._check_open()
        assert self._sender is not None
        wanted = compression_of(compression, compression_bytes_min)
        return Producer(
            self.topology,
            self.connections,
            qualifier or default_qualifier(),
            self._sender,
            wanted,
            self._allowed,
            self._sends,
            partitioner,
        )

    def consumer(
        self,
        group: str | None,
        offsets: OffsetStore | None = None,
        *,
        broadcast: str | None = None,
        config: ConsumerConfig = CONFIG,
    ) -> Consumer:
        """A consumer in *group*, to subscribe and start. Offsets are kept in ZooKeeper unless *offsets* is given,
        which a thread asks. config.runners is how many listeners are awaited at a time. What *broadcast* does, and a
        *group* that is None, meta_client.Client.consumer says.

        Raises InvalidGroup, ConsumerMisuse, zk's InvalidName, ClientClosed outside of `async with`.
        """
        self._check_open()
        named = group_of(group, broadcast)
        rules = ConsumerRules(self.session, self.consumer_connections, named, offsets, config, self._forget, Tasks())
        self._consumers = (*self._consumers, rules)
        return Consumer(rules)

    async def browse(self, topic: str) -> AsyncIterator[ReceivedMessage]:
        """Every message that *topic* holds now, a partition after the other, without a group and without a trace: for
        `async for`. meta_client.Client.browse says where it ends, and what it raises."""
        self._check_open()
        session = cast(ZooKeeperSession, _WaitedSession(self.session))  # all of it that is asked for
        messages = browse(session, self.consumer_connections, topic, lambda seconds: wait(asyncio.sleep(seconds)))
        while chunk := await run(_take, messages):
            for message in chunk:
                yield message

    def _forget(self, consumer: ConsumerRules) -> None:
        self._consumers = tuple(other for other in self._consumers if other is not consumer)

    def _check_open(self) -> None:
        if self._opened is None:
            raise ClientClosed("the client is not open: use it inside `async with`")

    async def close(self) -> None:
        """Close every consumer, send what is gathered, within ten seconds, then close all connections. Idempotent; not
        for a listener. Tasks that wait for anything of the client's get ClientClosed, or the error of what they do."""
        if any(consumer.is_listening() for consumer in self._consumers):
            raise ConsumerMisuse("a listener can't close its client, it would wait for itself")
        opened, self._opened = self._opened, None
        if opened is not None:
            async with opened:
                closing = (in_thread(consumer.close) for consumer in self._consumers)
                for failure in await asyncio.gather(*closing, return_exceptions=True):
                    if failure is not None:
                        raise failure

    def _on_session_event(self, event: SessionEvent) -> None:
        """On kazoo's thread: hand it on, nothing else."""
        self.topology.on_session_event(event)
        for consumer in self._consumers:
            consumer.on_session_event(event)


class _WaitedSession:
    """ZooKeeper, for rules that read it in a task: threads ask."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self.paths = session.paths

    def children(self, path: str) -> list[str]:
        return wait(in_thread(self._session.children, path))

    def read_many(self, paths: Collection[str]) -> dict[str, Node]:
        return wait(in_thread(self._session.read_many, paths))


def _take(messages: Iterator[ReceivedMessage]) -> list[ReceivedMessage]:
    return list(itertools.islice(messages, BROWSED))
