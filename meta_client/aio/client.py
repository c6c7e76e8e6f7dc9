"""Client of one cluster for tasks, from which producers and consumers are made. Twin of meta_client/client.py."""

import asyncio
import contextlib
import functools
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, Final, Self, cast

from meta_client.aio.bridge.bridge import in_thread, open_in_thread, run, wait
from meta_client.aio.consumer import Consumer
from meta_client.aio.net.connections import Connections
from meta_client.aio.net.topology import Topology
from meta_client.aio.net.workers import LoopEvent, Tasks
from meta_client.aio.producer.producer import Gatherer, Producer
from meta_client.aio.producer.sender import Sender
from meta_client.client import BATCHING, COMPRESSION_BYTES_MIN, CONFIG, MakeSession, compression_of, with_consumer
from meta_client.consumer.browsing import browse
from meta_client.consumer.config import ConsumerConfig, group_of
from meta_client.consumer.consumer import Consumer as ConsumerRules
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.offsets import OffsetStore
from meta_client.errors import ClientClosed, ConsumerMisuse
from meta_client.metadata.allowed_codecs import AllowedCodecs
from meta_client.net.connections import Connections as ThreadedConnections
from meta_client.net.security import PLAIN, Credentials, Security
from meta_client.net.tls import TlsConfig
from meta_client.producer.interfaces import ClientParts
from meta_client.producer.partition_queues import BatchingConfig
from meta_client.producer.partitioners import Partitioner
from meta_client.producer.single_sends import SingleSends
from zk.errors import RefusedNode
from zk.forks import ProcessBound, invalidate_after_fork
from zk.session.security import PLAIN as ZOOKEEPER_PLAIN
from zk.session.security import ZooKeeperSecurity
from zk.session.session import CONNECT_TIMEOUT_MS, SESSION_TIMEOUT_MS, SessionEvent, ZooKeeperSession
from zk.tree.nodes import Node

if TYPE_CHECKING:
    from meta_client.aio.transactions.transaction import Transaction
    from meta_client.transactions.manager import TransactionConfig, Transactions
    from meta_client.transactions.resolver_state import Counts

BROWSED: Final = 256  # messages that browse takes at a time


