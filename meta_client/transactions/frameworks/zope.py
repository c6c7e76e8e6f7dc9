"""Messages sent with a zope.sqlalchemy session's rows in Zope's `transaction`, as used in Pyramid.

    session.add(Parcel(...))
    send_on_commit(client, session, "orders", b"...")
    transaction.commit()

Messages wait in a data manager of the transaction. Managers whose sort key begins with ~ vote last: this one prepares
the brokers and inserts the row, then zope.sqlalchemy's sends COMMIT in its vote, and that decides. If the vote fails,
the row tells the outcome. The only file here that imports Zope's packages.
"""

import logging
import sys
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.orm import Session, scoped_session
from transaction import manager as thread_manager
from transaction.interfaces import IDataManagerSavepoint, ISavepointDataManager
from zope.interface import implementer
from zope.sqlalchemy import mark_changed

from meta_client.client import Client
from meta_client.coordinator.errors import DecisionUnknown, PrepareFailed
from meta_client.errors import TransactionMisuse
from meta_client.producer.outgoing import payload_bytes
from meta_client.transactions.sqlalchemy import SqlAlchemySession
from meta_client.transactions.table import CommitFailure
from meta_client.transactions.transaction import Transaction
from zk.tree.nodes import Partition

log = logging.getLogger(__name__)

_KEY: Final = object()  # key of our data in a transaction
_Message = tuple[str, bytes, str | None, Partition | str | None]


def send_on_commit(
    client: Client,
    session: Session | scoped_session[Any],
    topic: str,
    payload: bytes,
    attribute: str | None = None,
    partition: Partition | str | None = None,
    *,
    transaction_manager: Any = thread_manager,
) -> None:
    """Send one message if, and only if, the transaction of *transaction_manager* commits the rows of *session*.

    Brokers get it when the transaction's commit() returns. That then raises what Client.transaction's block would, and
    is rolled back. Rolling back to a savepoint drops later messages. The session joins the transaction, registered with
    zope.sqlalchemy or not. Raises TransactionMisuse if it has messages of another client, TypeError for a payload that
    is not bytes.
    """
    payload = payload_bytes(payload)
    own: Session = session() if isinstance(session, scoped_session) else session
    own.connection()  # a registered session joins in its own way
    mark_changed(own, transaction_manager)  # without rows it would otherwise not be committed
    current = transaction_manager.get()
    try:
        joined: dict[int, _DataManager] = current.data(_KEY)
    except KeyError:
        joined = {}
        current.set_data(_KEY, joined)
    if (found := joined.get(id(own))) is None:
        found = joined[id(own)] = _DataManager(client, own, transaction_manager)
        current.join(found)
    if found.client is not client:
        raise TransactionMisuse("the transaction has messages of another client: send all of them with one")
    found.messages.append((topic, payload, attribute, partition))


@implementer(ISavepointDataManager)
class _DataManager:
    """The messages of one session in one transaction."""

    def __init__(self, client: Client, session: Session, transaction_manager: Any) -> None:
        self.client = client
        self.messages: list[_Message] = []
        self.transaction_manager = transaction_manager
        self._session = session
        self._voted: tuple[Transaction, _ZopeSession] | None = None

    def sortKey(self) -> str:  # noqa: N802 - Zope's name
        """Return a key that sorts behind ordinary managers and before zope.sqlalchemy's, which commits in its vote."""
        return f"~metaq:{id(self)}"

    def savepoint(self) -> "_Savepoint":
        return _Savepoint(self.messages)

    def abort(self, transaction: object) -> None:
        self.messages.clear()

    def tpc_begin(self, transaction: object) -> None:
        """Do nothing."""

    def commit(self, transaction: object) -> None:
        """Do nothing: sessions are flushed already."""

    def tpc_vote(self, transaction: object) -> None:
        if not self.messages:
            return
        session = _ZopeSession(self._session)
        open_one = self.client.transaction(session)
        open_one.__enter__()
        try:
            for message in self.messages:
                open_one.send(*message)
        except BaseException:
            open_one.__exit__(*sys.exc_info())
            raise
        open_one.vote()
        session.watch()
        self._voted = open_one, session

    def tpc_finish(self, transaction: object) -> None:
        if self._voted is not None:
            (open_one, _), self._voted = self._voted, None
            open_one.finish()

    def tpc_abort(self, transaction: object) -> None:
        """Undo the vote, unless the row shows that the database has committed."""
        if self._voted is None:
            return
        (open_one, session), self._voted = self._voted, None
        session.is_aborted = True
        try:
            open_one.finish()
        except PrepareFailed as error:
            log.info("transaction rolled back gtrid=%s reason=%s", open_one.gtrid, error)
        else:
            log.error(
                "transaction was aborted after its database had committed: messages are sent, as its rows are "
                "stored gtrid=%s",
                open_one.gtrid,
            )

    def should_retry(self, error: Exception) -> bool:
        """True if the transaction should be repeated."""
        return isinstance(error, PrepareFailed)


@implementer(IDataManagerSavepoint)
class _Savepoint:
    def __init__(self, messages: list[_Message]) -> None:
        self._messages = messages
        self._length = len(messages)

    def rollback(self) -> None:
        del self._messages[self._length :]


class _ZopeSession(SqlAlchemySession):
    """A session that zope.sqlalchemy commits."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.is_aborted = False

    def watch(self) -> None:
        """Track COMMIT from now on, and refuse it where it would commit nothing."""
        event.listen(self._connection, "commit", self._on_commit)

    def commit(self) -> None:
        """Check the outcome after zope.sqlalchemy's vote. Raises DecisionUnknown unless COMMIT succeeded."""
        event.remove(self._connection, "commit", self._on_commit)
        if self.is_aborted or not self._is_sent:
            raise DecisionUnknown("the transaction was aborted" if self.is_aborted else "no COMMIT was sent")
        self._driver.make_durable()

    def classify_commit(self, error: Exception) -> CommitFailure:
        return CommitFailure.UNANSWERED if isinstance(error, DecisionUnknown) else CommitFailure.FOREIGN
