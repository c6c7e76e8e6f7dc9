"""Table of offsets in SQLAlchemy Core: its definition, and every statement, for any database.

Compares and sets by an UPDATE whose WHERE bounds the stored offset, and inserts the first row: that every dialect has.
Imports SQLAlchemy, an extra.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from meta_client.consumer.offset_stores.errors import NoDatabase
from meta_client.consumer.offset_stores.row_key import PARTITION_MAX, TEXT_MAX, OffsetRowKey

try:
    from sqlalchemy import (
        BigInteger,
        Column,
        Connection,
        Executable,
        MetaData,
        String,
        Table,
        bindparam,
        exc,
        false,
        insert,
        select,
        update,
    )
    from sqlalchemy.dialects import mssql, mysql
    from sqlalchemy.schema import CreateTable
except ModuleNotFoundError as error:
    if error.name != "sqlalchemy":
        raise
    raise NoDatabase("offsets in a database need the package sqlalchemy: pip install 'metaq-broker[sql]'") from error

_KEY: Final[Mapping[str, Any]] = {
    "topic": bindparam("at_topic"),
    "partition": bindparam("at_partition"),
    "group_id": bindparam("at_group"),
}
_VALUES: Final[Mapping[str, Any]] = {"offset": bindparam("to_offset"), "msg_id": bindparam("to_id")}


def _text(length: int) -> String:
    """Return a type for text that compares byte by byte, which MySQL and SQL Server do not by default: two topics would
    share a row."""
    return (
        String(length)
        .with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")
        .with_variant(mssql.VARCHAR(length, collation="Latin1_General_100_BIN2_UTF8"), "mssql")
    )


class _Statements:
    """Table *name*, which may begin with a schema and a dot, and what is done with it. *quote*: see Column."""

    def __init__(self, name: str, quote: bool | None) -> None:
        schema, _, bare = name.rpartition(".")
        self.table = table = Table(
            bare,
            MetaData(),
            Column("topic", _text(TEXT_MAX), primary_key=True),
            Column("partition", _text(PARTITION_MAX), primary_key=True, quote=quote),
            Column("group_id", _text(TEXT_MAX), primary_key=True),
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


class OffsetRows(ABC):
    """Offset table as seen by one connection, in its current transaction. Raises the database's errors."""

    def __init__(self, connection: Any, table: str, error: type[Exception], *, quote: bool | None = None) -> None:
        self._connection = connection
        self._error = error
        self._statements = _statements(table, quote)

    def create(self) -> None:
        """Create the table if missing. Commits or rolls back: for a connection opened by the store."""
        try:
            self._execute(self._statements.probe, {})
        except self._error:
            self._connection.rollback()
        else:
            return  # it exists: the user may lack the right to create tables
        try:
            self._execute(self._statements.create, {})
            self._connection.commit()
        except self._error:
            self._connection.rollback()
            self._execute(self._statements.probe, {})  # another process made it meanwhile, or this raises the cause

    def read(self, key: OffsetRowKey) -> object:
        """Return the stored value of the offset; None without a row."""
        return self._scalar(self._statements.read, _at(key))

    def move(self, key: OffsetRowKey, offset: int, message_id: int, at_least: int, at_most: int) -> bool:
        """Store an offset if the stored one is in [at_least, at_most]; False if it is not, or there is no row.

        Locks the row until the transaction ends, and sees the commits of others.
        """
        bounds = {"at_least": at_least, "at_most": at_most}
        count = self._execute(self._statements.move, _at(key) | _to(offset, message_id) | bounds)
        if count < 0:
            raise NoDatabase(f"the driver of {type(self._connection)} does not count updated rows: use another one")
        return count > 0

    def insert(self, key: OffsetRowKey, offset: int, message_id: int) -> None:
        """Insert a row. Fails if it exists."""
        self._execute(self._statements.insert, _at(key) | _to(offset, message_id))

    @abstractmethod
    def _execute(self, statement: Executable, values: Mapping[str, object]) -> int:
        """Execute *statement*, and return how many rows it changed; -1 if the driver does not know."""

    @abstractmethod
    def _scalar(self, statement: Executable, values: Mapping[str, object]) -> object:
        """Return the only value that *statement* finds; None without a row."""


class SqlAlchemyRows(OffsetRows):
    """Through a connection of SQLAlchemy."""

    def __init__(self, connection: Connection, table: str) -> None:
        super().__init__(connection, table, exc.DBAPIError)

    def _execute(self, statement: Executable, values: Mapping[str, object]) -> int:
        return int(self._connection.execute(statement, values).rowcount)

    def _scalar(self, statement: Executable, values: Mapping[str, object]) -> object:
        found: object = self._connection.scalar(statement, values)
        return found


def _at(key: OffsetRowKey) -> dict[str, object]:
    return {"at_topic": key.topic, "at_partition": key.partition, "at_group": key.group_id}


def _to(offset: int, message_id: int) -> dict[str, object]:
    return {"to_offset": offset, "to_id": message_id}
