"""Offsets in the listener's database transaction, for tasks: the rules of the twin,
meta_client/consumer/offset_stores/in_transaction.py."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from meta_client.aio.bridge.bridge import run
from meta_client.aio.transactions.databases import sync_connection
from meta_client.aio.transactions.private_loop import connected
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.offset_stores.in_transaction import TransactionOffsetStore as Rules
from meta_client.consumer.offset_stores.row_key import TABLE
from meta_client.consumer.offsets import MovedByListeners, OffsetEntry
from zk.tree.nodes import Partition

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from meta_client.consumer.offset_stores.rows import OffsetRows


class TransactionOffsetStore(MovedByListeners):
    """A group's offsets, moved by `take` in the transaction in which the listener stores its results.

    *connect* opens a separate connection to load offsets: an async function that returns an AsyncConnection of psycopg
    or a Connection of asyncpg, or an AsyncEngine of SQLAlchemy over one. The consumer's thread uses it, in a private
    loop. Otherwise like meta_client.consumer.offset_stores.TransactionOffsetStore.
    """

    def __init__(self, connect: "Callable[[], Awaitable[Any]] | AsyncEngine", group: str, table: str = TABLE) -> None:
        """Store the arguments; connects later. Raises InvalidGroup."""
        self._rules = _Rules(functools.partial(_opened, connect), group, table)

    @property
    def group(self) -> str:
        """Name of the group."""
        return self._rules.group

    async def take(
        self, connection: Any, messages: Batch | ReceivedMessage | Iterable[ReceivedMessage]
    ) -> list[ReceivedMessage]:
        """Mark *messages* as consumed in the transaction of *connection*; return those that no committed transaction
        has consumed.

        *connection*: as for meta_client.aio's Client.transaction, inside such a block or in another transaction.
        Otherwise like meta_client.consumer.offset_stores.TransactionOffsetStore.take.
        """
        return await run(self._rules.take, connection, messages)

    def load(self, topic: str, partition: Partition) -> int | None:
        """Return the offset to continue at; None if none is stored. For the consumer's thread. Raises the database's
        errors."""
        return asyncio.run(run(self._rules.load, topic, partition))

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        """Store resets, which no listener can store. For the consumer's thread."""
        asyncio.run(run(self._rules.commit, entries))


class _Rules(Rules):
    """Inside `run`."""

    def _rows(self, connection: Any) -> "OffsetRows":
        return super()._rows(sync_connection(connection))


def _opened(connect: "Callable[[], Awaitable[Any]] | AsyncEngine") -> Any:
    if callable(connect):
        return sync_connection(connected(connect))
    from meta_client.transactions.sqlalchemy import new_connection

    return sync_connection(new_connection(connect.sync_engine))
