"""A client of one cluster, from which producers and consumers are made."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from meta_client.consumer.browsing import browse
from meta_client.consumer.config import ConsumerConfig, group_of
from meta_client.consumer.consumer import Consumer
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.offsets import OffsetStore
from meta_client.errors import ClientClosed, ConsumerMisuse, NotSupported
from meta_client.metadata.allowed_codecs import AllowedCodecs
from meta_client.metadata.direct import DirectTopology, parse_brokers
from meta_client.metadata.topology import Directory, Topology
from meta_client.net.connections import Connections
from meta_client.net.security import Credentials, Security
from meta_client.net.tls import TlsConfig
from meta_client.producer.interfaces import ClientParts
from meta_client.producer.outgoing import Compression
from meta_client.producer.partition_queues import BatchingConfig
from meta_client.producer.partitioners import Partitioner
from meta_client.producer.producer import Producer
from meta_client.producer.sender import Sender
from meta_client.producer.single_sends import SingleSends
from meta_client.protocol.compression import PACKAGES, Codec, codec_of, is_installed
from meta_client.protocol.errors import LocalProtocolError
from zk.forks import ProcessBound, invalidate_after_fork
from zk.groups.membership import ConsumerIdTaken
from zk.session.security import PLAIN as ZOOKEEPER_PLAIN
from zk.session.security import ZooKeeperSecurity
from zk.session.session import CONNECT_TIMEOUT_MS, SESSION_TIMEOUT_MS, SessionEvent, ZooKeeperSession
from zk.tree.broker_url import BrokerUrl

if TYPE_CHECKING:
    from meta_client.transactions.manager import TransactionConfig, Transactions
    from meta_client.transactions.resolver_state import Counts
    from meta_client.transactions.transaction import Transaction

CONFIG = ConsumerConfig()
BATCHING = BatchingConfig()
MakeSession = Callable[[Callable[[SessionEvent], None]], ZooKeeperSession]  # takes the callback for session events
COMPRESSION_BYTES_MIN = 256  # a shorter text hardly shrinks by more than what a codec adds


class Client(ProcessBound):
    """One ZooKeeper session and the broker connections, shared by everything made here. Any thread.

    Per broker one connection sends, and another one reads for consumers: on a shared one, a send's reply would queue
    behind megabytes of messages.

    *zookeeper* is a connect string, `host:port,...` with an optional /chroot; *root* is the cluster's path in it. The
    constructor connects, or raises ZooKeeperError and leaves nothing open. Close the client, or use it as a context
    manager.

    *batching* configures batches and retries of send_async. Messages for topics that no broker offers go, under their
    own name, to the brokers and partitions of *default_topic*, if it is given and they accept any topic (spec 7.2).
    *transactions* configures `transaction`. *tls* encrypts every connection to a broker, *credentials* say who this
    client is: a broker that does not prove that it knows them is not talked to. Raises InvalidSecurity for files that
    can't be used. *zookeeper_security*: login and TLS of the session.
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
            Connections.secured(Security(tls, credentials)),
            batching,
            default_topic,
            transactions=transactions,
        )

    @classmethod
    def direct(
        cls,
        *brokers: str,
        batching: BatchingConfig = BATCHING,
        default_topic: str | None = None,
        transactions: "TransactionConfig | None" = None,
        tls: TlsConfig | None = None,
        credentials: Credentials | None = None,
    ) -> Self:
        """A client without ZooKeeper, of the masters listed: `Client.direct("host:8123", "other:8123")`.

        It produces, local and XA transactions included; there are no consumer groups, and no broker is found that
        is not listed. What a topic has on which broker is asked every five seconds, of genuine brokers too. Raises
        NotConnected if no broker answers, or two have one id; InvalidUrl, InvalidSecurity.
        """
        self = cls.__new__(cls)
        connections = Connections.secured(Security(tls, credentials))
        self._open(None, connections, batching, default_topic, parse_brokers(brokers), transactions)
        return self

    @classmethod
    def over(
        cls,
        make_session: MakeSession,
        connections: Connections,
        *,
        batching: BatchingConfig = BATCHING,
        default_topic: str | None = None,
    ) -> Self:
        """A client over another session and other connections than those to real servers: for tests."""
        self = cls.__new__(cls)
        self._open(make_session, connections, batching, default_topic)
        return self

    def _open(
        self,
        make_session: MakeSession | None,
        connections: Connections,
        batching: BatchingConfig,
        default_topic: str | None,
        brokers: Sequence[BrokerUrl] = (),
        transactions: "TransactionConfig | None" = None,
    ) -> None:
        self._lock = threading.Lock()  # guards the next two fields
        invalidate_after_fork(self)
        self._consumers: tuple[Consumer, ...] = ()  # swapped whole: kazoo's thread walks it
        self._is_closed = False
        self._transaction_config = transactions
        self._transactions: Transactions | None = None  # made on first use
        self._session: ZooKeeperSession | None
        with contextlib.ExitStack() as opened:
            self.connections, self.consumer_connections = connections, connections.twin()
            self.topology: Directory
            if make_session is None:
                self._session = None
                self.topology = DirectTopology(brokers, connections, default_topic)
            else:
                self._session = make_session(self._on_session_event)
                self.topology = self._watched = Topology(self._session, default_topic)
            sender = Sender(self.topology, connections, batching)
            sends = SingleSends(self.topology, connections)
            self._shared = ClientParts(self.topology, connections, sender, sends, AllowedCodecs(connections))
            if self._session is not None:
                opened.enter_context(self._session)
            opened.callback(self.connections.close)
            opened.callback(self.consumer_connections.close)
            self.topology.start()
            opened.callback(self.topology.close)
            opened.callback(sender.close)
            self._opened = opened.pop_all()

    @property
    def is_direct(self) -> bool:
        """True without ZooKeeper: made by `direct`."""
        return self._session is None

    @property
    def session(self) -> ZooKeeperSession:
        """The client's ZooKeeper session. Raises NotSupported without one."""
        if self._session is None:
            raise NotSupported(
                "this client has no ZooKeeper, which groups and searches need: make one with Client(...)"
            )
        return self._session

    def producer(
        self,
        qualifier: str | None = None,
        *,
        compression: str | None = None,
        compression_bytes_min: int = COMPRESSION_BYTES_MIN,
        partitioner: Partitioner | None = None,
    ) -> Producer:
        """A producer; cheap, one per thread for transactions. *qualifier* marks its XA branches for tpc_recover:
        producers that finish each other's branches share one. By default, those of one machine do.

        *compression*, `zstd` or `lz4`: payloads of *compression_bytes_min* bytes or more are compressed where it makes
        them smaller and every broker allows it for the topic (`metaq topics alter --compression`). Raises
        LocalProtocolError for a codec that is unknown or not installed.

        *partitioner* chooses the partition of every message that names none: ByAttribute() keeps those of one
        attribute in order. Without it, or where it returns None, they go round robin over the brokers that are up.
        """
        self._check_open()
        wanted = compression_of(compression, compression_bytes_min)
        return Producer(self._shared, qualifier, wanted, partitioner)

    def transaction(
        self, connection: Any, *, wait: bool | float = False, connect: Callable[[], Any] | None = None
    ) -> "Transaction":
        """Return a `with` block that commits *connection*'s transaction together with the messages sent in it, or
        neither.

        *connection*: of psycopg 3, psycopg2, pg8000, PyMySQL or sqlite3, or an SQLAlchemy Session, scoped_session or
        Connection over one; in a transaction or not, to a database with a decision table (`metaq txn init`); the
        block's end commits or rolls it back. *wait*: return only once brokers have committed, too, so that the messages
        are visible then; otherwise they follow within moments. A number bounds the wait in seconds (NotConfirmed); True
        does not, while a broker is down. *connect* makes another driver connection for the resolver, where the
        parameters of *connection* cannot. Raises CannotEnlist for anything that can't decide; entering the block raises
        the rest.
        """
        from meta_client.transactions.databases import session_of
        from meta_client.transactions.transaction import Transaction

        return Transaction(self._transactions_here(), session_of(connection, connect), wait)

    def resolve(self, database: str) -> None:
        """Resolve in the background the leftovers of crashed services that the database at URL *database* decides. Call
        it at the start of a service that may not begin a transaction for long; the first transaction implies it. Raises
        CannotEnlist, Unreachable."""
        self._transactions_here().resolve(database)

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
        given.

        With *broadcast*, a name of this program instance that survives restarts, it receives every message of its
        topics, as does every other instance of *group*, in a separate group `<group>@<broadcast>`. *group* None: no
        group, for `Consumer.assign`; nothing is stored then unless *offsets* is given. Raises InvalidGroup, zk's
        InvalidName, ConsumerMisuse for offsets of another group, ConsumerIdTaken for the id of another consumer of this
        client, and NotSupported without ZooKeeper (`direct`).
        """
        named = group_of(group, broadcast)
        consumer = Consumer(self.session, self.consumer_connections, named, offsets, config, self._remove_consumer)
        with self._lock:
            self._check_open()
            self._consumers = with_consumer(self._consumers, consumer)
        return consumer

    def browse(self, topic: str) -> Iterator[ReceivedMessage]:
        """Yield every message that *topic* holds now, partition by partition, without a group or stored offsets; each
        partition ends where it ended when it was reached. Fetches in the caller's thread.

        Raises NothingToRead, BrokerAway, ConnectionLost, ReplyTimeout, RemoteError, InvalidMessage, ZooKeeperError.
        """
        self._check_open()
        return browse(self.session, self.consumer_connections, topic)

    def close(self) -> None:
        """Close every consumer, finish decided transactions, then close all connections. Idempotent. Raises
        ConsumerMisuse in a listener."""
        if any(consumer.is_listening() for consumer in self._consumers):
            raise ConsumerMisuse("a listener can't close its client, it would wait for itself")
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        with self._opened, contextlib.ExitStack() as closing:  # each, whatever becomes of the others
            if self._transactions is not None:
                self._transactions.stop_waiting()  # a listener may be waiting
                closing.callback(self._transactions.close)
            for consumer in reversed(self._consumers):
                closing.callback(consumer.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _transactions_here(self) -> "Transactions":
        with self._lock:
            self._check_open()
            if self._transactions is None:
                from meta_client.transactions.manager import TRANSACTIONS, Transactions  # imported on first use

                config = self._transaction_config or TRANSACTIONS
                self._transactions = Transactions(self.topology, self.connections, config, session=self._session)
            return self._transactions

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """The consumers that are not closed. Any thread."""
        return self._consumers

    def _remove_consumer(self, consumer: Consumer) -> None:
        with self._lock:
            self._consumers = tuple(other for other in self._consumers if other is not consumer)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the client is closed: make a new one")

    def _on_session_event(self, event: SessionEvent) -> None:
        """Forward a session event from kazoo's thread."""
        self._watched.on_session_event(event)
        for consumer in self._consumers:
            consumer.on_session_event(event)


def with_consumer(consumers: tuple[Consumer, ...], made: Consumer) -> tuple[Consumer, ...]:
    """Return *consumers*, those of a client that are not closed, and *made*. Raises ConsumerIdTaken if one has its id:
    ZooKeeper tells members apart by their sessions, and both would read the same partitions."""
    if made.has_group and any(other.consumer_id == made.consumer_id for other in consumers):
        raise ConsumerIdTaken(
            f"{made.consumer_id} belongs to a consumer of this client: close it, or use another consumer id"
        )
    return (*consumers, made)


def compression_of(label: str | None, bytes_min: int) -> Compression | None:
    """Return a producer's compression. Raises LocalProtocolError."""
    return None if label is None else Compression(_codec(label), bytes_min)


def _codec(label: str) -> Codec:
    try:
        codec = codec_of(label)
    except ValueError as error:
        raise LocalProtocolError(f"compression {error}") from error
    if not is_installed(codec):
        raise LocalProtocolError(
            f"compression {label} needs the package {PACKAGES[codec]}: pip install 'metaq-broker[compression]'"
        )
    return codec
