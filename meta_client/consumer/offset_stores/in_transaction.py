"""Offsets in the listener's own database transaction: rows and offset are stored together, or neither.

Each message takes effect exactly once, despite crashes and redelivery: the offset's row records what is done, and its
lock excludes a concurrent transaction.
"""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from meta_client.consumer.config import check_group
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.offset_stores.errors import NotInTransaction
from meta_client.consumer.offset_stores.moves import batches, read_offset, store, take
from meta_client.consumer.offset_stores.row_key import TABLE, row_key
from meta_client.consumer.offsets import MovedByListeners, OffsetEntry
from zk.tree.nodes import Partition

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from meta_client.consumer.offset_stores.rows import OffsetRows


_IN_TRANS: Final = 1  # SERVER_STATUS_IN_TRANS of MySQL's protocol


class TransactionOffsetStore(MovedByListeners):
    """A group's offsets, moved by `take` in the transaction in which the listener stores its results.

    *connect* opens a connection for the store's own use: a function that returns a PEP 249 connection, or an Engine of
    SQLAlchemy. The table is created on first use if missing. Needs the package sqlalchemy. Any thread.
    """

    def __init__(self, connect: "Callable[[], Any] | Engine", group: str, table: str = TABLE) -> None:
        """Does not connect. Raises InvalidGroup."""
        self.group = check_group(group)
        self._connect = connect
        self._table = table
        self._is_made = False

    def take(
        self, connection: Any, messages: Batch | ReceivedMessage | Iterable[ReceivedMessage]
    ) -> list[ReceivedMessage]:
        """Mark *messages* as consumed in the transaction of *connection*, and return those that no committed
        transaction has consumed before: usually all, none if all were.

        *messages*: the listener's batch or message, or the messages of `Consumer.fetch`. *connection*: a PEP 249
        connection, or a Connection or Session of SQLAlchemy. Commits nothing; messages whose transaction is not
        committed are delivered again. The partition's row is locked until the transaction ends. Raises
        NotInTransaction, TakenMeanwhile, NoDatabase, OffsetsMalformed and the database's errors: let them propagate
        from the listener, once the transaction is rolled back.
        """
        rows = self._rows(connection)
        if isinstance(messages, Batch):
            return take(rows, self.group, messages)
        given = [messages] if isinstance(messages, ReceivedMessage) else list(messages)  # an iterator ends but once
        left = {id(message) for batch in batches(given) for message in take(rows, self.group, batch)}
        return [message for message in given if id(message) in left]

    def load(self, topic: str, partition: Partition) -> int | None:
        """Return the stored offset; None if there is none. Raises the database's errors."""
        with self._own() as rows:
            if not self._is_made:
                rows.create()
                self._is_made = True
            return read_offset(rows, row_key(topic, partition, self.group))

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        """Store resets. Other progress is in the table since the listener's transaction committed."""
        if resets := [entry for entry in entries if entry.is_reset]:
            with self._own() as rows:
                store(rows, self.group, resets)

    def _rows(self, connection: Any) -> "OffsetRows":
        """Return the table as *connection* sees it. Raises NotInTransaction, NoDatabase."""
        own = _sqlalchemy_connection(connection)
        rows = _rows_of(connection if own is None else own, self._table)
        _check_in_transaction(connection if own is None else own.connection.driver_connection)
        return rows

    @contextlib.contextmanager
    def _own(self) -> "Iterator[OffsetRows]":
        """Yield the table through a new connection, and commit."""
        opened = contextlib.closing(self._connect()) if callable(self._connect) else self._connect.connect()
        with opened as connection:
            yield _rows_of(connection, self._table)
            connection.commit()


def _rows_of(connection: Any, table: str) -> "OffsetRows":
    """Return the table through *connection*, of a driver or of SQLAlchemy. Raises NoDatabase."""
    if _sqlalchemy_connection(connection) is not None:
        from meta_client.consumer.offset_stores.rows import SqlAlchemyRows

        return SqlAlchemyRows(connection, table)
    from meta_client.consumer.offset_stores.dbapi_rows import DbapiRows

    return DbapiRows(connection, table)


def _check_in_transaction(connection: Any) -> None:
    """Raise NotInTransaction if *connection*, of any driver, would commit the next statement by itself."""
    if getattr(connection, "in_transaction", False) is True:  # sqlite3, mysql.connector
        return
    if getattr(getattr(connection, "info", None), "transaction_status", 0):  # psycopg: 0 is IDLE
        return
    if getattr(connection, "_in_transaction", False) is True:  # pg8000
        return
    if getattr(connection, "server_status", 0) & _IN_TRANS:  # PyMySQL
        return
    autocommit = getattr(connection, "autocommit", False)
    if callable(autocommit):  # PyMySQL, mysqlclient: this one is the setter
        autocommit = connection.get_autocommit()
    is_manual = hasattr(connection, "in_transaction") and getattr(connection, "isolation_level", "") is None  # sqlite3
    if autocommit is True or is_manual:
        raise NotInTransaction(
            f"{type(connection).__module__}.{type(connection).__name__} is in autocommit mode, outside of a "
            "transaction: the offset would be stored without your rows; begin one first"
        )


def _sqlalchemy_connection(given: Any) -> Any:
    """Return *given* as a Connection of SQLAlchemy, that of a Session included; None for anything else."""
    if "sqlalchemy" not in sys.modules:
        return None  # not imported: it can't be one
    from sqlalchemy import Connection

    if isinstance(given, Connection):
        return given
    if "sqlalchemy.orm" in sys.modules:
        from sqlalchemy.orm import Session, scoped_session

        if isinstance(given, Session | scoped_session):
            return given.connection()
    return None
