"""Relay: moves the messages of an outbox to brokers, each exactly once.

A batch of rows is deleted, and its messages are sent, in one `Client.transaction`: its decision row makes both or
neither happen, whatever dies. Batches are moved one at a time, by one relay at a time, in the order of the rows within
a partition. Messages for a broker that is down, or has not committed its part of a batch, are deferred, and sent before
any later ones; those of topics that no other broker has stay where they are.
"""

import itertools
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self

from meta_client.client import Client
from meta_client.coordinator.errors import PrepareFailed, Unreachable
from meta_client.errors import PartitionClosed, SendRefused, TryAgain
from meta_client.net.backoff import Backoff
from meta_client.outbox import rows
from meta_client.outbox.contents import LastLook, OutboxStatus
from meta_client.outbox.decision_rows import check_adopted, check_generation
from meta_client.outbox.destinations import Destinations
from meta_client.outbox.earlier_batches import EarlierBatches
from meta_client.outbox.engines import engine_at
from meta_client.outbox.errors import NoOutbox, NotAdopted, outbox_errors, refusal_in
from meta_client.outbox.relay_batch import BrokerRefuses, RelayBatch, Unsendable
from meta_client.outbox.relay_state import BatchBranch, RelayState, branches_of
from meta_client.outbox.rows import DEFERRED_ROWS, WAITING, OutboxRow
from meta_client.outbox.tables import RELAY_TABLE, is_complete
from meta_client.outbox.waits import PASS_OVER_S, PassedOver, RelayWaits
from meta_client.producer.partitioners import ByAttribute
from meta_client.producer.producer import Producer
from meta_client.protocol.errors import MetaError, XaError, one_line
from meta_client.protocol.status import Status
from meta_client.sql.core import Connection, Engine, exc
from meta_client.transactions.errors import NoDecisionTable, NotConfirmed, RestoredTable
from zk.errors import ZooKeeperError

log = logging.getLogger(__name__)

ROWS_MAX: Final = 4_000  # of a batch
BYTES_MAX: Final = 8 * 1024 * 1024
INTERVAL_S: Final = 0.05  # between two looks at an empty outbox
PAUSES: Final = 4  # as long as a look that passed over a long backlog; PASS_OVER_S at most
CHECK_S: Final = 1.0
COMMIT_S: Final = 1.0  # wait for brokers; then messages for those that have not committed are deferred
CLOSE_S: Final = 20.0  # exceeds the wait for any single answer


@dataclass(frozen=True, slots=True)
class RelayCounts:
    """Totals of one relay since its start. Immutable."""

    moved: int = 0  # messages
    refused: int = 0  # messages set aside
    failed_passes: int = 0


