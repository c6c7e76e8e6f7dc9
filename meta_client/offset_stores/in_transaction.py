"""Offsets that live in the listener's own database transaction: rows and offset are stored together, or neither.

So each message takes effect exactly once, whatever dies in between, and whoever delivers it again: the row of the
offset says what is done, and its lock keeps two from doing it at the same time.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from meta_client.consumer.batch import Batch, ReceivedMessage
from meta_client.consumer.config import check_group
from meta_client.consumer.offsets import OffsetEntry
from meta_client.offset_stores.dbapi_rows import DbapiRows, check_in_transaction
from meta_client.offset_stores.places import TABLE, OffsetRows, batches, place_of, read_offset, store, take
from zk.nodes import Partition

if TYPE_CHECKING:
    from sqlalchemy import Engine


class TransactionOffsetStore:
    """A group's offsets, moved by `take` in the transaction in which the listener stores what it makes of a batch.

    *connect* opens a connection of our own, to look up where to go on: a function that returns a PEP 249 connection,
    or an Engine of SQLAlchemy. The table is made when it is first needed and not there. Any thread.
    """

    def __init__(self, connect: "Callable[[], Any] | Engine", group: str, table: str = TABLE) -> None:
        """Connects to nothing yet. Raises InvalidGroup."""
        self.group = check_group(group)
        self._connect = connect
        self._table = table
        self._is_made = False

    def take(
        self, connection: Any, messages: Batch | ReceivedMessage | Sequence[ReceivedMessage]
    ) -> list[ReceivedMessage]:
        """In the transaction of *connection*, mark *messages* as consumed, and return those to work on: of which no
        committed transaction has done so. As a rule that is all of them; none, if it was all done before.

        *messages*: what a listener is given, a batch or one message, or what `Consumer.fetch` returned.
        *connection*: a PEP 249 connection, or a Connection or Session of SQLAlchemy. Nothing is committed here; what
        is not committed together with the rows made of these messages comes again. Until then the partition's row is
        locked. Raises NotInTransaction, TakenMeanwhile, NoDatabase, OffsetsMalformed and what the database does: let
        it out of the listener, once the transaction is rolled back.
        """
        rows = self._rows(connection)
        if isinstance(messages, Batch):
            return take(rows, self.group, messages)
        given = [messages] if isinstance(messages, ReceivedMessage) else messages
        left = {id(message) for batch in batches(given) for message in take(rows, self.group, batch)}
        return [message for message in given if id(message) in left]

    def load(self, topic: str, partition: Partition) -> int | None:
        """Where to go on; None if nothing is stored. Raises what the database does."""
        with self._own() as rows:
            if not self._is_made:
                rows.create()
                self._is_made = True
            return read_offset(rows, place_of(topic, partition, self.group))

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        """Store resets, which no listener can; the rest is in the table since its listener's transaction committed."""
        if resets := [entry for entry in entries if entry.is_reset]:
            with self._own() as rows:
                store(rows, self.group, resets)

    def _rows(self, connection: Any) -> OffsetRows:
        """The table as *connection* sees it. Raises NotInTransaction, NoDatabase."""
        if (own := _sqlalchemy_connection(connection)) is not None:
            from meta_client.offset_stores.sqlalchemy_rows import SqlAlchemyRows

            check_in_transaction(own.connection.driver_connection)
            return SqlAlchemyRows(own, self._table)
        rows = DbapiRows(connection, self._table)
        check_in_transaction(connection)
        return rows

    @contextlib.contextmanager
    def _own(self) -> Iterator[OffsetRows]:
        """The table through a connection of our own; what is done there is committed at the end."""
        if not callable(self._connect):
            from meta_client.offset_stores.sqlalchemy_rows import SqlAlchemyRows

            with self._connect.connect() as opened:
                yield SqlAlchemyRows(opened, self._table)
                opened.commit()
            return
        with contextlib.closing(self._connect()) as connection:
            yield DbapiRows(connection, self._table)
            connection.commit()


def _sqlalchemy_connection(given: Any) -> Any:
    """The Connection of SQLAlchemy that *given* is, or that a Session has; None for anything else."""
    if "sqlalchemy" not in sys.modules:
        return None  # then it can't be one
    from sqlalchemy import Connection

    if isinstance(given, Connection):
        return given
    if "sqlalchemy.orm" in sys.modules:
        from sqlalchemy.orm import Session, scoped_session

        if isinstance(given, Session | scoped_session):
            return given.connection()
    return None
