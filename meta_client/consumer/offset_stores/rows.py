"""Table of offsets in SQLAlchemy Core: its definition, and every statement, for any database.

Compares and sets by an UPDATE whose WHERE bounds the stored offset, and inserts the first row: that every dialect has.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from meta_client.consumer.offset_stores.row_key import PARTITION_MAX, TEXT_MAX, OffsetRowKey
from meta_client.errors import NoDatabase
from meta_client.sql.core import (
    BigInteger,
    Column,
    CreateTable,
    MetaData,
    Table,
    bindparam,
    bytewise_text,
    false,
    insert,
    select,
    update,
)
from meta_client.sql.executor import Executor

_KEY: Final[Mapping[str, Any]] = {
    "topic": bindparam("at_topic"),
    "partition": bindparam("at_partition"),
    "group_id": bindparam("at_group"),
}
_VALUES: Final[Mapping[str, Any]] = {"offset": bindparam("to_offset"), "msg_id": bindparam("to_id")}


class _Statements:
    """Table *name*, which may begin with a schema and a dot, and what is done with it. *quote*: see Column."""

    def __init__(self, name: str, quote: bool | None) -> None:
        schema, _, bare = name.rpartition(".")
        self.table = table = Table(
            bare,
            MetaData(),
            Column("topic", bytewise_text(TEXT_MAX), primary_key=True),
            Column("partition", bytewise_text(PARTITION_MAX), primary_key=True, quote=quote),
            Column("group_id", bytewise_text(TEXT_MAX), primary_key=True),
            Column("offset", BigInteger, nullable=False, autoincrement=False, quote=quote),
            Column("msg_id", BigInteger, nullable=False, autoincrement=False),
            schema=schema or None,
            quote=quote,
            quote_schema=quote,
        )
        is_at = [table.c[column] == value for column, value in _KEY.items()]
        is_between = table.c.offset.between(bindparam("at_least"), bindparam("at_most"))
        self.create = CreateTable(table)
        self.probe = select(table.c.offset).where(false())
        self.read = select(table.c.offset).where(*is_at)
        self.move = update(table).where(*is_at, is_between).values(_VALUES)
        self.insert = insert(table).values({**_KEY, **_VALUES})


_statements = lru_cache(maxsize=16)(_Statements)


class OffsetRows:
    """Offset table as seen by one connection, in its current transaction. Raises the database's errors."""

    def __init__(self, executor: Executor, table: str) -> None:
        self._executor = executor
        self._statements = _statements(table, executor.quote)

    def create(self) -> None:
        """Create the table if missing. Commits or rolls back: for a connection opened by the store."""
        self._executor.create(self._statements.probe, self._statements.create)

    def read(self, key: OffsetRowKey) -> object:
        """Return the stored value of the offset; None without a row."""
        return self._executor.scalar(self._statements.read, _at(key))

    def move(self, key: OffsetRowKey, offset: int, message_id: int, at_least: int, at_most: int) -> bool:
        """Store an offset if the stored one is in [at_least, at_most]; False if it is not, or there is no row.

        Locks the row until the transaction ends, and sees the commits of others.
        """
        bounds = {"at_least": at_least, "at_most": at_most}
        count = self._executor.execute(self._statements.move, _at(key) | _to(offset, message_id) | bounds)
        if count < 0:
            raise NoDatabase(
                f"the driver of {type(self._executor.connection)} does not count updated rows: use another one"
            )
        return count > 0

    def insert(self, key: OffsetRowKey, offset: int, message_id: int) -> None:
        """Insert a row. Fails if it exists."""
        self._executor.execute(self._statements.insert, _at(key) | _to(offset, message_id))


def _at(key: OffsetRowKey) -> dict[str, object]:
    return {"at_topic": key.topic, "at_partition": key.partition, "at_group": key.group_id}


def _to(offset: int, message_id: int) -> dict[str, object]:
    return {"to_offset": offset, "to_id": message_id}