class Relay:
    """Moves what waits in an outbox. As a context manager it does so in a thread of its own; or call `run_pass`.

        with Client(zookeeper) as client, Relay(client, "postgresql://relay@host/shop"):
            ...

    Any number of relays may serve one outbox: they take turns. A message that a broker refuses is set aside, with the
    reason (`metaq outbox list`), and the others go on; while a topic has no broker, its messages wait. One thread.
    """

    def __init__(
        self,
        client: Client,
        database: Engine | str,
        producer: Producer | None = None,
        *,
        rows_max: int = ROWS_MAX,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """*database*: a URL as for `metaq txn`, or an Engine of SQLAlchemy; it has a decision table, too. *producer*
        gives partitioner and compression; without one messages of one attribute go to one partition, in order. Does not
        connect. Raises CannotEnlist."""
        self.counts = RelayCounts()
        self.trouble: str | None = None  # of the last pass
        self._client = client
        self._is_own = isinstance(database, str)
        self._engine = engine_at(database) if isinstance(database, str) else database
        self._producer = producer or client.producer(partitioner=ByAttribute())
        self._rows_max = rows_max
        self._interval_s = interval_s
        self._limit = rows_max  # of the next batch
        self._batch = RelayBatch(WAITING)  # the last one
        self._has_moved = False  # by the last pass: there may be more
        self._earlier = EarlierBatches(client)
        self._waits = RelayWaits()
        self._turns = itertools.count()  # of messages that may go anywhere
        self._backoff = Backoff()
        self._check_at = 0.0  # when the generation is read again
        self._began = 0.0  # the last pass
        self._look_s = 0.0  # length of the last look that found nothing
        self._last_look = LastLook()
        self._pass_ended_at: float | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metaq relay", daemon=True)

    def check(self) -> None:
        """Look for the outbox. Raises NoOutbox, Unreachable."""
        with outbox_errors(), self._engine.connect() as connection:
            if not is_complete(connection):
                raise NoOutbox(f"{RELAY_TABLE} is empty")

    def run_pass(self) -> bool:
        """Move a batch of what waits; return True if more may be done at once. Raises nothing: `trouble` says what
        failed, and a later call repeats it."""
        try:
            if self._last_look.is_due:
                self.read_status()
            again = self._run_pass()
        except (MetaError, ZooKeeperError, exc.SQLAlchemyError) as error:
            if isinstance(error, NotAdopted):
                self._engine.dispose()  # its connections may know the table that is gone
            self._failed(one_line(error.orig if isinstance(error, exc.DBAPIError) and error.orig else error))
            return False
        except Exception as error:  # a bug, perhaps of a partitioner: a later pass repeats what this one left
            log.exception("relay pass failed, and is repeated")
            self._failed(f"{type(error).__name__}: {one_line(error)}")
            return False
        finally:
            self._pass_ended_at = time.monotonic()
        if self.trouble is not None:
            log.info("outbox can be moved again")
        self._backoff, self.trouble = Backoff(), None
        return again

    def read_status(self) -> None:
        """Count what the outbox holds, into `status`. Raises the database's errors."""
        self._last_look.begin()
        with self._engine.connect() as connection:
            self._last_look.read(connection)

    @property
    def status(self) -> OutboxStatus | None:
        """Contents of the outbox a few seconds ago; None: not known, as while a pass waits for a broker. Any thread."""
        return self._last_look.status

    @property
    def last_pass_age_s(self) -> float | None:
        """Seconds since the last pass ended; None: none has. Any thread."""
        return None if self._pass_ended_at is None else time.monotonic() - self._pass_ended_at

    @property
    def oldest_age_s(self) -> float | None:
        """Age of the oldest message that waited at the last look, as if it still did; None: none did, or it is not
        known. Any thread."""
        return self._last_look.oldest_age_s

    @property
    def pause_s(self) -> float:
        """Seconds to wait before the next pass, after one that moved nothing."""
        pause_s = min(PAUSES * self._look_s, PASS_OVER_S)
        return max(self._interval_s, pause_s, self._backoff.backoff_s(time.monotonic()))

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """Topics that no broker takes at present. Any thread."""
        return self._waits.topics.listed

    @property
    def brokers_away(self) -> tuple[int, ...]:
        """Brokers that take no messages at present: those for them wait. Any thread."""
        return self._waits.brokers.listed

    @property
    def places_away(self) -> tuple[tuple[str, int], ...]:
        """Topics and brokers that are up and do not take them: deferred messages for these wait. Any thread."""
        return self._waits.places.listed

    def __enter__(self) -> Self:
        """Begin to move. Raises NoOutbox, Unreachable."""
        self.check()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the thread after its batch. Idempotent."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)
        if self._is_own:
            self._engine.dispose()

    def _run(self) -> None:
        while not self._closing.is_set():
            if not self.run_pass():
                self._closing.wait(self.pause_s)

    def _run_pass(self) -> bool:
        self._batch, self._began = RelayBatch(WAITING), time.monotonic()
        try:
            again = self._move()
        except Unsendable as error:
            self._set_aside(error.row, str(error))
            return True
        except BrokerRefuses as error:
            self._waits.brokers.add(error.broker_id, error, self._began)
            return True
        except PrepareFailed as error:
            sent = self._batch.sent
            self._limit = max(1, len(sent) // 2)  # the refused one may be any of them; or they were too many
            match refusal_in(error):
                case None:
                    unanswered = self._batch.unanswered() if isinstance(error.__cause__, XaError) else ()
                    if not unanswered:
                        raise
                    for broker_id in unanswered:
                        self._waits.brokers.add(broker_id, error, self._began)
                case TryAgain() | PartitionClosed() | SendRefused(status=Status.NOT_AUTHORISED) as refusal:
                    self._waits.add_refusal(refusal, self._began)
                case refusal if len(sent) == 1:
                    self._set_aside(sent[0][0], one_line(refusal))
            return True
        moved = len(self._batch.sent)
        self._has_moved = bool(moved)
        self._limit = min(self._rows_max, self._limit * 2)
        self.counts = replace(self.counts, moved=self.counts.moved + moved)
        return again

    def _move(self) -> bool:
        """Move a batch; return True if there may be more."""
        now = time.monotonic()
        over = self._waits.over(now)
        with self._engine.connect() as connection:
            began = time.monotonic()
            state = rows.read_state(connection)
            is_left = self._earlier.is_left_alone(state.batches, over.brokers)
            if not (self._has_moved or is_left or rows.has_any(connection, state, over)):
                self._waits.keep(over)
                self._look_s = time.monotonic() - began
                return False
            try:
                self._check_newest(connection, now)
            except (RestoredTable, NoDecisionTable):  # what its row names was decided, which an operator could not tell
                self._commit_earlier(self._earlier.due(state.batches, over.brokers), connection)
                raise
            connection.rollback()
            recorded = rows.lock(connection)  # before MySQL takes the snapshot that reads see: what others did is in it
            if late := self._earlier.due(recorded.batches, over.brokers):
                self._commit_earlier(late, connection)
                return True
            again = self._move_batch(connection, over, recorded)
        self._waits.drop({(row.topic, handle.partition.broker_id) for row, handle in self._batch.sent})
        return again

    def _commit_earlier(self, late: Sequence[BatchBranch], connection: Connection) -> None:
        """Have brokers commit what is left of batches whose relay may have died; pass over those that do not."""
        undone = self._earlier.undone(connection, late)
        for branch in sorted(undone, key=lambda each: self._waits.brokers.due_at(each.broker_id)):
            try:
                self._earlier.commit(branch)
            except Unreachable as error:
                self._waits.brokers.add(branch.broker_id, error, self._began)
                return  # others go before the next one is tried

    def _move_batch(self, connection: Connection, over: PassedOver, state: RelayState) -> bool:
        """Move the oldest messages, deferred ones first; return True if there may be more."""
        branches: list[BatchBranch] = []
        is_full = False
        try:
            # It waits for the brokers: a batch that is prepared later may be committed earlier.
            with self._client.transaction(connection, wait=COMMIT_S) as transaction:
                check_adopted(connection, (*state.batches, *branches_of(transaction.gtrid, [0])))
                transaction.join(self._producer)
                is_full, deferred = self._fill_batch(connection, over, state.deferred)
                if sent := self._batch.sent:
                    self._batch.source.remove(connection, [row.id for row, _ in sent])
                branches = branches_of(transaction.gtrid, (handle.partition.broker_id for _, handle in sent))
                now = RelayState((*self._earlier.left(state.batches), *branches) or state.batches, deferred)
                if now != state:
                    rows.write_state(connection, now, is_moved=bool(sent))
        except NotConfirmed as error:
            branches = [branch for branch in branches if branch.broker_id not in error.brokers]
        self._earlier.confirm(branches)
        batch = self._batch
        return is_full or batch.source is DEFERRED_ROWS or bool(batch.deferred or batch.unseen)

    def _fill_batch(
        self, connection: Connection, over: PassedOver, deferred: Sequence[int]
    ) -> tuple[bool, tuple[int, ...]]:
        """Send messages of a batch, and defer those for brokers that take none; return whether there may be more, and
        the brokers for which some are deferred."""
        ready = set(deferred).difference(over.brokers)
        if ready:
            brokers = self._waits.brokers
            tried = sorted(ready.intersection(brokers.listed), key=brokers.due_at)  # with one message
            for those, count in (*(({one}, 1) for one in tried), (ready.difference(tried), self._limit)):
                if not (found := rows.oldest_deferred(connection, count, BYTES_MAX, over, those)):
                    continue
                self._batch = RelayBatch(DEFERRED_ROWS)
                self._batch.send_deferred(found, self._destinations(over), self._producer)
                self._pass_over()
                return True, tuple(deferred)
        left = {one for one in deferred if one not in ready or rows.has_deferred(connection, one)}
        found = WAITING.oldest(connection, self._limit, BYTES_MAX, passed_over=over.topics)
        self._batch.send(found, self._destinations(over), self._producer)
        self._pass_over()
        if moved := self._batch.deferred:
            rows.defer(connection, moved)
            left.update(partition.broker_id for _, partition in moved)
        is_full = len(found) == self._limit or bool(found and found[-1].until >= BYTES_MAX)
        return is_full, tuple(sorted(left))

    def _destinations(self, over: PassedOver) -> Destinations:
        return Destinations(self._client.topology, self._producer, over, self._turns)

    def _pass_over(self) -> None:
        batch = self._batch
        self._waits.add(batch.topics, batch.brokers, batch.places, self._began)

    def _check_newest(self, connection: Connection, now: float) -> None:
        """Check once a second that the database was not restored to an earlier time: rows that were moved would be
        there again. Raises RestoredTable; Unreachable if that is unknown."""
        if self._client.is_direct or now < self._check_at:
            return
        self._check_at = 0.0
        check_generation(connection, self._client.session)
        self._check_at = now + CHECK_S

    def _set_aside(self, row: OutboxRow, reason: str) -> None:
        with self._engine.connect() as connection:
            self._batch.source.set_aside(connection, row.id, reason)
        self.counts = replace(self.counts, refused=self.counts.refused + 1)
        log.error("message set aside, see metaq outbox list id=%d topic=%s reason=%s", row.id, row.topic, reason)

    def _failed(self, reason: str) -> None:
        self.counts = replace(self.counts, failed_passes=self.counts.failed_passes + 1)
        self._backoff.failed(time.monotonic())
        self._check_at = 0.0
        if reason != self.trouble:
            log.warning("outbox not moved, and tried again reason=%s", reason)
        self.trouble = reason
