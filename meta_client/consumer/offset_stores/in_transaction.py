"""Offsets in the listener's own database transaction: rows and offset are stored together, or neither.

Each message takes effect exactly once, despite crashes and redelivery: the offset's row records what is done, and its
lock excludes a concurrent transaction.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from meta_client.consumer.config import check_group
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.offset_stores.moves import batches, load, store, take
from meta_client.consumer.offset_stores.row_key import TABLE
from meta_client.consumer.offsets import MovedByListeners, OffsetEntry
from meta_client.sql.connections import executor_in_transaction, executor_of
from zk.tree.nodes import Partition

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from meta_client.consumer.offset_stores.rows import OffsetRows
    from meta_client.sql.executor import Executor


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
            offset = load(rows, self.group, topic, partition, is_made=self._is_made)
        self._is_made = True
        return offset

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        """Store resets. Other progress is in the table since the listener's transaction committed."""
        if resets := [entry for entry in entries if entry.is_reset]:
            with self._own() as rows:
                store(rows, self.group, resets)

    def _rows(self, connection: Any) -> "OffsetRows":
        """Return the table as *connection* sees it. Raises NotInTransaction, NoDatabase."""
        return _rows_of(executor_in_transaction(connection), self._table)

    @contextlib.contextmanager
    def _own(self) -> "Iterator[OffsetRows]":
        """Yield the table through a new connection, and commit."""
        opened = contextlib.closing(self._connect()) if callable(self._connect) else self._connect.connect()
        with opened as connection:
            yield _rows_of(executor_of(connection), self._table)
            connection.commit()


def _rows_of(executor: "Executor", table: str) -> "OffsetRows":
    from meta_client.consumer.offset_stores.rows import OffsetRows

    return OffsetRows(executor, table)
