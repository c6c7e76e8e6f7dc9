"""Commit order of a transaction whose decision is a row, and the outcome of an unanswered COMMIT. Owner's thread only.

Brokers prepare; the row is inserted in the caller's transaction; the database's COMMIT decides; brokers commit. A
failure before COMMIT rolls all sides back; one after it does not. The row settles an unanswered COMMIT.
"""

import logging
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

from journal.records.xid import Xid
from meta_client.coordinator.errors import CannotEnlist, DecisionUnknown, PrepareFailed, Unreachable
from meta_client.coordinator.participants import BranchEnd
from meta_client.coordinator.phase_two import waits_s
from meta_client.protocol.errors import one_line
from meta_client.tracing import TRACING
from meta_client.transactions.branches import OpenBranches
from meta_client.transactions.errors import OtherTable
from meta_client.transactions.resolver_thread import ResolverThread
from meta_client.transactions.steps import UNDECIDED_STEPS, CommitStep, next_step
from meta_client.transactions.table import DATABASE, GRACE_S, CommitFailure, RowDecision, Session

log = logging.getLogger(__name__)

CommitObserver = Callable[[CommitStep, str], None]
Wait = Callable[[float], bool]  # sleeps the given seconds; True: give up
UNKNOWN_S: Final = 10.0  # time limit for a database that gave no answer to COMMIT


class CommitSequence:
    """One transaction, from its first step to its last."""

    def __init__(
        self,
        gtrid: str,
        session: Session,
        branches: OpenBranches,
        finisher: ResolverThread,
        wait: Wait,
        observer: CommitObserver | None = None,
    ) -> None:
        self.gtrid = gtrid
        self.step = CommitStep.BEGUN
        self._session = session
        self._branches = branches
        self._finisher = finisher
        self._wait = wait
        self._observer = observer
        self._spans = None if TRACING.hooks is None else TRACING.hooks.transaction(gtrid)

    def record(self) -> tuple[int, ...]:
        """Prepare the brokers and insert the row: all that precedes the database's COMMIT. Return the prepared brokers.
        Raises PrepareFailed or the database's error, after rolling back all sides."""
        if self._spans is not None:
            self._spans.begin()
        try:
            self._check_session()
            brokers = self._branches.prepare()
            if brokers:
                self._reach(CommitStep.PREPARED)
                if self._observer is not None:  # it may have ended the transaction
                    self._check_session()
                self._session.decide(self.gtrid, brokers)
                self._reach(CommitStep.RECORDED)
        except BaseException:
            self.roll_back()
            raise
        return brokers

    def _check_session(self) -> None:
        if (problem := self._session.problem()) is not None:
            raise PrepareFailed(self._xid, DATABASE, problem)

    def commit_recorded(self, brokers: tuple[int, ...], wait_s: float) -> None:
        """Commit the database, then *brokers*. Raises PrepareFailed or the database's error if it has rolled back, and
        then all sides are; DecisionUnknown if the outcome is unknown; once committed, as ResolverThread.send_commit."""
        if brokers:
            self._commit_database(brokers, wait_s)
        else:
            self._commit_alone()

    def roll_back(self) -> None:
        """Roll back all sides, unless that is done; only before COMMIT is sent, or once it is refused."""
        if self.step is not CommitStep.ROLLED_BACK:
            self._undo()
            self._reach(CommitStep.ROLLED_BACK)

    def _undo(self) -> None:
        try:
            self._session.rollback()
        finally:
            self._branches.rollback()

    def _commit_alone(self) -> None:
        """Commit the database without a row, as the only resource. A lost connection leaves the outcome unknown, as
        with any COMMIT."""
        try:
            self._session.commit()
        except BaseException:
            self._undo()
            raise
        self._reach(CommitStep.DECIDED)

    def _commit_database(self, brokers: tuple[int, ...], wait_s: float) -> None:
        began = time.monotonic()
        try:
            self._session.commit()
        except BaseException as error:  # the database's, or an interruption
            failure = CommitFailure.FOREIGN
            if isinstance(error, Exception):
                failure = self._session.classify_commit(error)
            if failure is CommitFailure.REFUSED:
                self.roll_back()
                raise
            is_committed = self._was_committed(brokers, began)
            if not is_committed:
                self._reach(CommitStep.ROLLED_BACK)
            if failure is CommitFailure.FOREIGN:
                if is_committed:
                    self._finish(brokers, 0.0)
                raise
            if not is_committed:
                reason = f"its COMMIT got no answer, and it turned out to be rolled back: {one_line(error)}"
                raise PrepareFailed(self._xid, DATABASE, reason) from error
        self._finish(brokers, wait_s)

    def _finish(self, brokers: tuple[int, ...], wait_s: float) -> None:
        self._reach(CommitStep.DECIDED)
        self._finisher.send_commit(self.gtrid, brokers, wait_s)
        self._reach(CommitStep.COMMIT_SENT)

    def _was_committed(self, brokers: tuple[int, ...], began: float) -> bool:
        """Settle an unanswered COMMIT by the row. Raises DecisionUnknown."""
        self._session.rollback()  # an unsent COMMIT would leave our own row lock in our way
        reason: object = ""
        for wait_s in waits_s():
            try:
                with closing(self._session.opener()()) as table:
                    if not table.identity.name.owns(self.gtrid):
                        raise OtherTable(table.identity.name.table_id)
                    if table.resolve(self.gtrid) is RowDecision.COMMIT:
                        return True
                    if not self._is_committed_anywhere(brokers, began):
                        return False
                    table.delete([self.gtrid])
                    return True
            except (Unreachable, CannotEnlist) as error:  # also of a standby that is being promoted
                reason = error
            if time.monotonic() - began > UNKNOWN_S or self._wait(wait_s):
                break
        raise DecisionUnknown(
            f"transaction {self.gtrid}: the database gave no answer to COMMIT and can't be asked ({reason}): rows and "
            f"messages are committed, or neither is, once a resolver reaches it; look before doing its work again"
        )

    def _is_committed_anywhere(self, brokers: tuple[int, ...], began: float) -> bool:
        """Decide without a row: rolled back, unless a resolver finished the transaction and deleted its row.

        Rolls back the prepared branches. Raises DecisionUnknown if decisions may have expired meanwhile and no broker
        knows the outcome.
        """
        ends = set[BranchEnd]()
        for broker_id in brokers:
            try:
                ends.add(self._finisher.roll_back(self.gtrid, broker_id))
            except Unreachable as error:
                log.info("rollback left to a resolver gtrid=%s reason=%s", self.gtrid, error)
        if BranchEnd.COMMITTED in ends:
            return True
        if BranchEnd.ROLLED_BACK in ends or time.monotonic() - began < GRACE_S / 2:
            return False
        raise DecisionUnknown(
            f"transaction {self.gtrid}: the database gave no answer to COMMIT for longer than decisions are kept, and "
            f"no broker tells how it ended: look for its rows before doing its work again"
        )

    @property
    def _xid(self) -> Xid:
        return Xid(1, self.gtrid.encode(), b"")

    def _reach(self, step: CommitStep) -> None:
        self.step = next_step(self.step, step)
        if self._spans is not None:
            self._spans.reached(step)
        if self._observer is None:
            return
        try:
            self._observer(step, self.gtrid)
        except Exception:
            if step in UNDECIDED_STEPS:
                raise  # rolls back, as any failure of the block would
            log.exception("observer failed after the outcome was settled gtrid=%s step=%s", self.gtrid, step.value)
