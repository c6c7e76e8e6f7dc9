"""A row and a message, both or neither, as a `with` block. Owner's thread only."""

import math
import weakref
from typing import Self

from meta_client.errors import TransactionMisuse
from meta_client.producer.branch_batch import BranchHandle
from meta_client.producer.producer import Producer
from meta_client.transactions.branches import OpenBranches
from meta_client.transactions.commit_sequence import CommitSequence
from meta_client.transactions.manager import Transactions
from meta_client.transactions.names import TableName
from meta_client.transactions.steps import CommitStep
from meta_client.transactions.table import Session
from zk.forks import invalidate_after_fork, skip_after_fork
from zk.tree.nodes import Partition

# Open transactions by their connection's identity. Without a lock, which a fork in another thread might copy locked.
# Weakly: an exception of a signal's handler may keep a block's end away, and a pool gives the connection out again.
_in_use: "dict[int, weakref.ref[Transaction]]" = {}


class Transaction:
    """One use of `Client.transaction`: the caller's database transaction and the messages sent with it. Used once, by
    the thread that enters it; `join` hands it over."""

    def __init__(self, shared: Transactions, session: Session, wait: bool | float) -> None:
        self._shared = shared
        self._connection: object = None  # the driver's; set on entry
        self._session = session
        self._wait_s = math.inf if wait is True else float(wait)
        self._producers: list[Producer] = []
        self._branches: OpenBranches | None = None
        self._sequence: CommitSequence | None = None
        self._recorded: tuple[int, ...] = ()
        self._is_left = False
        invalidate_after_fork(self)

    @property
    def gtrid(self) -> str:
        """Name of the transaction, shared by its branches and its row. Raises TransactionMisuse until it is entered."""
        return self._open_branches().gtrid

    @property
    def step(self) -> CommitStep | None:
        """Last step taken; None before entry."""
        return None if self._sequence is None else self._sequence.step

    def send(
        self, topic: str, payload: bytes, attribute: str | None = None, partition: Partition | str | None = None
    ) -> BranchHandle:
        """Send one message as part of the transaction, to any topic on any broker, without waiting: it travels with its
        broker's PREPARE at the latest, and the block's end raises PrepareFailed if it is missing there.

        The handle's `result()` waits and returns where the message went. Raises NoPartition, NoBroker,
        LocalProtocolError and TypeError for a message that can't be sent at all, TransactionMisuse in another thread
        and once the block is over.
        """
        branches = self._open_branches()
        branches.check()
        return self._shared.add(branches, topic, payload, attribute, partition)

    def join(self, producer: Producer | None = None) -> None:
        """Make everything *producer* sends until the block ends part of the transaction, with its partitioner and
        compression. Without a producer, make the calling thread the owner of the block. Raises TransactionMisuse."""
        branches = self._open_branches()
        if producer is None:
            branches.transfer_to_caller()
            return
        branches.check()
        producer.enter(branches)
        self._producers.append(producer)

    def __enter__(self) -> Self:
        """Begin. Raises CannotEnlist (NoDecisionTable, CopiedTable), TransactionMisuse, Unreachable, leaving the
        connection unchanged."""
        if self._sequence is not None:
            raise TransactionMisuse("a transaction is used once: make another one with client.transaction(...)")
        connection = self._session.driver_connection()
        self._claim(connection)
        try:
            identity = self._session.begin()
            try:
                self._open(identity.name)
            except BaseException:
                self._session.rollback()
                raise
        except BaseException:
            self._let_go()
            raise
        return self

    @skip_after_fork
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Commit rows and messages, or roll both back if the block raised.

        On return the database has committed and COMMIT was sent to the brokers; with *wait* they have committed, too.
        Raises PrepareFailed or the database's error if all is rolled back; DecisionUnknown if the database can't be
        asked, and a resolver will finish it. With *wait*, once committed: HeuristicOutcome, NotConfirmed,
        CoordinatorClosed. A second call raises TransactionMisuse: it would undo what the connection does now, and
        branches whose rows may be committed.
        """
        sequence = self._sequence
        assert sequence is not None
        if self._is_left:
            raise TransactionMisuse("the block has ended: leave its end to `with`, or call __exit__ once")
        try:  # at once: what a signal's handler raises from here on rolls back
            self._is_left = True
            self._leave()
            if error is None:
                self._recorded = sequence.record()
            else:
                sequence.roll_back()
        except BaseException:
            sequence.roll_back()
            raise
        if error is None:
            sequence.commit_recorded(self._recorded, self._wait_s)

    @skip_after_fork
    def vote(self) -> None:
        """Prepare the brokers and insert the row: the first half of the block's end, where a framework commits the
        database. Raises as the end, after rolling back everything."""
        sequence = self._sequence
        assert sequence is not None
        try:
            self._leave()
            self._recorded = sequence.record()
        except BaseException:
            sequence.roll_back()
            raise

    @skip_after_fork
    def finish(self) -> None:
        """Carry out the decision: the second half, after the database was to commit or roll back. Session.commit
        reports which, or that it is unknown. Raises as the end."""
        assert self._sequence is not None
        self._sequence.commit_recorded(self._recorded, self._wait_s)

    def _leave(self) -> None:
        for producer in self._producers:
            producer.leave()
        self._let_go()  # before the end: a pool may hand out the connection afterwards

    def _open(self, name: TableName) -> None:
        resolver_thread = self._shared.resolver_thread(name, self._session)
        gtrid = name.new_gtrid()
        self._branches = self._shared.branches(name, gtrid)
        self._sequence = CommitSequence(
            gtrid, self._session, self._branches, resolver_thread, resolver_thread.closing.wait, self._shared.observer
        )

    def _open_branches(self) -> OpenBranches:
        if self._branches is None:
            raise TransactionMisuse(
                "the transaction is not open: `with client.transaction(...) as transaction` opens it"
            )
        return self._branches

    def _claim(self, connection: object) -> None:
        self._connection, mine = connection, weakref.ref(self)
        if (holder := _in_use.setdefault(id(connection), mine)) is not mine:
            if (other := holder()) is not None and not other._is_left:  # else an interrupt cut its end short
                raise TransactionMisuse(
                    "the connection is in a transaction with messages already: end that block first; inside it, a "
                    "savepoint undoes rows alone"
                )
            _in_use[id(connection)] = mine

    def _let_go(self) -> None:
        _in_use.pop(id(self._connection), None)
