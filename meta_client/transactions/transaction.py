"""A row and a message, both or neither, as a `with` block. Its owner's thread only."""

import threading
from types import TracebackType
from typing import Protocol, Self

from meta_client.branch_puts import BranchHandle
from meta_client.errors import TransactionMisuse
from meta_client.producer import Producer
from meta_client.transactions.background import Background
from meta_client.transactions.branches import Branches
from meta_client.transactions.committing import Committing, Observer
from meta_client.transactions.names import TableName
from meta_client.transactions.steps import Step
from meta_client.transactions.table import Session
from zk.forks import in_its_own_process, made_here
from zk.nodes import Partition


class Host(Protocol):
    """What transactions of one client share: manager.Transactions."""

    @property
    def observer(self) -> Observer | None: ...

    def branches(self, name: TableName, gtrid: str) -> Branches: ...

    def background(self, name: TableName, session: Session) -> Background: ...


_in_use: dict[int, object] = {}  # connections with an open transaction, by identity
_lock = threading.Lock()


class Transaction:
    """What `Client.transaction` returns: the caller's database transaction, and what is sent with it. Used once, by the
    thread that enters it; `join` hands it over."""

    def __init__(self, host: Host, session: Session, producer: Producer, *, waits: bool) -> None:
        self._host = host
        self._connection: object = None  # the driver's, once it is entered
        self._session = session
        self._producer = producer
        self._waits = waits
        self._producers: list[Producer] = []
        self._branches: Branches | None = None
        self._committing: Committing | None = None
        made_here(self)

    @property
    def gtrid(self) -> str:
        """The name of the whole, which its branches and its row have. Raises TransactionMisuse until it is entered."""
        return self._open_branches().gtrid

    @property
    def step(self) -> Step | None:
        """What happened last; None before it is entered."""
        return None if self._committing is None else self._committing.step

    def send(
        self, topic: str, payload: bytes, attribute: str | None = None, partition: Partition | str | None = None
    ) -> BranchHandle:
        """Send one message as part of the transaction, to any topic on any broker, without waiting: it travels with its
        broker's PREPARE at the latest, and the block's end raises PrepareFailed unless it is there.

        The handle's `result()` waits and tells where it went. Raises NoPartition, NoBroker, LocalProtocolError and
        TypeError for what can't be sent at all, TransactionMisuse in another thread and once the block is over.
        """
        self._open_branches().check()
        handle = self._producer.send_async(topic, payload, attribute, partition)
        assert isinstance(handle, BranchHandle)
        return handle

    def join(self, producer: Producer | None = None) -> None:
        """Have *producer* work for the transaction until the block ends: what it sends, in its way (partitioner,
        compression), is part of it. Without one: the calling thread goes on with the block, in place of the one that
        did. Raises TransactionMisuse."""
        branches = self._open_branches()
        if producer is None:
            branches.join()
            return
        branches.check()
        producer.enter(branches)
        self._producers.append(producer)

    def __enter__(self) -> Self:
        """Begin. Raises CannotEnlist (NoDecisionTable, CopiedTable), TransactionMisuse, Unreachable; the connection is
        as it was then."""
        if self._committing is not None:
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

    @in_its_own_process
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit rows and messages, or roll both back when the block raised.

        On return the database has committed and brokers have been told to; with *waits* they have done so. Raises
        PrepareFailed and what the database says to COMMIT: all is rolled back. DecisionUnknown: the database can't be
        asked; a resolver ends it. With *waits*: HeuristicOutcome, CoordinatorClosed.
        """
        assert self._committing is not None
        for producer in self._producers:
            producer.leave()
        self._let_go()  # before it ends: a pool may give the connection to others then
        if error is None:
            self._committing.commit(waits=self._waits)
        else:
            self._committing.roll_back()

    def _open(self, name: TableName) -> None:
        background = self._host.background(name, self._session)
        gtrid = name.new_gtrid()
        self._branches = self._host.branches(name, gtrid)
        self._committing = Committing(
            gtrid, self._session, self._branches, background, background.closing.wait, self._host.observer
        )
        self.join(self._producer)

    def _open_branches(self) -> Branches:
        if self._branches is None:
            raise TransactionMisuse(
                "the transaction is not open: `with client.transaction(...) as transaction` opens it"
            )
        return self._branches

    def _claim(self, connection: object) -> None:
        with _lock:
            if id(connection) in _in_use:
                raise TransactionMisuse(
                    "the connection is in a transaction with messages already: end that block first; inside it, a "
                    "savepoint undoes rows alone"
                )
            _in_use[id(connection)] = self._connection = connection

    def _let_go(self) -> None:
        with _lock:
            _in_use.pop(id(self._connection), None)
