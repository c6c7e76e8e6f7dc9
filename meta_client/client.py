"""What users make first: a client of one cluster, from which producers and consumers come."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from meta_client.allowed_codecs import AllowedCodecs
from meta_client.batching.lanes import BatchingConfig
from meta_client.batching.sender import Sender
from meta_client.connections import Connections
from meta_client.consumer.batch import ReceivedMessage
from meta_client.consumer.browsing import browse
from meta_client.consumer.config import ConsumerConfig, group_of
from meta_client.consumer.consumer import Consumer
from meta_client.consumer.offsets import OffsetStore
from meta_client.direct import DirectTopology, parse_brokers
from meta_client.errors import ClientClosed, NotSupported
from meta_client.identity import default_qualifier
from meta_client.placing import Partitioner
from meta_client.producer import Producer
from meta_client.protocol.compression import PACKAGES, Codec, codec_of, is_installed
from meta_client.protocol.errors import LocalProtocolError
from meta_client.puts import Compression
from meta_client.single_sends import SingleSends
from meta_client.topology import Directory, Topology
from zk.broker_url import BrokerUrl
from zk.forks import made_here
from zk.session import CONNECT_TIMEOUT_MS, SESSION_TIMEOUT_MS, SessionEvent, ZooKeeperSession

if TYPE_CHECKING:
    from meta_client.transactions.manager import TransactionConfig, Transactions
    from meta_client.transactions.resolver import Counts
    from meta_client.transactions.transaction import Transaction

CONFIG = ConsumerConfig()
BATCHING = BatchingConfig()
MakeSession = Callable[[Callable[[SessionEvent], None]], ZooKeeperSession]  # given who hears of the session's events
COMPRESSION_BYTES_MIN = 256  # a shorter text hardly shrinks by more than what a codec adds


class Client:
    """One ZooKeeper session, shared by everything made here, and so are the connections. Any thread.

    One per broker for what is sent and asked, and another one for what consumers read: on one alone, a send's answer
    would stand behind megabytes of messages, and wait while the broker's disk looks for them.

    *zookeeper* is a connect string, `host:port,...` with an optional /chroot; *root* is the cluster's in it. Making
    one connects, or raises ZooKeeperError and leaves nothing open. Close it, or use it as a context manager.

    *batching* is how send_async gathers and retries. Messages for topics that no broker offers go, under their own
    name, to the brokers and partitions of *default_topic*, if it is given and they take any topic (spec 7.2).
    *transactions* is how `transaction` behaves.
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
    ) -> None:
        self._open(
            lambda enqueue: ZooKeeperSession(
                zookeeper, root, session_timeout_ms, connect_timeout_ms=connect_timeout_ms, enqueue=enqueue
            ),
            Connections(),
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
    ) -> Self:
        """A client without ZooKeeper, of the masters listed: `Client.direct("host:8123", "other:8123")`.

        It produces, local and XA transactions included; there are no consumer groups, and no broker is found that
        is not listed. What a topic has on which broker is asked every five seconds, of genuine brokers too. Raises
        NotConnected if no broker answers, or two have one id; InvalidUrl.
        """
        self = cls.__new__(cls)
        self._open(None, Connections(), batching, default_topic, parse_brokers(brokers), transactions)
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
        self._lock = threading.Lock()  # guards the next two
        made_here(self)
        self._consumers: tuple[Consumer, ...] = ()  # swapped whole: kazoo's thread walks it
        self._is_closed = False
        self._transaction_config = transactions
        self._transactions: Transactions | None = None  # made with the first
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
            self._allowed = AllowedCodecs(self.connections)
            self._sends = SingleSends(self.topology, self.connections)
            self._sender = Sender(self.topology, self.connections, batching)
            if self._session is not None:
                opened.enter_context(self._session)
            opened.callback(self.connections.close)
            opened.callback(self.consumer_connections.close)
            self.topology.start()
            opened.callback(self.topology.close)
            opened.callback(self._sender.close)
            self._opened = opened.pop_all()

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

    def transaction(
        self, connection: Any, *, wait: bool = False, connect: Callable[[], Any] | None = None
    ) -> "Transaction":
        """A `with` block that commits *connection*'s transaction together with the messages sent in it, or neither.

        *connection*: of psycopg 3 or sqlite3, or an SQLAlchemy Session, scoped_session or Connection over one; in a
        transaction or not, to a database with a decision table (`metaq txn init`); the block's end commits it, or rolls
        it back. *wait*: return only once brokers have committed, too, so that whoever is told next can read the
        messages; without it they follow within moments. *connect* makes another connection of the driver for whoever
        finishes a transaction, where what *connection* was made with will not do.
        Raises CannotEnlist for what can't decide; entering the block raises the rest.
        """
        return self._transactions_here().transaction(connection, self.producer(), connect, waits=wait)

    def resolve(self, database: str) -> None:
        """End in the background what crashed services left, of all that the database at URL *database* decides about:
        at the start of a service that may not have a transaction for long. With the first one it begins by itself.
        Raises CannotEnlist, Unreachable."""
        self._transactions_here().resolve(database)

    def transaction_counts(self) -> "dict[str, Counts]":
        """What was resolved, deleted and found to differ, by the id of the decision table."""
        return {} if self._transactions is None else self._transactions.counts()

    def consumer(
        self,
        group: str | None,
        offsets: OffsetStore | None = None,
        *,
        broadcast: str | None = None,
        config: ConsumerConfig = CONFIG,
    ) -> Consumer:
        """A consumer in *group*, to subscribe and start. Offsets are kept in ZooKeeper unless *offsets* is given.

        With *broadcast*, a name that this instance of the program keeps through restarts, it receives every message of
        its topics, as every other instance of *group* does: it is a group of its own, `<group>@<broadcast>`.
        *group* None: of no group, for `Consumer.assign`; nothing is stored then unless *offsets* is given.
        Raises InvalidGroup, zk's InvalidName, ConsumerMisuse for offsets of another group, and NotSupported without
        ZooKeeper (`direct`).
        """
        named = group_of(group, broadcast)
        consumer = Consumer(self.session, self.consumer_connections, named, offsets, config, self._forget)
        with self._lock:
            self._check_open()
            self._consumers = (*self._consumers, consumer)
        return consumer

    def browse(self, topic: str) -> Iterator[ReceivedMessage]:
        """Every message that *topic* holds now, a partition after the other, without a group and without a trace; it
        ends where each partition ended when its turn came. The caller's thread fetches.

        Raises NothingToRead, BrokerAway, ConnectionLost, ReplyTimeout, RemoteError, InvalidMessage, ZooKeeperError.
        """
        self._check_open()
        return browse(self.session, self.consumer_connections, topic)

    def close(self) -> None:
        """Close every consumer, finish what is decided, then close all connections. Idempotent; not for a listener's
        thread."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        with self._opened:
            if self._transactions is not None:
                self._transactions.stop_waiting()  # a listener may be the one that waits
            for consumer in self._consumers:
                consumer.close()
            if self._transactions is not None:
                self._transactions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _transactions_here(self) -> "Transactions":
        from meta_client.transactions.manager import TRANSACTIONS, Transactions  # who sends no messages needs none

        with self._lock:
            self._check_open()
            if self._transactions is None:
                config = self._transaction_config or TRANSACTIONS
                self._transactions = Transactions(self.topology, self.connections, config)
            return self._transactions

    def _forget(self, consumer: Consumer) -> None:
        with self._lock:
            self._consumers = tuple(other for other in self._consumers if other is not consumer)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the client is closed: make a new one")

    def _on_session_event(self, event: SessionEvent) -> None:
        """On kazoo's thread: hand it on, nothing else."""
        self._watched.on_session_event(event)
        for consumer in self._consumers:
            consumer.on_session_event(event)


def compression_of(label: str | None, bytes_min: int) -> Compression | None:
    """How a producer compresses that was told so. Raises LocalProtocolError."""
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
