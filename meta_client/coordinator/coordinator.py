"""The coordinator: owns the decision log, begins transactions, recovers."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from journal.errors import JournalError
from journal.records.xid import Xid
from meta_client.coordinator.background_recovery import BackgroundRecovery, RecoveryThread, Runner, Way
from meta_client.coordinator.broker import BrokerParticipant
from meta_client.coordinator.decision_log import DecisionLog
from meta_client.coordinator.errors import CoordinatorClosed, CoordinatorError, DecisionUnknown, Unreachable
from meta_client.coordinator.in_flight import InFlight
from meta_client.coordinator.names import new_nonce
from meta_client.coordinator.participants import Participant
from meta_client.coordinator.phase_two import Closing
from meta_client.coordinator.receipts import Receipts
from meta_client.coordinator.recovery import RecoveredTransaction, log, recover
from meta_client.coordinator.status import CoordinatorStatus, Counter
from meta_client.coordinator.transaction import CoordinatedTransaction, Shared, StepObserver
from meta_client.producer.producer import Producer
from meta_client.producer.xa_verbs import topic_names
from zk.forks import invalidate_after_fork

if TYPE_CHECKING:
    import psycopg

TIMEOUT_S = 60  # how long a broker keeps a branch that was never prepared; no broker of the line allows more


class Coordinator:
    """Transactions over a psycopg 3 connection and a producer. Any thread; each brings its own connection and producer.
    The directory belongs to one process at a time and holds the state for recovery: keep it on persistent storage, and
    give each service instance a separate one."""

    def __init__(
        self,
        decisions: DecisionLog,
        observer: StepObserver | None,
        closing: Closing | None = None,
        lock: AbstractContextManager[object] | None = None,
        runner: Runner | None = None,
    ) -> None:
        """*closing* interrupts waits for participants. *lock* is held during those waits. *runner* runs the background
        recovery."""
        invalidate_after_fork(self)
        closing = closing or threading.Event()
        recovery = BackgroundRecovery(self._recover_over, closing, runner or RecoveryThread())
        self._shared = Shared(decisions, InFlight(), recovery, closing, observer, Counter())
        self._recovering = lock or threading.Lock()
        self._logged: dict[Xid, str] = {}  # problems that the background recovery has logged

    @classmethod
    def open(cls, directory: Path | str, name: str = "metaq", *, observer: StepObserver | None = None) -> Self:
        """Open or create the decision log of coordinator *name* in *directory*; then call `recover`.

        *observer* is called with (step, xid) after every step, on the transaction's thread; before the decision an
        exception from it rolls back, after it is logged. Raises InvalidName, LogInUse, ForeignLog, CopiedLog,
        JournalError.
        """
        return cls(DecisionLog.open(Path(directory), name), observer)

    @property
    def name(self) -> str:
        """Prefix of every identifier that this coordinator creates; it recovers no others."""
        return self._shared.log.name.prefix.decode()

    def transaction(
        self,
        connection: "psycopg.Connection[Any]",
        producer: Producer,
        *,
        topics: Iterable[str],
        timeout_s: int = TIMEOUT_S,
    ) -> CoordinatedTransaction:
        """Return a `with` block in which *connection* and *producer* work for one transaction: both commit, or neither.

        *topics*: the producer's topics; one broker must have them all. *timeout_s*: time after which the broker rolls
        back a branch that is not prepared. Nothing is open before the block is entered. Raises CoordinatorClosed, and
        StorageFailed once the decision log has stopped.
        """
        if self._shared.closing.is_set():
            raise CoordinatorClosed("the coordinator is closed: open it again")
        self._shared.log.check()
        database, broker = self._enlist(connection), self._enlist_producer(producer, topic_names(topics), timeout_s)
        xid = self._shared.log.name.xid(new_nonce())
        return CoordinatedTransaction(self._shared, xid, database, broker)

    def recover(
        self,
        connections: "Iterable[psycopg.Connection[Any]]" = (),
        producers: Iterable[Producer] = (),
    ) -> list[RecoveredTransaction]:
        """Finish transactions in doubt after a crash: commit decided ones, roll back the rest. Return one report each.

        Only this log's transactions are touched, except those in progress in this process. So it may be called at any
        time: at every start, and whenever a broker has come back. Pass one idle connection per database and one
        producer per qualifier. If a report's `problem` is not None, call again later. Raises CannotEnlist, Unreachable;
        then nothing was changed.
        """
        if self._shared.closing.is_set():
            raise CoordinatorClosed("the coordinator is closed: open it again")
        databases = [self._enlist(connection) for connection in connections]
        for database in databases:
            database.check()
        return self._recover(databases, [self._enlist_producer(producer) for producer in producers])

    def forget(self, xid: Xid) -> None:
        """Drop the decision of a transaction that ended otherwise (HeuristicOutcome), after it was repaired by hand.

        Raises CoordinatorError if there is no such decision, or the transaction is still in progress.
        """
        with self._recovering:
            if xid not in self._shared.log.unfinished() or self._shared.in_flight.is_in_flight(xid):
                raise CoordinatorError(f"there is no decision about {xid} to forget: see what recover() reports")
            self._shared.log.forget(xid)
            self._shared.counter.forgotten(xid)

    def status(self) -> CoordinatorStatus:
        """Return what it has open, and what it has done since it was opened. Any thread; reads no disk."""
        decisions_s, rollbacks_s = self._shared.log.ages_s(), self._shared.in_flight.rollback_ages_s()
        return CoordinatorStatus(
            transactions_open=len(self._shared.in_flight),
            decisions_unfinished=len(decisions_s),
            decisions_oldest_age_s=max(decisions_s, default=None),
            rollbacks_pending=len(rollbacks_s),
            rollbacks_oldest_age_s=max(rollbacks_s, default=None),
            is_log_failed=self._shared.log.is_failed,
            counts=self._shared.counter.snapshot(),
        )

    def close(self) -> None:
        """Interrupt waits for absent participants, and release the log. Idempotent. Raises StorageFailed if the log had
        failed.

        Threads inside a decided transaction get CoordinatorClosed; `recover` finishes it next time.
        """
        self.stop_waiting()
        self._shared.recovery.join()
        self._shared.log.close()

    def stop_waiting(self) -> None:
        """Interrupt waits for participants. In asyncio, on the loop's thread only."""
        self._shared.closing.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _enlist(self, connection: "psycopg.Connection[Any]") -> Participant:
        from meta_client.coordinator.postgres import PostgresParticipant  # psycopg: metaq-broker[postgres]

        return PostgresParticipant(connection)

    def _enlist_producer(self, producer: Producer, topics: tuple[str, ...] = (), timeout_s: float = 0) -> Participant:
        return BrokerParticipant(
            producer, self._shared.log.name.owns, topics, timeout_s, self._shared.in_flight.is_in_flight
        )

    def _recover(
        self, databases: Sequence[Participant], brokers: Sequence[Participant], told: dict[Xid, str] | None = None
    ) -> list[RecoveredTransaction]:
        with self._recovering:
            try:
                reports = recover(self._shared.log, self._shared.in_flight, databases, brokers, told=told)
            except JournalError as error:
                raise DecisionUnknown(f"the decision log failed while recovering ({error}): start again") from error
            self._shared.counter.recovered(reports)
            return reports

    def _recover_over(self, ways: Mapping[str, Way]) -> bool:
        """Recover over connections of our own; return True if nothing is left there that a retry could finish."""
        with ExitStack() as opened:
            databases: list[Participant] = []
            brokers: list[Participant] = []
            for way in ways.values():
                try:
                    participant = opened.enter_context(way())
                except Unreachable as error:
                    log.debug("not resolved from reason=%s", error)
                else:
                    (brokers if isinstance(participant, BrokerParticipant) else databases).append(participant)
            reports = self._recover(databases, brokers, self._logged)
        hazards = {report.xid for report in reports if report.is_hazard}
        left = {rollback.xid for rollback in self._shared.in_flight.pending_rollbacks()}
        for xid, receipts in self._shared.log.unfinished().items():
            resource_ids = set(Receipts.parse(receipts).resource_ids)
            if resource_ids <= ways.keys() and not self._shared.in_flight.is_in_flight(xid):
                left.add(xid)
        return left <= hazards
