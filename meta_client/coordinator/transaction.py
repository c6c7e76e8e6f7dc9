"""One transaction over a database and a broker, as a `with` block. Owner's thread only.

Fixed order: broker prepared, database prepared, decision durable (the commit point), database committed, broker
committed, forgotten. A failure before the decision rolls both sides back; one after it does not.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from journal.errors import JournalError
from journal.records.xid import Xid
from meta_client.coordinator.background_recovery import BackgroundRecovery
from meta_client.coordinator.decision_log import DecisionLog
from meta_client.coordinator.errors import Abandoned, CoordinatorError, DecisionUnknown, HeuristicOutcome, PrepareFailed
from meta_client.coordinator.in_flight import InFlight
from meta_client.coordinator.participants import BranchEnd, Participant
from meta_client.coordinator.phase_two import Closing, commit_until_done
from meta_client.coordinator.receipts import Receipts
from meta_client.coordinator.status import Counter
from meta_client.coordinator.steps import UNDECIDED_STEPS, TwoPhaseStep, next_step
from meta_client.tracing import TRACING
from zk.forks import invalidate_after_fork, skip_after_fork

log = logging.getLogger(__name__)

StepObserver = Callable[[TwoPhaseStep, Xid], None]


@dataclass(frozen=True, slots=True)
class Shared:
    """State shared by one coordinator's transactions. Any thread."""

    log: DecisionLog
    in_flight: InFlight
    recovery: BackgroundRecovery
    closing: Closing
    observer: StepObserver | None
    counter: Counter


