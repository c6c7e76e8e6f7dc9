"""Coordinator of a database and a broker for tasks: the rules of its twin, meta_client/coordinator."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from journal.records.xid import Xid
from meta_client.aio.bridge.bridge import run, wait
from meta_client.aio.net.workers import LoopEvent
from meta_client.aio.producer.producer import Producer
from meta_client.coordinator.background_recovery import JOIN_S
from meta_client.coordinator.coordinator import TIMEOUT_S
from meta_client.coordinator.coordinator import Coordinator as Rules
from meta_client.coordinator.decision_log import DecisionLog
from meta_client.coordinator.participants import Participant
from meta_client.coordinator.recovery import RecoveredTransaction
from meta_client.coordinator.status import CoordinatorStatus
from meta_client.coordinator.steps import TwoPhaseStep
from meta_client.coordinator.transaction import CoordinatedTransaction as TransactionRules
from meta_client.coordinator.transaction import StepObserver
from meta_client.producer.xa_verbs import topic_names
from zk.forks import invalidate_after_fork, skip_after_fork

if TYPE_CHECKING:
    import psycopg

ENDING_S: Final = 30.0  # upper bound of one verb, one statement and one fsync
_Outcome = TypeVar("_Outcome")

log = logging.getLogger(__name__)


class _Log(DecisionLog):
    """The decision log for tasks: a thread waits for the disk."""

    def decide(self, xid: Xid, participants: str) -> None:
        wait(_to_its_end(asyncio.to_thread(super().decide, xid, participants)))

    def forget(self, xid: Xid) -> None:
        wait(_to_its_end(asyncio.to_thread(super().forget, xid)))

    def unfinished(self) -> dict[Xid, str]:
        return wait(asyncio.to_thread(super().unfinished))

    def close(self) -> None:
        wait(_to_its_end(asyncio.to_thread(super().close)))


class _Lock:
    """A lock with a synchronous interface, inside `run`."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    def __enter__(self) -> None:
        wait(self._lock.acquire())

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _Tasks:
    """Runs the background recovery in a task."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Callable[[], None]) -> None:
        self._task = asyncio.create_task(run(work), name="metaq recovery")

    def join(self) -> None:
        if self._task is not None:
            wait(asyncio.wait({self._task}, timeout=JOIN_S))


class _Rules(Rules):
    """The coordinator's rules over asynchronous connections and producers."""

    def _enlist(self, connection: Any) -> Participant:
        from meta_client.aio.postgres import PostgresParticipant  # psycopg: metaq-broker[postgres]

        return PostgresParticipant(connection)

    def _enlist_producer(self, producer: Any, topics: tuple[str, ...] = (), timeout_s: float = 0) -> Participant:
        return super()._enlist_producer(cast(Producer, producer).rules, topics, timeout_s)


