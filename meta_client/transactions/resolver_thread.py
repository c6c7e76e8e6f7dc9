"""Thread that finishes one table's decided transactions, deletes their rows, and resolves leftovers."""

import functools
import logging
import random
import threading
import time
from collections.abc import Callable, Collection
from queue import Empty, SimpleQueue
from typing import Final

from meta_client.coordinator.errors import Unreachable
from meta_client.coordinator.participants import BranchEnd
from meta_client.coordinator.phase_two import Closing
from meta_client.net.deadline import Deadline
from meta_client.transactions.brokers import Brokers, SentCommit
from meta_client.transactions.errors import NotConfirmed
from meta_client.transactions.resolver import DecidedTransaction, Resolver
from meta_client.transactions.resolver_state import Counts
from meta_client.transactions.table import Opener

log = logging.getLogger(__name__)

GATHER_S: Final = 0.05  # rows of transactions decided meanwhile are deleted together: each DELETE wakes two processes
JOIN_S: Final = 10.0  # exceeds the wait for any single reply


class ResolverThread:
    """Resolver thread of one table. Any thread may call `send_commit`, once it is started."""

    def __init__(
        self, brokers: Brokers, resolver: Resolver, interval_s: float, closing: Closing, *, resolves: bool
    ) -> None:
        """*brokers* is for callers' threads, *resolver* for this thread. *closing* interrupts callers that wait.
        *resolves*: also resolve leftovers of other processes, every *interval_s*."""
        self.closing = closing
        self._ending = threading.Event()  # ends the thread
        self._brokers = brokers
        self._resolver = resolver
        self._interval_s = interval_s
        self._resolves = resolves
        self._queue: SimpleQueue[DecidedTransaction | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="metaq resolver", daemon=True)

    @property
    def counts(self) -> Counts:
        return self._resolver.counts

    @property
    def is_started(self) -> bool:
        return self._thread.ident is not None

    def open_by(self, opener: Callable[[], Opener]) -> None:
        """Do as Resolver.open_by."""
        self._resolver.open_by(opener)

    def start(self) -> None:
        """Start the thread, unless it is started. One thread at a time."""
        if not self.is_started:
            self._thread.start()

    def send_commit(self, gtrid: str, brokers: Collection[int], wait_s: float) -> None:
        """Send COMMIT to *brokers*; wait until they have committed, *wait_s* at most. Raises HeuristicOutcome,
        NotConfirmed, CoordinatorClosed, none with a *wait_s* of 0."""
        deadline = Deadline(wait_s)
        sent: list[SentCommit] = []
        unsent: list[int] = []
        for broker_id in brokers:
            try:
                sent.append(self._brokers.send_commit(gtrid, broker_id))
            except Unreachable as error:
                unsent.append(broker_id)
                log.info("decision left to the resolver gtrid=%s reason=%s", gtrid, error)
        decided = DecidedTransaction(gtrid, tuple(sent), all_sent=not unsent)
        try:
            if wait_s:
                self._confirm(gtrid, [*sent, *unsent], deadline)
                decided = DecidedTransaction(gtrid, (), all_sent=True)
        finally:
            self._queue.put(decided)

    def _confirm(self, gtrid: str, commits: Collection[SentCommit | int], deadline: Deadline) -> None:
        missing: list[int] = []
        for one in commits:
            try:
                self._wait_answered(one, deadline)
                self._brokers.commit_until_done(gtrid, one, deadline, functools.partial(self._wait, deadline))
            except TimeoutError:
                missing.append(one if isinstance(one, int) else one.branch.broker_id)
        if missing:
            raise NotConfirmed(gtrid, missing)

    def _wait_answered(self, one: SentCommit | int, deadline: Deadline) -> None:
        """Wait for the answer to a COMMIT that was sent, which the resolver still takes later. Raises TimeoutError once
        *deadline* is over."""
        is_answered = False
        if isinstance(one, SentCommit):
            one.reply.wait_until_done(min(deadline.remaining_s(), one.deadline.remaining_s()))
            is_answered = one.reply.is_done
        if not is_answered and deadline.remaining_s() == 0:
            raise TimeoutError

    def _wait(self, deadline: Deadline, seconds: float) -> bool:
        """Wait for *seconds*; return True if callers are not to go on. Raises TimeoutError once *deadline* is over."""
        if (remaining_s := deadline.remaining_s()) == 0:
            raise TimeoutError
        return self.closing.wait(min(seconds, remaining_s))

    def roll_back(self, gtrid: str, broker_id: int) -> BranchEnd:
        """Roll back like Brokers.rollback."""
        return self._brokers.rollback(gtrid, broker_id)

    def close(self) -> None:
        """Finish decided transactions at reachable brokers, and end the thread."""
        self.closing.set()
        self._ending.set()
        self._queue.put(None)
        if self.is_started and self._thread is not threading.current_thread():
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        next_pass = self._next_pass_at() if self._resolves else float("inf")
        while not self._ending.is_set():
            try:
                if decided := self._gathered(next_pass):
                    self._resolver.finish(decided)
                if time.monotonic() >= next_pass and not self._ending.is_set():
                    next_pass = self._next_pass_at()
                    self._resolver.run_pass()
            except Exception:  # a bug: a later pass finds what this one left
                log.exception("resolver pass failed, and is repeated")
                self._ending.wait(self._interval_s)
        try:
            self._resolver.finish(self._waiting())
        finally:
            self._resolver.close()

    def _gathered(self, until: float) -> list[DecidedTransaction]:
        """Return the decided transactions queued until *until*, possibly none."""
        try:
            first = self._queue.get(timeout=None if until == float("inf") else max(0.0, until - time.monotonic()))
        except Empty:
            return []
        if first is None:
            return []
        self._ending.wait(GATHER_S)
        return [first, *self._waiting()]

    def _waiting(self) -> list[DecidedTransaction]:
        found: list[DecidedTransaction] = []
        while not self._queue.empty():
            if (one := self._queue.get()) is not None:
                found.append(one)
        return found

    def _next_pass_at(self) -> float:
        return time.monotonic() + self._interval_s * random.uniform(0.75, 1.25)  # noqa: S311 - spread, not secret
