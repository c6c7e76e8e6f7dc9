"""SQLAlchemy 2: a Session or a Connection whose own commit() is the decision.

The decision's row goes through the driver's connection of the open transaction; flush, events and expiry stay
SQLAlchemy's. The only file here that imports SQLAlchemy; imported when one of its objects is enlisted.
"""

import functools
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine, TwoPhaseTransaction
from sqlalchemy.exc import DBAPIError, InvalidRequestError, SQLAlchemyError, UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.pool import PoolProxiedConnection

from meta_client.coordinator.errors import CannotEnlist
from meta_client.errors import TransactionMisuse
from meta_client.protocol.errors import one_line
from meta_client.transactions.deciding import DecidingSession
from meta_client.transactions.drivers import driver_session
from meta_client.transactions.errors import OutOfStep
from meta_client.transactions.table import CommitFailure, Opener, TableIdentity

log = logging.getLogger(__name__)

_SEVERAL: Final = "the session works with several engines, and only one database can decide: use a session for each"


def _enlisted(pooled: PoolProxiedConnection, connect: Callable[[], Any]) -> DecidingSession:
    return driver_session(pooled.driver_connection, connect, is_managed=True)


class SqlAlchemySession:
    """One Session or Connection, begun or not."""

    def __init__(
        self,
        given: Session | Connection | scoped_session[Any],
        connect: Callable[[], Any] | None = None,
        enlist: Callable[[PoolProxiedConnection, Callable[[], Any]], DecidingSession] = _enlisted,
    ) -> None:
        """*connect* makes another driver connection where the engine cannot. *enlist* wraps the driver's connection for
        a transaction."""
        self._enlist = enlist
        self._given: Session | Connection = given() if isinstance(given, scoped_session) else given
        self._connect = connect
        self._was_begun = False
        self._transaction: object = None
        self._root: Any = None  # the transaction of the connection
        self._connection: Connection
        self._driver: DecidingSession
        self._opener: Opener
        self._is_sent = False  # COMMIT is, or may be, on its way
        self._refusal: InvalidRequestError | None = None  # why it was not sent

    def driver_connection(self) -> object:
        given = self._given
        if given.in_nested_transaction():
            raise TransactionMisuse(
                "it is inside a savepoint, which ends before the transaction does: put client.transaction(...) outside "
                "and begin_nested() inside"
            )
        self._was_begun = given.in_transaction()
        try:
            self._connection = connection = _begun(given)
            driver = connection.connection.driver_connection
            connect = self._connect or functools.partial(new_connection, connection.engine)
            self._driver = self._enlist(connection.connection, connect)
        except BaseException:
            self._leave_as_it_was()
            raise
        self._transaction, self._root = given.get_transaction(), connection.get_transaction()
        return driver

    def begin(self) -> TableIdentity:
        try:
            with self._as_sqlalchemy_raises():
                identity = self._driver.begin()
            self._opener = self._driver.opener()
        except OutOfStep:
            self._given.invalidate()
            raise
        except BaseException:
            self._leave_as_it_was()
            raise
        return identity

    def problem(self) -> str | None:
        given = self._given
        if given.get_transaction() is not self._transaction:
            return "its transaction was ended inside the block: leave commit() and rollback() to the block's end"
        if isinstance(given, Session):
            if not given.is_active:
                return "a flush failed and the block went on: let the error out, or use begin_nested()"
            given.flush()
            if _has_several(given):
                return _SEVERAL
        return self._driver.problem()

    def decide(self, gtrid: str, brokers: Collection[int]) -> None:
        with self._as_sqlalchemy_raises():
            self._driver.decide(gtrid, brokers)

    def commit(self) -> None:
        event.listen(self._connection, "commit", self._on_commit)
        try:
            self._given.commit()
            self._driver.make_durable()
        finally:
            event.remove(self._connection, "commit", self._on_commit)  # a signal's handler may raise here, too
        if not self._is_sent:
            self._driver.rollback()
            raise InvalidRequestError("commit() did not send COMMIT: rows and messages are rolled back")

    def classify_commit(self, error: Exception) -> CommitFailure:
        if self._refusal is not None:  # the row may have been committed when the transaction ended
            return CommitFailure.UNANSWERED if error is self._refusal else CommitFailure.FOREIGN
        if not self._is_sent:
            return CommitFailure.REFUSED
        # Without a cause it comes from a listener, most likely of after_commit.
        cause = error.orig if isinstance(error, DBAPIError) and not self._has_committed() else None
        return self._driver.classify_commit(cause) if isinstance(cause, Exception) else CommitFailure.FOREIGN

    def rollback(self) -> None:
        if self._root is not None and not (self._root.is_active or self._has_committed()):
            self._driver.rollback()  # SQLAlchemy considers the transaction ended, and would send nothing
        try:
            self._given.rollback()
        except SQLAlchemyError as error:
            log.warning("session could not be rolled back, and is discarded reason=%s", one_line(error))
            self._given.invalidate()

    def _has_committed(self) -> bool:
        """True if COMMIT was answered; the driver's connection may be back in its pool then."""
        return self._connection.closed or self._connection.get_transaction() is not self._root

    def opener(self) -> Opener:
        return self._opener

    @contextmanager
    def _as_sqlalchemy_raises(self) -> Iterator[None]:
        """Raise the driver's errors in SQLAlchemy's classes, by which callers decide to retry."""
        known = self._connection.dialect.loaded_dbapi.Error
        try:
            yield
        except known as error:
            raise DBAPIError.instance("metaq_decision", (), error, known) from error

    def _on_commit(self, connection: Connection) -> None:
        """Write the row. Called right before COMMIT is sent."""
        del connection
        if (lost := self._driver.lost()) is not None:  # PostgreSQL would answer COMMIT with ROLLBACK
            self._refusal = InvalidRequestError(lost)
            raise self._refusal
        self._is_sent = True

    def _leave_as_it_was(self) -> None:
        if not self._was_begun:
            self.rollback()


