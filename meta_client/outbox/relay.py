"""Relay: moves the messages of an outbox to brokers, each exactly once.

A batch of rows is deleted, and its messages are sent, in one `Client.transaction`: its decision row makes both or
neither happen, whatever dies. Batches are moved one at a time, by one relay at a time, in the order of the rows within
a topic: while a broker has not committed its part of a batch, the topics of that part wait.
"""

import logging
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self

from meta_client.client import Client
from meta_client.coordinator.errors import PrepareFailed, Unreachable
from meta_client.errors import NoBroker, NoPartition, PartitionClosed, TryAgain
from meta_client.net.backoff import Backoff
from meta_client.outbox import rows
from meta_client.outbox.batches import BatchBranch, branches_of
from meta_client.outbox.earlier_batches import EarlierBatches
from meta_client.outbox.engines import engine_at
from meta_client.outbox.errors import NoOutbox, outbox_errors, refusal_in
from meta_client.outbox.rows import OutboxRow, OutboxStatus
from meta_client.outbox.tables import RELAY_TABLE, is_complete
from meta_client.producer.branch_batch import BranchHandle
from meta_client.producer.outgoing import parse_partition
from meta_client.producer.partitioners import ByAttribute
from meta_client.producer.producer import Producer
from meta_client.protocol.errors import LocalProtocolError, MetaError, XaError
from meta_client.sql.core import Connection, Engine, exc
from meta_client.transactions.errors import NotConfirmed
from meta_client.transactions.generation import check_noted
from meta_client.transactions.statements import one_line
from zk.errors import ZooKeeperError
from zk.tree.paths import InvalidName

log = logging.getLogger(__name__)

ROWS_MAX: Final = 4_000  # of a batch
BYTES_MAX: Final = 8 * 1024 * 1024
INTERVAL_S: Final = 0.05  # between two looks at an empty outbox
PAUSES: Final = 4  # as long as a look that passed over a long backlog; PASS_OVER_S at most
PASS_OVER_S: Final = 1.0  # a topic that no broker takes now
PASS_OVER_S_MAX: Final = 10.0  # where it takes long to find out, as of a broker that gives no answer
STATUS_S: Final = 5.0
CHECK_S: Final = 1.0
COMMIT_S: Final = 1.0  # wait for brokers; then topics at those that have not committed are passed over
CLOSE_S: Final = 20.0  # exceeds the wait for any single answer


@dataclass(frozen=True, slots=True)
class RelayCounts:
    """Totals since the start. Immutable."""

    moved: int = 0  # messages
    refused: int = 0  # messages set aside
    failed_passes: int = 0


