"""Offsets in a table of any database that SQLAlchemy supports, stored by the consumer each commit period."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from meta_client.consumer.config import check_group
from meta_client.consumer.offset_stores.moves import load, store
from meta_client.consumer.offset_stores.row_key import TABLE
from meta_client.consumer.offset_stores.rows import OffsetRows
from meta_client.consumer.offsets import OffsetEntry
from meta_client.errors import NoDatabase
from meta_client.sql.executor import SqlAlchemyExecutor
from zk.tree.nodes import Partition

if TYPE_CHECKING:
    from sqlalchemy import Engine


class SqlOffsetStore:
    """A group's offsets in *table* of *database*, an Engine or a URL such as `postgresql+psycopg://user@host/shop`.

    The table is created on first use if missing; *table* may include a schema. All members of the group share it. Any
    thread.
    """

    def __init__(self, database: "Engine | str", group: str, table: str = TABLE) -> None:
        """Does not connect. Raises InvalidGroup, NoDatabase."""
        self.group = check_group(group)
        self._is_own = isinstance(database, str)
        self._engine = _engine_of(database) if isinstance(database, str) else database
        self._table = table
        self._is_made = False

    @classmethod
    def open_for_reading(cls, database: "Engine | str", group: str, table: str = TABLE) -> Self:
        """Open the table for reading: it is not created, and load() raises SQLAlchemyError if it is missing."""
        opened = cls(database, group, table)
        opened._is_made = True
        return opened

    def load(self, topic: str, partition: Partition) -> int | None:
        """Return the stored offset; None if there is none. Raises SQLAlchemyError, OffsetsMalformed."""
        with self._engine.connect() as connection:
            rows = OffsetRows(SqlAlchemyExecutor(connection), self._table)
            offset = load(rows, self.group, topic, partition, is_made=self._is_made)
        self._is_made = True
        return offset

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        """Store *entries* in one transaction, except those that would go back without being resets. Durable on return,
        as far as the database is. Raises SQLAlchemyError: all or nothing is stored then."""
        with self._engine.begin() as connection:
            store(OffsetRows(SqlAlchemyExecutor(connection), self._table), self.group, entries)

    def close(self) -> None:
        """Close the connections of an engine made here, once the consumer is closed. Idempotent."""
        if self._is_own:
            self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _engine_of(url: str) -> "Engine":
    """Return an engine for *url*. Raises NoDatabase, without the URL, which may hold a password."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import ArgumentError

    try:
        return create_engine(url)
    except (ArgumentError, ModuleNotFoundError) as error:  # an unknown dialect is an ArgumentError
        raise _no_database(str(error)) from error
    except ValueError:  # quotes what stands where a port or an option does: of a password with @ and : in it, a part
        raise _no_database("its port or an option can't be read: write / : @ of a password as %2F %3A %40") from None


def _no_database(reason: str) -> NoDatabase:
    example = "postgresql+psycopg://user@host/shop"
    return NoDatabase(
        f"no database of this name ({reason}): give an SQLAlchemy URL whose driver is installed, such as {example}"
    )
