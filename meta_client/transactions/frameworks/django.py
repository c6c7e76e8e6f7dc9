"""Messages sent with the rows of Django's `atomic` block, decided by the COMMIT of the outermost one.

    with transaction.atomic():
        Parcel.objects.create(...)
        send_on_commit(client, "orders", b"...")

Messages wait in Django's list of on-commit callbacks, which drops them when a savepoint or the transaction is rolled
back. The outermost block ends with one call, `connection.commit()`. That method is replaced on the connection object,
which belongs to one thread, by one that first prepares the brokers and writes the row; its exceptions leave the block
after a rollback. The only file here that imports Django.
"""

import functools
import logging
from collections.abc import Collection
from typing import Any

from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.transaction import TransactionManagementError

from meta_client.client import Client
from meta_client.coordinator.errors import CannotEnlist
from meta_client.errors import TransactionMisuse
from meta_client.producer.outgoing import payload_bytes
from meta_client.protocol.errors import one_line
from meta_client.transactions.deciding import DecidingSession
from meta_client.transactions.drivers import driver_session
from meta_client.transactions.table import CommitFailure, Opener, TableIdentity
from zk.tree.nodes import Partition

log = logging.getLogger(__name__)


def send_on_commit(
    client: Client,
    topic: str,
    payload: bytes,
    attribute: str | None = None,
    partition: Partition | str | None = None,
    *,
    using: str = DEFAULT_DB_ALIAS,
) -> None:
    """Send one message if, and only if, the surrounding `atomic` block commits in the database *using*.

    Brokers get it when the outermost block ends (with ATOMIC_REQUESTS, the request's). That block then raises what
    Client.transaction's block would, and is rolled back. Raises TransactionMisuse outside of `atomic`, CannotEnlist for
    a database that can't decide, TypeError for a payload that is not bytes.
    """
    payload = payload_bytes(payload)
    wrapper = connections[using]
    if not wrapper.in_atomic_block:
        raise TransactionMisuse("there is no transaction to send it with: put it inside transaction.atomic()")
    if waiting := _waiting(wrapper):
        if waiting[0].client is not client:
            raise TransactionMisuse("the transaction has messages of another client: send all of them with one")
        session = waiting[0].session
    else:
        session = DjangoSession(wrapper)
        session.driver_connection()
        session.begin()
    if "commit" not in vars(wrapper):
        wrapper.commit = functools.partial(_commit, wrapper)
    wrapper.on_commit(_Message(client, session, topic, payload, attribute, partition))


class _Message:
    """A message that waits for COMMIT among Django's on-commit callbacks."""

    def __init__(
        self,
        client: Client,
        session: "DjangoSession",
        topic: str,
        payload: bytes,
        attribute: str | None,
        partition: Partition | str | None,
    ) -> None:
        self.client = client
        self.session = session  # shared by the messages of a transaction
        self.values = topic, payload, attribute, partition
        self.is_committed = False

    def __call__(self) -> None:
        """Check, after COMMIT, that the message was sent. Called by Django. Raises TransactionMisuse if it was not."""
        if not self.is_committed:
            raise TransactionMisuse(
                f"a message to {self.values[0]} was not sent: no COMMIT of Django's came before its on_commit "
                f"callbacks; in tests use TransactionTestCase"
            )


def _waiting(wrapper: Any) -> list[_Message]:
    return [entry[1] for entry in wrapper.run_on_commit if isinstance(entry[1], _Message)]


def _commit(wrapper: Any) -> None:
    """Commit the connection together with the messages that wait for it."""
    messages = _waiting(wrapper)
    if not messages:
        type(wrapper).commit(wrapper)
        return
    session = messages[0].session
    try:
        with messages[0].client.transaction(session) as transaction:
            for message in messages:
                transaction.send(*message.values)
    except BaseException:  # Django itself rolls back only after Error
        try:
            wrapper.rollback()
        except Error as error:
            log.warning("database connection could not be rolled back, and is closed reason=%s", one_line(error))
            wrapper.close()
        raise
    for message in messages:
        message.is_committed = True
    if session.is_lost():  # lost during a COMMIT that succeeded: let Django reconnect
        after = wrapper.run_on_commit
        wrapper.close()
        wrapper.run_on_commit = after
    wrapper.run_commit_hooks_on_set_autocommit_on = True


class DjangoSession:
    """Django's connection to one database, in an atomic block or at the end of the outermost one."""

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper
        self._is_outermost = not any(wrapper.savepoint_ids)
        self._identity: TableIdentity | None = None
        self._connection: Any = None  # the driver's
        self._driver: DecidingSession
        self._opener: Opener
        self._refusal: TransactionManagementError | None = None  # why COMMIT was not sent

    def driver_connection(self) -> object:
        connection = self._wrapper.connection
        if connection is None or self._wrapper.closed_in_transaction:
            raise CannotEnlist("the database connection was lost: the atomic block will be rolled back")
        if connection is not self._connection or not (self._is_outermost or self._driver.survives_release):
            self._connection, self._identity = connection, None
            self._driver = driver_session(connection, is_managed=True)
        return connection

    def begin(self) -> TableIdentity:
        """Join the atomic block's transaction, once: `problem` then tells whether it is still that one."""
        if self._identity is None:
            with self._wrapper.wrap_database_errors:
                self._identity = self._driver.begin()
            self._opener = self._driver.opener()
        return self._identity

    def problem(self) -> str | None:
        return self._driver.problem()

    def decide(self, gtrid: str, brokers: Collection[int]) -> None:
        with self._wrapper.wrap_database_errors:
            self._driver.decide(gtrid, brokers)

    def commit(self) -> None:
        if (lost := self._driver.lost()) is not None:
            self._refusal = TransactionManagementError(lost)
            raise self._refusal
        type(self._wrapper).commit(self._wrapper)
        self._driver.make_durable()

    def classify_commit(self, error: Exception) -> CommitFailure:
        if error is self._refusal:
            return CommitFailure.UNANSWERED
        cause = error.__cause__ if isinstance(error, Error) else None
        return self._driver.classify_commit(cause) if isinstance(cause, Exception) else CommitFailure.FOREIGN

    def rollback(self) -> None:
        self._driver.rollback()

    def opener(self) -> Opener:
        return self._opener

    def is_lost(self) -> bool:
        """True if the driver's connection is closed."""
        return bool(getattr(self._connection, "closed", not getattr(self._connection, "open", True)))
