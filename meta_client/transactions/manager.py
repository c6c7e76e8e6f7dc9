"""What the transactions of one client have in common: a thread for each decision table, and ways to brokers."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from meta_client.errors import ClientClosed
from meta_client.identity import new_session_id
from meta_client.producer import Producer
from meta_client.topology import Directory
from meta_client.transactions.background import Background
from meta_client.transactions.branches import Branches
from meta_client.transactions.brokers import Brokers
from meta_client.transactions.committing import Observer
from meta_client.transactions.databases import session_of, table_at
from meta_client.transactions.names import TableName
from meta_client.transactions.resolver import AGE_S, Counts, Resolver
from meta_client.transactions.table import Opener, Session
from meta_client.transactions.transaction import Transaction
from meta_client.transport import Transports
from meta_client.xa_verbs import XaVerbs
from zk.forks import made_here

INTERVAL_S: Final = 1.0
TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """How a client's transactions behave. Immutable."""

    resolves: bool = True  # whether this process ends what others left; `metaq txn resolver` does, too
    age_s: float = AGE_S  # how long a prepared branch, or a row, is left to its own transaction
    interval_s: float = INTERVAL_S  # between two looks
    timeout_s: float = TIMEOUT_S  # how long a broker keeps a branch that was never prepared
    observer: Observer | None = None  # called after every step with it and the transaction's name, on its thread


TRANSACTIONS: Final = TransactionConfig()


class Transactions:
    """One client's. Any thread."""

    def __init__(self, topology: Directory, connections: Transports, config: TransactionConfig) -> None:
        self._topology = topology
        self._connections = connections
        self._config = config
        self._session_id = new_session_id()
        self._lock = threading.Lock()  # guards the next two
        self._backgrounds: dict[TableName, Background] = {}
        self._is_closed = False
        made_here(self)

    @property
    def observer(self) -> Observer | None:
        """Who is told of steps."""
        return self._config.observer

    def transaction(
        self, connection: Any, producer: Producer, connect: Callable[[], Any] | None, *, waits: bool
    ) -> Transaction:
        """As Client.transaction, which gives the *producer* that `Transaction.send` uses."""
        return Transaction(self, session_of(connection, connect), producer, waits=waits)

    def resolve(self, url: str) -> TableName:
        """Resolve in the background what the database at *url* decides about. Raises as databases.table_at."""
        table = table_at(url)
        name = table.identity.name
        table.close()
        self._background(name, lambda: table_at(url))
        return name

    def branches(self, name: TableName, gtrid: str) -> Branches:
        """Of a new transaction."""
        return Branches(self._verbs(name), gtrid, self._config.timeout_s)

    def background(self, name: TableName, session: Session) -> Background:
        """Who finishes the transactions of table *name*, which *session* can lead to."""
        return self._backgrounds.get(name) or self._background(name, session.opener())

    def counts(self) -> dict[str, Counts]:
        """What was done for each table so far, by its id."""
        with self._lock:
            return {name.table_id: one.counts for name, one in self._backgrounds.items()}

    def stop_waiting(self) -> None:
        """Have callers wait no more for brokers that are away: CoordinatorClosed, and for an answer to COMMIT:
        DecisionUnknown. What is decided goes on."""
        with self._lock:
            backgrounds = list(self._backgrounds.values())
        for one in backgrounds:
            one.closing.set()

    def close(self) -> None:
        """Finish what is decided, as far as brokers and databases answer. Idempotent."""
        with self._lock:
            self._is_closed = True
            backgrounds = list(self._backgrounds.values())
        for one in backgrounds:
            one.close()

    def _background(self, name: TableName, opener: Opener) -> Background:
        config = self._config
        with self._lock:
            if self._is_closed:
                raise ClientClosed("the client is closed: make a new one")
            if (known := self._backgrounds.get(name)) is not None:
                return known
            brokers = Brokers(self._verbs(name), name)
            resolver = Resolver(brokers, name, opener, config.age_s)
            made = self._backgrounds[name] = Background(brokers, resolver, config.interval_s, looks=config.resolves)
        made.start()
        return made

    def _verbs(self, name: TableName) -> XaVerbs:
        return XaVerbs(self._topology, self._connections, name.qualifier, self._session_id)