class Coordinator:
    """Transactions over a psycopg 3 AsyncConnection and a producer of meta_client.aio. For one event loop; each task
    brings its own connection and producer. The directory is as in meta_client.coordinator.Coordinator."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        invalidate_after_fork(self)

    @classmethod
    async def open(cls, directory: Path | str, name: str = "metaq", *, observer: StepObserver | None = None) -> Self:
        """Open or create the decision log of coordinator *name* in *directory*; then `await recover`.

        *observer* is a plain function, called with (step, xid) after every step; before the decision an exception
        from it rolls back, after it is logged. Raises InvalidName, LogInUse, ForeignLog, CopiedLog, JournalError.
        """
        decisions = await asyncio.to_thread(_Log.open, Path(directory), name)
        return cls(_Rules(decisions, observer, LoopEvent(asyncio.get_running_loop()), _Lock(), _Tasks()))

    @property
    def name(self) -> str:
        """Prefix of every identifier that this coordinator creates; it recovers no others."""
        return self._rules.name

    def transaction(
        self,
        connection: "psycopg.AsyncConnection[Any]",
        producer: Producer,
        *,
        topics: Iterable[str],
        timeout_s: int = TIMEOUT_S,
    ) -> "CoordinatedTransaction":
        """Return an `async with` block in which *connection* and *producer* work for one transaction: both commit, or
        neither. Like meta_client.coordinator.Coordinator.transaction, but errors are raised on entry."""
        return CoordinatedTransaction(self, connection, producer, topic_names(topics), timeout_s)

    async def recover(
        self, connections: "Iterable[psycopg.AsyncConnection[Any]]" = (), producers: Iterable[Producer] = ()
    ) -> list[RecoveredTransaction]:
        """Finish transactions in doubt after a crash: commit decided ones, roll back the rest. Return one report each.
        Like meta_client.coordinator.Coordinator.recover."""
        return await run(cast(Any, self._rules.recover), connections, producers)

    async def forget(self, xid: Xid) -> None:
        """Drop the decision of a transaction that ended otherwise (HeuristicOutcome), after it was repaired by hand.

        Raises CoordinatorError if there is no such decision, or the transaction is still in progress.
        """
        await run(self._rules.forget, xid)

    def status(self) -> CoordinatorStatus:
        """Return what it has open, and what it has done. Any thread. As meta_client.coordinator.Coordinator.status."""
        return self._rules.status()

    async def close(self) -> None:
        """Interrupt waits for absent participants, and release the log. Idempotent. Raises StorageFailed if the log had
        failed.

        Tasks inside a decided transaction get CoordinatorClosed; `recover` finishes it next time.
        """
        await run(self._rules.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class CoordinatedTransaction:
    """Result of `Coordinator.transaction`. Owner's task only; used once."""

    def __init__(
        self,
        coordinator: Coordinator,
        connection: "psycopg.AsyncConnection[Any]",
        producer: Producer,
        topics: tuple[str, ...],
        timeout_s: int,
    ) -> None:
        self.connection = connection
        self.producer = producer
        self.topics = topics
        self.timeout_s = timeout_s
        self._coordinator = coordinator
        invalidate_after_fork(self)
        self._rules: TransactionRules | None = None

    @property
    def xid(self) -> Xid | None:
        """Identifier, set on entry; the branches' qualifiers are `db` and `mq`."""
        return None if self._rules is None else self._rules.xid

    @property
    def step(self) -> TwoPhaseStep | None:
        """Last step taken; None before both branches are open."""
        return None if self._rules is None else self._rules.step

    async def __aenter__(self) -> Self:
        """Open both branches. Raises CannotEnlist, Unreachable, XaError, NoPartition, CoordinatorClosed; then neither
        is open."""
        assert self._rules is None, "a transaction is used once"
        rules: Any = self._coordinator._rules
        self._rules = rules.transaction(self.connection, self.producer, topics=self.topics, timeout_s=self.timeout_s)
        await run(self._rules.__enter__)
        return self

    @skip_after_fork
    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Commit both sides, or roll both back if the block raised.

        Returns once both are committed, without a time limit after the decision. Raises PrepareFailed (both are rolled
        back), DecisionUnknown, HeuristicOutcome, CoordinatorClosed. A task cancelled meanwhile rolls back before the
        decision and commits after it; the background recovery finishes unconfirmed branches.
        """
        assert self._rules is not None
        # In a separate task, so that cancellation does not interrupt a statement or a broker's reply.
        ending = asyncio.create_task(run(self._rules.__exit__, kind, error, trace))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            if not ending.done():
                self._rules.abandon()
                await _settled(ending)
            raise


async def _to_its_end(work: Coroutine[Any, Any, _Outcome]) -> _Outcome:
    """Return the result of *work*, waiting for it even if the calling task is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _settled(task)
        raise


async def _settled(task: "asyncio.Future[Any]") -> None:
    """Wait until *task* is done, even if cancelled; cancel *task* after ENDING_S."""
    loop = asyncio.get_running_loop()
    due = loop.call_later(ENDING_S, task.cancel)
    try:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):  # the caller is cancelled already, and raises it
                await asyncio.wait({task})
    finally:
        due.cancel()
    if not task.cancelled() and (error := task.exception()) is not None:
        log.info("what a cancelled task had begun ended error=%s", error)
