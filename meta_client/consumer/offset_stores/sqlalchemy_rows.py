"""Offset table through SQLAlchemy Core, for any database it supports. Besides `sql`, the only module that imports
it."""

from functools import lru_cache

from sqlalchemy import BigInteger, Column, Connection, MetaData, String, Table, bindparam, exc, insert, select, update
from sqlalchemy.dialects import mssql, mysql

from meta_client.consumer.offset_stores.places import PARTITION_MAX, TEXT_MAX, Place


def _text(length: int) -> String:
    """Return a type for text that compares byte by byte, which MySQL and SQL Server do not by default: two topics would
    share a row."""
    return (
        String(length)
        .with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")
        .with_variant(mssql.VARCHAR(length, collation="Latin1_General_100_BIN2_UTF8"), "mssql")
    )


@lru_cache(maxsize=16)
def offset_table(name: str) -> Table:
    """Return the table for SQLAlchemy; *name* may begin with a schema and a dot."""
    schema, _, bare = name.rpartition(".")
    return Table(
        bare,
        MetaData(),
        Column("topic", _text(TEXT_MAX), primary_key=True),
        Column("partition", _text(PARTITION_MAX), primary_key=True),
        Column("group_id", _text(TEXT_MAX), primary_key=True),
        Column("offset", BigInteger, nullable=False, autoincrement=False),
        Column("msg_id", BigInteger, nullable=False, autoincrement=False),
        schema=schema or None,
    )


class SqlAlchemyRows:
    """Offset table as seen by one connection."""

    def __init__(self, connection: Connection, table: str) -> None:
        self._connection = connection
        self._table = kept = offset_table(table)
        self._is_place = (
            (kept.c.topic == bindparam("at_topic"))
            & (kept.c.partition == bindparam("at_partition"))
            & (kept.c.group_id == bindparam("at_group"))
        )

    def create(self) -> None:
        """Create the table if missing, in a separate transaction: for a connection opened by the store."""
        try:
            self._table.create(self._connection, checkfirst=True)
            self._connection.commit()
        except exc.DBAPIError:
            self._connection.rollback()
            # Another process made it meanwhile, or this raises the cause.
            self._connection.execute(select(self._table.c.offset).where(self._table.c.topic == ""))

    def read(self, place: Place) -> object:
        found: object = self._connection.scalar(select(self._table.c.offset).where(self._is_place), _at(place))
        return found

    def move(self, place: Place, offset: int, message_id: int, at_least: int, at_most: int) -> bool:
        is_between = self._table.c.offset.between(bindparam("at_least"), bindparam("at_most"))
        values: dict[str, object] = {"offset": bindparam("to_offset"), "msg_id": bindparam("to_id")}
        moved = self._connection.execute(
            update(self._table).where(self._is_place & is_between).values(values),
            _at(place) | {"to_offset": offset, "to_id": message_id, "at_least": at_least, "at_most": at_most},
        )
        return moved.rowcount > 0

    def insert(self, place: Place, offset: int, message_id: int) -> None:
        self._connection.execute(insert(self._table), place._asdict() | {"offset": offset, "msg_id": message_id})


def _at(place: Place) -> dict[str, object]:
    return {"at_topic": place.topic, "at_partition": place.partition, "at_group": place.group_id}