class _Unsendable(Exception):
    """The message of a row can't be sent at all."""

    def __init__(self, row: OutboxRow, error: Exception) -> None:
        super().__init__(one_line(error))
        self.row = row


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
        self._sent: list[tuple[OutboxRow, BranchHandle]] = []  # of the last one
        self._has_moved = False  # by the last pass: there may be more
        self._earlier = EarlierBatches(client)
        self._passed_over: dict[str, float] = {}  # by topic that no broker takes: when it is tried again
        self._backoff = Backoff()
        self._check_at = 0.0  # when the generation is read again
        self._began = 0.0  # the last pass
        self._look_s = 0.0  # length of the last look that found nothing
        self._status: OutboxStatus | None = None
        self._status_read_at = -STATUS_S
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
            if time.monotonic() >= self._status_read_at + STATUS_S:
                self.read_status()
            again = self._run_pass()
        except (MetaError, ZooKeeperError, exc.SQLAlchemyError) as error:
            self._failed(one_line(error.orig if isinstance(error, exc.DBAPIError) and error.orig else error))
            return False
        finally:
            self._pass_ended_at = time.monotonic()
        if self.trouble is not None:
            log.info("outbox can be moved again")
        self._backoff, self.trouble = Backoff(), None
        return again

    def read_status(self) -> None:
        """Count what the outbox holds, into `status`. Raises the database's errors."""
        self._status, self._status_read_at = None, time.monotonic()
        with self._engine.connect() as connection:
            self._status = rows.status(connection)

    @property
    def status(self) -> OutboxStatus | None:
        """Contents of the outbox a few seconds ago; None: not known, as while a pass waits for a broker. Any thread."""
        return self._status if time.monotonic() < self._status_read_at + 3 * STATUS_S else None

    @property
    def last_pass_age_s(self) -> float | None:
        """Seconds since the last pass ended; None: none has. Any thread."""
        return None if self._pass_ended_at is None else time.monotonic() - self._pass_ended_at

    @property
    def oldest_age_s(self) -> float | None:
        """Age of the oldest message that waited at the last look, as if it still did; None: none did, or it is not
        known. Any thread."""
        if (status := self.status) is None or status.oldest_age_s is None:
            return None
        return status.oldest_age_s + time.monotonic() - self._status_read_at

    @property
    def pause_s(self) -> float:
        """Seconds to wait before the next pass, after one that moved nothing."""
        pause_s = min(PAUSES * self._look_s, PASS_OVER_S)
        return max(self._interval_s, pause_s, self._backoff.backoff_s(time.monotonic()))

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """Topics that no broker takes at present. Any thread."""
        return tuple(sorted(self._passed_over.copy()))

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
            try:
                again = self.run_pass()
            except Exception:  # a bug: a later pass repeats what this one left
                log.exception("relay pass failed, and is repeated")
                again = False
            if not again:
                self._closing.wait(self.pause_s)

    def _run_pass(self) -> bool:
        self._sent, self._began = [], time.monotonic()
        try:
            is_full = self._move()
        except _Unsendable as error:
            self._set_aside(error.row, str(error))
            return True
        except PrepareFailed as error:
            self._limit = max(1, len(self._sent) // 2)  # the refused one may be any of them; or they were too many
            match refusal_in(error):
                case None:
                    unanswered = self._unanswered() if isinstance(error.__cause__, XaError) else ()
                    if not unanswered:
                        raise
                    self._pass_over(unanswered, error)
                case TryAgain() | PartitionClosed() as refusal:
                    self._pass_over((refusal.destination.topic,), refusal)
                case refusal if len(self._sent) == 1:
                    self._set_aside(self._sent[0][0], one_line(refusal))
            return True
        self._has_moved = bool(self._sent)
        self._limit = min(self._rows_max, self._limit * 2)
        self.counts = replace(self.counts, moved=self.counts.moved + len(self._sent))
        return is_full

    def _move(self) -> bool:
        """Move a batch into `_sent`; return True if it was a full one."""
        now = time.monotonic()
        over = {topic: until for topic, until in self._passed_over.items() if until > now}
        with self._engine.connect() as connection:
            began = time.monotonic()
            if not self._has_moved and not rows.has_waiting(connection, over):
                self._passed_over, self._look_s = over, time.monotonic() - began
                return False
            self._check_newest(connection, now)
            connection.rollback()
            recorded = rows.lock(connection)  # before MySQL takes the snapshot that reads see: what others did is in it
            left = self._earlier.left(recorded)
            if late := [branch for branch in left if not over.keys() >= set(branch.topics)]:
                self._commit_earlier(late, connection)
                return True
            held = {topic for branch in left for topic in branch.topics}
            waiting = self._move_batch(connection, over.keys() | held, left)
        taken = {row.topic for row, _ in self._sent}
        self._passed_over = {topic: until for topic, until in self._passed_over.items() if topic not in taken}
        return len(waiting) == self._limit or bool(waiting and waiting[-1].until >= BYTES_MAX)

    def _commit_earlier(self, late: Sequence[BatchBranch], connection: Connection) -> None:
        """Have brokers commit what is left of batches before, whose relay may have died; pass over the topics of those
        that do not."""
        undone = [branch for branch in late if branch.broker_id in rows.brokers_of(connection, branch.gtrid)]
        connection.rollback()  # unlocked: a broker may take seconds to answer
        self._earlier.confirm(set(late).difference(undone))
        for branch in undone:
            try:
                self._earlier.commit(branch)
            except Unreachable as error:
                self._pass_over(branch.topics, error)

    def _move_batch(
        self, connection: Connection, over: Collection[str], left: Sequence[BatchBranch]
    ) -> Sequence[OutboxRow]:
        """Move the oldest messages of topics that are not *over*; return those that were looked at. *left*: of batches
        before."""
        branches: list[BatchBranch] = []
        waiting: Sequence[OutboxRow] = ()
        try:
            # It waits for the brokers: a batch that is prepared later may be committed earlier.
            with self._client.transaction(connection, wait=COMMIT_S) as transaction:
                transaction.join(self._producer)
                waiting = rows.oldest(connection, over, self._limit, BYTES_MAX)
                self._send(waiting)
                if self._sent:
                    rows.remove(connection, [row.id for row, _ in self._sent])
                    places = ((row.topic, handle.partition) for row, handle in self._sent)
                    branches = branches_of(transaction.gtrid, places)
                    rows.record_batches(connection, [*left, *branches])
        except NotConfirmed as error:
            branches = [branch for branch in branches if branch.broker_id not in error.brokers]
        self._earlier.confirm(branches)
        return waiting

    def _check_newest(self, connection: Connection, now: float) -> None:
        """Check once a second that the database was not restored to an earlier time: rows that were moved would be
        there again. Raises RestoredTable; Unreachable if that is unknown."""
        if self._client.is_direct or now < self._check_at:
            return
        self._check_at = 0.0
        check_noted(self._client.session, rows.table_name(connection), lambda: rows.generation(connection))
        self._check_at = now + CHECK_S

    def _send(self, waiting: Sequence[OutboxRow]) -> None:
        """Send the messages of *waiting*, without waiting; those of topics without a broker stay."""
        over = set[str]()
        for row in waiting:
            if row.topic in over:
                continue
            try:
                handle = self._producer.send_async(row.topic, row.payload, row.attribute, row.partition)
            except (NoPartition, NoBroker) as error:
                if isinstance(error, NoPartition) and self._is_up(row):
                    raise _Unsendable(row, error) from error
                self._pass_over((row.topic,), error)
                over.add(row.topic)
            except (LocalProtocolError, InvalidName, TypeError, ValueError) as error:
                raise _Unsendable(row, error) from error
            else:
                assert isinstance(handle, BranchHandle)  # the producer has joined the block
                self._sent.append((row, handle))

    def _is_up(self, row: OutboxRow) -> bool:
        """Return whether the broker that the message names is up: then it does not have the partition."""
        wanted = None if row.partition is None else parse_partition(row.partition)
        return wanted is not None and wanted.broker_id in self._client.topology.view(row.topic, 0).urls

    def _unanswered(self) -> set[str]:
        """Return the topics of messages that no broker has answered."""
        found = set[str]()
        for row, handle in self._sent:
            try:
                handle.result(0)
            except MetaError:
                found.add(row.topic)
        return found

    def _pass_over(self, topics: Iterable[str], error: Exception) -> None:
        """Leave the messages of *topics* where they are for a moment; the others need not wait for them."""
        now = time.monotonic()
        for topic in topics:
            if topic not in self._passed_over:
                log.warning("messages wait topic=%s reason=%s", topic, one_line(error))
            self._passed_over[topic] = now + max(PASS_OVER_S, min(3 * (now - self._began), PASS_OVER_S_MAX))

    def _set_aside(self, row: OutboxRow, reason: str) -> None:
        with self._engine.connect() as connection:
            rows.set_aside(connection, row.id, reason)
        self.counts = replace(self.counts, refused=self.counts.refused + 1)
        log.error("message set aside, see metaq outbox list id=%d topic=%s reason=%s", row.id, row.topic, reason)

    def _failed(self, reason: str) -> None:
        self.counts = replace(self.counts, failed_passes=self.counts.failed_passes + 1)
        self._backoff.failed(time.monotonic())
        self._check_at = 0.0
        if reason != self.trouble:
            log.warning("outbox not moved, and tried again reason=%s", reason)
        self.trouble = reason