def _begun(given: Session | Connection) -> Connection:
    """Return the connection of *given*'s transaction, beginning one if needed. Raises CannotEnlist."""
    if isinstance(given, Session):
        if given.twophase:
            raise CannotEnlist(
                "the session was made with twophase=True, and would prepare instead of deciding: make it without; for "
                "two databases there is meta_client.coordinator"
            )
        return _connection_of(given)
    if not given.in_transaction():
        given.begin()
    if isinstance(given.get_transaction(), TwoPhaseTransaction):
        raise CannotEnlist("the connection was begun with begin_twophase(): begin it with begin()")
    return given


def _connection_of(session: Session) -> Connection:
    named = getattr(session, "binds", None) or getattr(session, "_Session__binds", {})  # by version
    binds = {session.bind, *named.values()} - {None}
    if any(isinstance(bind, Connection) for bind in binds):
        raise CannotEnlist(
            "the session is bound to a connection, whose transaction may be another one's to commit: bind it to an "
            "engine, or give the connection itself"
        )
    if len(binds) > 1 or _has_several(session):
        raise CannotEnlist(_SEVERAL)
    try:
        if session.bind is None and binds:
            return session.connection(bind_arguments={"bind": next(iter(binds))})
        return session.connection()
    except UnboundExecutionError as error:
        raise CannotEnlist(f"the session is bound to no engine: {one_line(error)}") from error


def _has_several(session: Session) -> bool:
    """True if the session's transaction uses several connections. Only private attributes tell which."""
    connections = getattr(session.get_transaction(), "_connections", {})
    return len({id(entry[0]) for entry in connections.values()}) > 1


def new_connection(engine: Engine) -> Any:
    """Return a new driver connection made as *engine* makes them, outside its pool and the pool's limit."""
    made: Any = engine.pool.recreate().connect()
    driver = made.driver_connection
    try:
        made.dbapi_connection.commit()  # keeps the settings of "connect" listeners
    except BaseException:
        made.invalidate()  # closes it: the pool is nobody's
        raise
    made.detach()
    return driver
