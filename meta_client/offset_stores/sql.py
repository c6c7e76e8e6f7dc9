"""Offsets in a table of any database that SQLAlchemy speaks: the consumer stores them, each commit period."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from meta_client.consumer.config import check_group
from meta_client.consumer.offsets import OffsetEntry
from meta_client.offset_stores.errors import NoDatabase
from meta_client.offset_stores.places import TABLE, place_of, read_offset, store
from zk.nodes import Partition

try:
    from sqlalchemy import Engine, create_engine
    from sqlalchemy.exc import ArgumentError

    from meta_client.offset_stores.sqlalchemy_rows import SqlAlchemyRows
except ModuleNotFoundError as error:
    if error.name != "sqlalchemy":
        raise
    raise NoDatabase("SqlOffsetStore needs the package sqlalchemy: pip install 'metaq-broker[sql]'") from error


class SqlOffsetStore:
    """A group's offsets in *table* of *database*, an Engine or a URL such as `postgresql+psycopg://user@host/shop`.

    The table is made when it is first needed and not there; *table* may name a schema, too. All members of the group
    use the same one. Any thread.
    """

    def __init__(self, database: Engine | str, group: str, table: str = TABLE) -> None:
        """Connects to nothing yet. Raises InvalidGroup, NoDatabase."""
        self.group = check_group(group)
        self._is_own = isinstance(database, str)
        self._engine = _engine_of(database) if isinstance(database, str) else database
        self._table = table
        self._is_made = False

    @classmethod
    def open_for_reading(cls, database: Engine | str, group: str, table: str = TABLE) -> Self:
        """Look at what the table holds: one that is not there is not made, load() raises SQLAlchemyError then."""
        opened = cls(database, group, table)
        opened._is_made = True
        return opened

    def load(self, topic: str, partition: Partition) -> int | None:
        """Where to go on; None if nothing is stored. Raises SQLAlchemyError, OffsetsMalformed."""
        with self._engine.connect() as connection:
            rows = SqlAlchemyRows(connection, self._table)
            if not self._is_made:
                rows.create()
                self._is_made = True
            return read_offset(rows, place_of(topic, partition, self.group))

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        """Store *entries* in one transaction, but for those that would go back without being resets. Durable on
        return, as far as the database is. Raises SQLAlchemyError: then all or nothing of it is stored."""
        with self._engine.begin() as connection:
            store(SqlAlchemyRows(connection, self._table), self.group, entries)

    def close(self) -> None:
        """Close the connections of an engine that was made here, once the consumer is closed. Idempotent."""
        if self._is_own:
            self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _engine_of(url: str) -> Engine:
    """Raises NoDatabase. The URL is not shown: it may hold a password."""
    try:
        return create_engine(url)
    except (ArgumentError, ModuleNotFoundError) as error:  # NoSuchModuleError, for an unknown dialect, is one
        raise NoDatabase(
            f"no database of this name ({error}): give an SQLAlchemy URL whose driver is installed, such as "
            "postgresql+psycopg://user@host/shop"
        ) from error
