"""The thread that finishes decided transactions of one table, deletes their rows, and looks for what was left."""

import logging
import random
import threading
import time
from collections.abc import Collection
from queue import Empty, SimpleQueue
from typing import Final

from meta_client.coordinator.errors import Unreachable
from meta_client.coordinator.participants import Ended
from meta_client.transactions.brokers import Brokers, Told
from meta_client.transactions.resolver import Counts, Decided, Resolver

log = logging.getLogger(__name__)

GATHER_S: Final = 0.01  # what is decided meanwhile is deleted together
JOIN_S: Final = 10.0  # longer than any one answer is waited for


class Background:
    """One table's thread. Any thread may `tell`; it starts with the first, or with `start`."""

    def __init__(self, brokers: Brokers, resolver: Resolver, interval_s: float, *, looks: bool) -> None:
        """*looks*: whether it resolves what others left, too, every *interval_s*."""
        self.closing = threading.Event()  # callers wait no more for what is decided
        self._ending = threading.Event()  # nor does the thread
        self._brokers = brokers
        self._resolver = resolver
        self._interval_s = interval_s
        self._looks = looks
        self._queue: SimpleQueue[Decided | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="metaq resolver", daemon=True)
        self._starting = threading.Lock()

    @property
    def counts(self) -> Counts:
        """What it has done."""
        return self._resolver.counts

    def start(self) -> None:
        """Begin. Idempotent."""
        with self._starting:
            if self._thread.ident is None and not self._ending.is_set():
                self._thread.start()

    def tell(self, gtrid: str, brokers: Collection[int], *, waits: bool) -> None:
        """Have *brokers* commit; with *waits*, once they have. Raises HeuristicOutcome, CoordinatorClosed then."""
        told: list[Told] = []
        untold: list[int] = []
        for broker_id in brokers:
            try:
                told.append(self._brokers.tell(gtrid, broker_id))
            except Unreachable as error:
                untold.append(broker_id)
                log.info("broker is told of a decision later gtrid=%s reason=%s", gtrid, error)
        if waits:
            for one in told:
                self._brokers.commit_until_done(gtrid, one, self.closing.wait)
            for broker_id in untold:
                self._brokers.commit_until_done(gtrid, broker_id, self.closing.wait)
            told, untold = [], []
        self._queue.put(Decided(gtrid, tuple(told), is_whole=not untold))

    def roll_back(self, gtrid: str, broker_id: int) -> Ended:
        """As Brokers.rollback."""
        return self._brokers.rollback(gtrid, broker_id)

    def close(self) -> None:
        """Finish what is decided, as far as it can be reached, and end."""
        self.closing.set()
        self._ending.set()
        self._queue.put(None)
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        next_look = self._after_a_look() if self._looks else float("inf")
        while not self._ending.is_set():
            try:
                if decided := self._gathered(next_look):
                    self._resolver.finish(decided)
                if time.monotonic() >= next_look and not self._ending.is_set():
                    next_look = self._after_a_look()
                    self._resolver.look()
            except Exception:  # a mistake of ours: what it left undone, a look finds
                log.exception("a look failed, and is repeated")
                self._ending.wait(self._interval_s)
        try:
            self._resolver.finish(self._waiting())
        finally:
            self._resolver.close()

    def _gathered(self, until: float) -> list[Decided]:
        """What was decided, or nothing at *until*."""
        try:
            first = self._queue.get(timeout=None if until == float("inf") else max(0.0, until - time.monotonic()))
        except Empty:
            return []
        if first is None:
            return []
        self._ending.wait(GATHER_S)
        return [first, *self._waiting()]

    def _waiting(self) -> list[Decided]:
        found: list[Decided] = []
        while not self._queue.empty():
            if (one := self._queue.get()) is not None:
                found.append(one)
        return found

    def _after_a_look(self) -> float:
        return time.monotonic() + self._interval_s * random.uniform(0.75, 1.25)  # noqa: S311 - spread, not secret