class CoordinatedTransaction:
    """Result of `Coordinator.transaction`. *xid* names the whole; the branches' qualifiers are `db` and `mq`."""

    def __init__(self, shared: Shared, xid: Xid, database: Participant, broker: Participant) -> None:
        self.xid = xid
        self._shared = shared
        self._database = database
        self._broker = broker
        self._step: TwoPhaseStep | None = None
        self._is_left = False  # something is left for the background recovery
        self._is_abandoned = False
        self._spans = None if TRACING.hooks is None else TRACING.hooks.transaction(self.name)
        invalidate_after_fork(self)

    @property
    def name(self) -> str:
        """Readable name, as in logs and (base64) in `pg_prepared_xacts`."""
        return self.xid.gtrid.decode()

    @property
    def step(self) -> TwoPhaseStep | None:
        """Last step taken; None before both branches are open."""
        return self._step

    def __enter__(self) -> Self:
        """Open both branches. Raises CannotEnlist, TransactionMisuse for a producer that is in a transaction,
        Unreachable, XaError, NoPartition; then neither is open."""
        assert self._step is None, "a transaction is used once"
        self._broker.check()
        self._database.check()
        self._shared.in_flight.add(self.xid)
        try:
            self._broker.begin(self.xid)
            try:
                self._database.begin(self.xid)
                self._reach(TwoPhaseStep.BEGUN)
            except BaseException:
                self._undo()
                raise
        except BaseException:
            self._remove()
            raise
        return self

    @skip_after_fork
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Commit both sides, or roll both back if the block raised.

        Returns once both are committed, without a time limit after the decision. Raises PrepareFailed (both are rolled
        back), DecisionUnknown, HeuristicOutcome, CoordinatorClosed.
        """
        try:
            if error is not None:
                self._roll_back()
            else:
                self._commit()
        finally:
            self._remove()

    def abandon(self) -> None:
        """Roll back unless decided, and stop waiting for absent participants.

        May be called by tasks other than the owner.
        """
        self._is_abandoned = True

    def _wait(self, wait_s: float) -> bool:
        """Sleep before the next attempt; return True to give up."""
        return self._is_abandoned or self._shared.closing.wait(wait_s) or self._is_abandoned

    def _remove(self) -> None:
        self._shared.in_flight.remove(self.xid)
        self._shared.counter.ended(self._step)
        if self._is_left:
            self._shared.recovery.add_ways({one.resource_id(): one.spare for one in (self._database, self._broker)})

    def _commit(self) -> None:
        if self._spans is not None:
            self._spans.begin()
        try:
            has_messages = self._broker.prepare(self.xid)
            self._reach(TwoPhaseStep.PREPARED_BROKER if has_messages else TwoPhaseStep.READ_ONLY_BROKER)
            if has_messages:
                self._database.prepare(self.xid)
                self._reach(TwoPhaseStep.PREPARED_DATABASE)
        except BaseException:
            self._roll_back()
            raise
        if has_messages:
            self._carry_out(self._decide())
        else:
            self._commit_database_alone()
        self._reach(TwoPhaseStep.FORGOTTEN)

    def _commit_database_alone(self) -> None:
        """Commit in one phase, without a decision. A connection lost now leaves the outcome unknown, as with any
        COMMIT: psycopg's error is raised, and no further step is taken."""
        try:
            self._database.commit_one_phase(self.xid)
        except PrepareFailed:
            self._roll_back()
            raise
        self._reach(TwoPhaseStep.COMMITTED_DATABASE)

    def _carry_out(self, receipts: Receipts) -> None:
        """Commit both sides as decided: the database first, so that messages appear after their rows."""
        try:
            commit_until_done(self._database, self.xid, receipts.database, self._wait)
        except HeuristicOutcome as error:
            raise error.beside((self._broker.name, BranchEnd.NOT_ENDED)) from error
        self._reach(TwoPhaseStep.COMMITTED_DATABASE)
        try:
            commit_until_done(self._broker, self.xid, receipts.broker, self._wait)
        except HeuristicOutcome as error:
            raise error.beside((self._database.name, BranchEnd.COMMITTED)) from error
        self._reach(TwoPhaseStep.COMMITTED_BROKER)
        self._forget()

    def _decide(self) -> Receipts:
        receipts = Receipts(self._database.receipt(), self._broker.receipt())
        self._is_left = True  # until it is forgotten, even if the wait is interrupted
        try:
            self._shared.log.decide(self.xid, str(receipts))
        except JournalError as error:
            raise DecisionUnknown(
                f"transaction {self.name} is prepared on both sides and its decision may or may not be on disk "
                f"({error}): mend the disk, start again and run recover()"
            ) from error
        self._reach(TwoPhaseStep.DECIDED)
        return receipts

    def _forget(self) -> None:
        self._is_left = False
        try:
            self._shared.log.forget(self.xid)
        except JournalError:
            # Both sides are committed, so return normally. The log refuses the next transaction.
            log.exception("finished transaction could not be forgotten xid=%s", self.xid)

    def _roll_back(self) -> None:
        self._undo()
        self._reach(TwoPhaseStep.ROLLED_BACK)

    def _undo(self) -> None:
        """Roll both branches back; leave unconfirmed rollbacks to the background recovery."""
        with ExitStack() as both:  # the database first; the broker even if that is interrupted
            both.callback(self._undo_one, self._broker)
            both.callback(self._undo_one, self._database)

    def _undo_one(self, participant: Participant) -> None:
        try:
            participant.rollback(self.xid)
        except BaseException as error:
            # Presumed abort: without a decision, recovery rolls back.
            log.warning("rollback pending xid=%s reason=%s", self.xid, error)
            self._shared.in_flight.add_rollback(self.xid, participant.resource_id())
            self._is_left = True
            if not isinstance(error, CoordinatorError):
                raise

    def _reach(self, step: TwoPhaseStep) -> None:
        self._step = step if self._step is None else next_step(self._step, step)
        if self._spans is not None:
            self._spans.reached(step)
        if self._is_abandoned and step in UNDECIDED_STEPS:
            raise Abandoned(f"transaction {self.name} was given up before it was decided: both sides are rolled back")
        if self._shared.observer is None:
            return
        try:
            self._shared.observer(step, self.xid)
        except Exception:
            if step in UNDECIDED_STEPS:
                raise  # rolls back, as any failure of the block would
            log.exception("observer failed after the outcome was settled xid=%s step=%s", self.xid, step.value)