class Client(ProcessBound):
    """One ZooKeeper session and the broker connections, shared by everything made here; for one event loop. Per broker
    one connection sends, and another one reads for consumers, as in meta_client.Client.

    *zookeeper* is a connect string, `host:port,...` with an optional /chroot; *root* is the cluster's path in it.
    Entering `async with`, once, connects, or raises ZooKeeperError and leaves nothing open; leaving it closes.
    ZooKeeper is asked about brokers and groups only, in separate threads. *transactions* configures `transaction`; a
    background thread with its own connections resolves leftovers of crashed services. *tls*, *credentials* and
    *zookeeper_security* as in meta_client.Client.
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
        transactions: "TransactionConfig | None" = None,
        tls: TlsConfig | None = None,
        credentials: Credentials | None = None,
        zookeeper_security: ZooKeeperSecurity = ZOOKEEPER_PLAIN,
    ) -> None:
        self._open(
            lambda enqueue: ZooKeeperSession(
                zookeeper,
                root,
                session_timeout_ms,
                connect_timeout_ms=connect_timeout_ms,
                enqueue=enqueue,
                security=zookeeper_security,
            ),
            Security(tls, credentials).check(),
            batching,
            default_topic,
            transactions,
        )

    @classmethod
    def over(
        cls, make_session: MakeSession, *, batching: BatchingConfig = BATCHING, default_topic: str | None = None
    ) -> Self:
        """A client over another session than that to a real server: for tests."""
        self = cls.__new__(cls)
        self._open(make_session, PLAIN, batching, default_topic)
        return self

    def _open(
        self,
        make_session: MakeSession,
        security: Security,
        batching: BatchingConfig,
        default_topic: str | None,
        transactions: "TransactionConfig | None" = None,
    ) -> None:
        self.session = make_session(self._on_session_event)
        self.topology = Topology(self.session, default_topic)
        self.connections, self.consumer_connections = Connections(security), Connections(security)
        self._batching = batching
        self._transaction_config = transactions
        self._transactions: Transactions | None = None  # made with the first
        self._resolving = ThreadedConnections.secured(security)  # of its threads
        invalidate_after_fork(self)
        self._sending: tuple[ClientParts, Sender] | None = None  # once it is open
        self._opened: contextlib.AsyncExitStack | None = None
        self._is_entered = False
        self._lock = threading.Lock()  # threads close consumers
        self._consumers: tuple[ConsumerRules, ...] = ()  # swapped whole: kazoo's thread walks it

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise ClientClosed("a client is entered once: make another one")
        async with contextlib.AsyncExitStack() as opened:
            await open_in_thread(self.session.start, self.session.close)
            self._is_entered = True
            opened.push_async_callback(in_thread, self.session.close)
            self.topology.start()
            opened.push_async_callback(in_thread, self.topology.close)
            opened.push_async_callback(self.connections.close)
            opened.push_async_callback(self.consumer_connections.close)
            opened.push_async_callback(in_thread, self._resolving.close)
            sender = Sender(self.topology, self.connections, self._batching)
            sends = SingleSends(self.topology, self.connections, lambda seconds: wait(asyncio.sleep(seconds)))
            allowed = AllowedCodecs(self.connections)
            self._sending = ClientParts(self.topology, self.connections, Gatherer(sender), sends, allowed), sender
            opened.push_async_callback(sender.close)
            self._opened = opened.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def producer(
        self,
        qualifier: str | None = None,
        *,
        compression: str | None = None,
        compression_bytes_min: int = COMPRESSION_BYTES_MIN,
        partitioner: Partitioner | None = None,
    ) -> Producer:
        """Return a producer; cheap, one per task for transactions. Arguments as in meta_client.Client.producer.

        Raises ClientClosed outside of `async with`, LocalProtocolError for a codec that is unknown or not installed.
        """
        self._check_open()
        assert self._sending is not None
        wanted = compression_of(compression, compression_bytes_min)
        return Producer(*self._sending, qualifier, wanted, partitioner)

    def transaction(
        self, connection: Any, *, wait: bool | float = False, connect: Callable[[], Awaitable[Any]] | None = None
    ) -> "Transaction":
        """Return an `async with` block that commits *connection*'s transaction together with the messages sent in it,
        or neither.

        *connection*: a psycopg 3 AsyncConnection, an asyncpg Connection, direct or lent by a pool, or an AsyncSession,
        async_scoped_session or AsyncConnection of SQLAlchemy over one of them; in a transaction or not. *connect*: an
        async function that makes another driver connection, where the parameters of *connection* cannot. Otherwise like
        meta_client.Client.transaction. Raises CannotEnlist for anything that can't decide, ClientClosed outside of
        `async with`; entering the block raises the rest.
        """
        from meta_client.aio.transactions.databases import session_of
        from meta_client.aio.transactions.shield import ShieldedSession
        from meta_client.aio.transactions.transaction import Transaction
        from meta_client.transactions.transaction import Transaction as Rules

        self._check_open()
        session = ShieldedSession(session_of(connection, connect))
        return Transaction(Rules(self._transactions_here(), session, wait))

    async def resolve(self, database: str) -> None:
        """Resolve in the background the leftovers of crashed services that the database at URL *database* decides. A
        thread asks the database, over a synchronous connection. Otherwise like meta_client.Client.resolve."""
        self._check_open()
        await in_thread(self._transactions_here().resolve, database)

    def transaction_counts(self) -> "dict[str, Counts]":
        """Counts of branches resolved, rows deleted and hazards found, by the id of the decision table."""
        return {} if self._transactions is None else self._transactions.counts()

    def consumer(
        self,
        group: str | None,
        offsets: OffsetStore | None = None,
        *,
        broadcast: str | None = None,
        config: ConsumerConfig = CONFIG,
    ) -> Consumer:
        """Return a consumer in *group*, to subscribe and start. Offsets are kept in ZooKeeper unless *offsets* is
        given, which is called in a thread. config.runners is the number of listeners awaited at a time. *broadcast* and
        *group* None as in meta_client.Client.consumer.

        Raises InvalidGroup, ConsumerMisuse, ConsumerIdTaken, zk's InvalidName, ClientClosed outside of `async with`.
        """
        self._check_open()
        named = group_of(group, broadcast)
        rules = ConsumerRules(
            self.session, self.consumer_connections, named, offsets, config, self._remove_consumer, Tasks()
        )
        with self._lock:
            self._consumers = with_consumer(self._consumers, rules)
        return Consumer(rules)

    async def browse(self, topic: str) -> AsyncIterator[ReceivedMessage]:
        """Yield every message that *topic* holds now, partition by partition, without a group or stored offsets. Ends
        and raises as meta_client.Client.browse."""
        self._check_open()
        session = cast(ZooKeeperSession, _TaskSession(self.session))  # implements the methods used
        messages = browse(session, self.consumer_connections, topic, lambda seconds: wait(asyncio.sleep(seconds)))
        while chunk := await run(_next_messages, messages):
            for message in chunk:
                yield message

    def _transactions_here(self) -> "Transactions":
        from meta_client.transactions.manager import TRANSACTIONS, Transactions  # imported on first use

        if self._transactions is None:
            self._transactions = Transactions(
                self.topology,
                self.connections,
                self._transaction_config or TRANSACTIONS,
                resolving=self._resolving,
                closing=functools.partial(LoopEvent, asyncio.get_running_loop()),
                session=self.session,
            )
        return self._transactions

    @property
    def consumers(self) -> tuple[ConsumerRules, ...]:
        """The consumers that are not closed, as meta_client.metrics.ClientCollector reads them. Any thread."""
        return self._consumers

    def _remove_consumer(self, consumer: ConsumerRules) -> None:
        with self._lock:
            self._consumers = tuple(other for other in self._consumers if other is not consumer)

    def _check_open(self) -> None:
        if self._opened is None:
            raise ClientClosed("the client is not open: use it inside `async with`")

    async def close(self) -> None:
        """Close every consumer, send buffered messages, within ten seconds, then close all connections. Idempotent; not
        for a listener. Tasks that wait for the client get ClientClosed, or their operation's error."""
        if any(consumer.is_listening() for consumer in self._consumers):
            raise ConsumerMisuse("a listener can't close its client, it would wait for itself")
        opened, self._opened = self._opened, None
        if opened is not None:
            async with opened:
                if self._transactions is not None:
                    self._transactions.stop_waiting()  # a listener may be the one that waits
                    opened.push_async_callback(in_thread, self._transactions.close)
                closing = (in_thread(consumer.close) for consumer in self._consumers)
                for failure in await asyncio.gather(*closing, return_exceptions=True):
                    if failure is not None:
                        raise failure

    def _on_session_event(self, event: SessionEvent) -> None:
        """Forward a session event from kazoo's thread."""
        self.topology.on_session_event(event)
        for consumer in self._consumers:
            consumer.on_session_event(event)


class _TaskSession:
    """ZooKeeper for tasks: threads make the calls."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self.paths = session.paths
        self.malformed = session.malformed

    def children(self, path: str) -> list[str]:
        return wait(in_thread(self._session.children, path))

    def read_readable(self, paths: Collection[str]) -> tuple[dict[str, Node], dict[str, RefusedNode]]:
        return wait(in_thread(self._session.read_readable, paths))


def _next_messages(messages: Iterator[ReceivedMessage]) -> list[ReceivedMessage]:
    return list(itertools.islice(messages, BROWSED))
