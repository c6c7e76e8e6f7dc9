"""State shared by one client's transactions: a resolver thread for each decision table, and its broker requests."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from meta_client.coordinator.phase_two import Closing
from meta_client.errors import ClientClosed
from meta_client.metadata.topology import Directory
from meta_client.net.identity import new_session_id
from meta_client.net.transport import Transports
from meta_client.producer.branch_batch import BranchHandle
from meta_client.producer.outgoing import Outgoing, StickyRoundRobin, encode_message, parse_partition, view_of
from meta_client.producer.producer import SEND_TIMEOUT_S
from meta_client.producer.xa_verbs import XaVerbs
from meta_client.transactions.branches import OpenBranches
from meta_client.transactions.brokers import Brokers
from meta_client.transactions.commit_sequence import CommitObserver
from meta_client.transactions.databases import table_at
from meta_client.transactions.generation import Generations
from meta_client.transactions.names import TableName
from meta_client.transactions.resolver import AGE_S, Resolver
from meta_client.transactions.resolver_state import Counts
from meta_client.transactions.resolver_thread import ResolverThread
from meta_client.transactions.table import Opener, Session
from zk.forks import invalidate_after_fork
from zk.session.session import ZooKeeperSession
from zk.tree.nodes import Partition

INTERVAL_S: Final = 1.0
TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Settings of a client's transactions. Immutable."""

    resolves: bool = True  # this process resolves leftovers of crashed ones; `metaq txn resolver` does, too
    age_s: float = AGE_S  # age at which a prepared branch, or a row, is resolved
    interval_s: float = INTERVAL_S  # between two resolver passes
    timeout_s: float = TIMEOUT_S  # time after which a broker rolls back a branch that is not prepared
    observer: CommitObserver | None = None  # called with step and gtrid after every step, on the transaction's thread


TRANSACTIONS: Final = TransactionConfig()


class Transactions:
    """Transactions of one client. Any thread."""

    def __init__(
        self,
        topology: Directory,
        connections: Transports,
        config: TransactionConfig,
        *,
        resolving: Transports | None = None,
        closing: Callable[[], Closing] = threading.Event,
        session: ZooKeeperSession | None = None,
    ) -> None:
        """*resolving*: connections for the resolver threads, where *connections* belong to an event loop. *closing*
        makes the event that callers wait on; resolver threads have their own, unless it is an event for both. *session*
        lets resolvers notice a restored database."""
        self._topology = topology
        self._closing = closing
        self._config = config
        self._session = session
        self._verbs = XaVerbs(topology, connections, new_session_id())
        self._resolving = XaVerbs(topology, resolving or connections, self._verbs.session_id)
        self._lock = threading.Lock()  # guards the next two fields
        self._resolver_threads: dict[TableName, ResolverThread] = {}
        self._is_closed = False
        self._choices: dict[str, StickyRoundRobin] = {}  # by topic
        invalidate_after_fork(self)

    @property
    def observer(self) -> CommitObserver | None:
        """Callback for every step, if any."""
        return self._config.observer

    def resolve(self, url: str) -> None:
        """Start a background resolver for the database at *url*. Raises as databases.table_at."""
        table = table_at(url)
        name = table.identity.name
        table.close()
        self._start_resolver(name, lambda: table_at(url))

    def branches(self, name: TableName, gtrid: str) -> OpenBranches:
        return OpenBranches(self._verbs, gtrid, self._config.timeout_s, name.key)

    def add(
        self,
        branches: OpenBranches,
        topic: str,
        payload: bytes,
        attribute: str | None,
        partition: Partition | str | None,
    ) -> BranchHandle:
        """Add a message to *branches*. Raises as Transaction.send."""
        view = view_of(self._topology, topic, SEND_TIMEOUT_S)
        wanted = None if partition is None else parse_partition(partition)
        # Shared by all transactions: most send a single message, and all of those would go to the first partition.
        choice = self._choices.get(topic) or self._choices.setdefault(topic, StickyRoundRobin())
        return branches.add(Outgoing(view, *encode_message(topic, payload, attribute), wanted, choice))

    def resolver_thread(self, name: TableName, session: Session) -> ResolverThread:
        """Return the resolver thread of table *name*, made from *session* if there is none."""
        known = self._resolver_threads.get(name)
        if known is None or not known.is_started:
            return self._start_resolver(name, session.opener())
        known.open_by(session.opener)
        return known

    def counts(self) -> dict[str, Counts]:
        """Return the resolver's counts, by table id."""
        with self._lock:
            return {name.table_id: one.counts for name, one in self._resolver_threads.items()}

    def stop_waiting(self) -> None:
        """Interrupt waits for absent brokers (CoordinatorClosed) and for an answer to COMMIT (DecisionUnknown). Decided
        transactions continue."""
        with self._lock:
            resolver_threads = list(self._resolver_threads.values())
        for one in resolver_threads:
            one.closing.set()

    def close(self) -> None:
        """Finish decided transactions as far as brokers and databases answer. Idempotent."""
        with self._lock:
            self._is_closed = True
            resolver_threads = list(self._resolver_threads.values())
        for one in resolver_threads:
            one.close()

    def _start_resolver(self, name: TableName, opener: Opener) -> ResolverThread:
        config = self._config
        with self._lock:
            if self._is_closed:
                raise ClientClosed("the client is closed: make a new one")
            if (thread := self._resolver_threads.get(name)) is None:
                generations = None if self._session is None else Generations(self._session, name)
                resolver = Resolver(Brokers(self._resolving, name), name, opener, config.age_s, generations=generations)
                thread = self._resolver_threads[name] = ResolverThread(
                    Brokers(self._verbs, name),
                    resolver,
                    config.interval_s,
                    self._closing(),
                    resolves=config.resolves,
                )
            # Known before it runs, so that `close` ends it whatever is raised here; begun again, if it could not start.
            thread.start()
        return thread
