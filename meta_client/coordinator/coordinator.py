"""The coordinator: owns the decision log, begins transactions, recovers."""

import itertools
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from journal.errors import JournalError
from meta_client.coordinator.broker import BrokerParticipant
from meta_client.coordinator.decision_log import DecisionLog
from meta_client.coordinator.errors import CoordinatorClosed, DecisionUnknown, Unreachable
from meta_client.coordinator.finishing import Closing
from meta_client.coordinator.flight import Flight
from meta_client.coordinator.participants import Participant
from meta_client.coordinator.recovery import Recovered, log, recover
from meta_client.coordinator.transaction import Observer, Shared, Transaction
from meta_client.producer import Producer
from meta_client.xa_verbs import topic_names

if TYPE_CHECKING:
    import psycopg

TIMEOUT_S = 60  # how long a broker keeps a branch that was never prepared; no broker of the line allows more


class Coordinator:
    """Transactions over a psycopg 3 connection and a producer. Any thread; each brings its own connection and
    producer. One process at a time has the directory: it is the memory that a restart recovers from, so keep it
    where restarts find it, and give every service instance one of its own.
    """

    def __init__(self, decisions: DecisionLog, observer: Observer | None, closing: Closing | None = None) -> None:
        """*closing*: what whoever waits for a participant watches."""
        self._decisions = decisions
        self._shared = Shared(decisions, Flight(), closing or threading.Event(), observer)
        self._numbers = itertools.count(1)
        self._recovering = threading.Lock()

    @classmethod
    def open(cls, directory: Path | str, name: str = "metaq", *, observer: Observer | None = None) -> Self:
        """Open or create the decision log of coordinator *name* in *directory*; then call `recover`.

        *observer* is called with (step, xid) after every step, on the transaction's thread; before the decision an
        exception from it rolls back, after it is logged. Raises InvalidName, LogInUse, ForeignLog, JournalError.
        """
        return cls(DecisionLog.open(Path(directory), name), observer)

    @property
    def name(self) -> str:
        """The prefix of every identifier that this coordinator gives: what it recovers, and nothing else."""
        return self._decisions.name.prefix.decode()

    def transaction(
        self,
        connection: "psycopg.Connection[Any]",
        producer: Producer,
        *,
        topics: Iterable[str],
        timeout_s: int = TIMEOUT_S,
    ) -> Transaction:
        """A `with` block in which *connection* and *producer* work for one transaction: both commit, or neither.

        *topics*: where the producer will send; one broker must have them all. *timeout_s*: how long the broker
        keeps the branch should we vanish before the prepare. Nothing is open before the block is entered.
        Raises CoordinatorClosed, and StorageFailed once the decision log has stopped.
        """
        if self._shared.closing.is_set():
            raise CoordinatorClosed("the coordinator is closed: open it again")
        self._decisions.check()
        database, broker = self._enlist(connection), self._enlist_producer(producer, topic_names(topics), timeout_s)
        if self._shared.flight.debts():
            self._pay_debts(database, broker)
        xid = self._decisions.name.xid(self._decisions.incarnation, next(self._numbers))
        return Transaction(self._shared, xid, database, broker)

    def recover(
        self,
        connections: "Iterable[psycopg.Connection[Any]]" = (),
        producers: Iterable[Producer] = (),
    ) -> list[Recovered]:
        """Finish what a crash left in doubt: commit what was decided, roll back the rest; one report a transaction.

        Only transactions of this log are touched, and none that a thread of this process is working on, so that it
        may be called at any time: at every start, and whenever a broker has come back. Give one idle connection a
        database and one producer a qualifier. A report whose `problem` is not None: call again later.
        Raises CannotEnlist, Unreachable; then nothing was changed.
        """
        if self._shared.closing.is_set():
            raise CoordinatorClosed("the coordinator is closed: open it again")
        databases = [self._enlist(connection) for connection in connections]
        for database in databases:
            database.check()
        return self._recover(databases, [self._enlist_producer(producer) for producer in producers])

    def close(self) -> None:
        """Stop waiting for whoever is away, and let go of the log. Idempotent. Raises StorageFailed if it had failed.

        Threads inside a transaction that is decided get CoordinatorClosed; `recover` finishes it next time.
        """
        self.stop_waiting()
        self._decisions.close()

    def stop_waiting(self) -> None:
        """Whoever waits for a participant gives up. The loop's thread, where there is one."""
        self._shared.closing.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _enlist(self, connection: "psycopg.Connection[Any]") -> Participant:
        from meta_client.coordinator.postgres import PostgresParticipant  # psycopg is an extra: 'metaq[postgres]'

        return PostgresParticipant(connection)

    def _enlist_producer(self, producer: Producer, topics: tuple[str, ...] = (), timeout_s: float = 0) -> Participant:
        return BrokerParticipant(producer, self._decisions.name.owns, topics, timeout_s)

    def _recover(self, databases: list[Participant], brokers: list[Participant]) -> list[Recovered]:
        with self._recovering:
            try:
                return recover(self._decisions, self._shared.flight, databases, brokers)
            except JournalError as error:
                raise DecisionUnknown(f"the decision log failed while recovering ({error}): start again") from error

    def _pay_debts(self, database: Participant, broker: Participant) -> None:
        """Deliver rollbacks that nobody could hear; whoever is still away hears them at the next transaction."""
        try:
            database.check()
            self._recover([database], [broker])
        except Unreachable as error:
            log.debug("rollbacks are still owed reason=%s", error)
