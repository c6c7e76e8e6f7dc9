"""Offset table through a PEP 249 connection of any driver, in plain SQL."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from meta_client.consumer.offset_stores.errors import NoDatabase, NotInTransaction
from meta_client.consumer.offset_stores.places import PARTITION_MAX, TEXT_MAX, Place

# Names are quoted: PARTITION and OFFSET are words of SQL in some databases.
_CREATE: Final = (
    "CREATE TABLE IF NOT EXISTS {table} (topic VARCHAR({text}){binary} NOT NULL, "
    "{partition} VARCHAR({part}){binary} NOT NULL, group_id VARCHAR({text}){binary} NOT NULL, "
    "{offset} BIGINT NOT NULL, msg_id BIGINT NOT NULL, PRIMARY KEY (topic, {partition}, group_id))"
)
_PROBE: Final = "SELECT {offset} FROM {table} WHERE 1 = 0"
_READ: Final = "SELECT {offset} FROM {table} WHERE topic = {} AND {partition} = {} AND group_id = {}"
_MOVE: Final = (
    "UPDATE {table} SET {offset} = {}, msg_id = {} "
    "WHERE topic = {} AND {partition} = {} AND group_id = {} AND {offset} BETWEEN {} AND {}"
)
_INSERT: Final = "INSERT INTO {table} ({offset}, msg_id, topic, {partition}, group_id) VALUES ({}, {}, {}, {}, {})"
_MARKS: Final[Mapping[str, Callable[[int], str]]] = {
    "qmark": lambda number: "?",
    "format": lambda number: "%s",
    "pyformat": lambda number: "%s",  # every such driver takes these by position too
    "numeric": lambda number: f":{number}",
    "named": lambda number: f":p{number}",
}


class DbapiRows:
    """Offset table as seen by one connection."""

    def __init__(self, connection: Any, table: str) -> None:
        """Raises NoDatabase if *connection* is not of a PEP 249 driver."""
        driver = _driver_of(connection)
        self._connection = connection
        self._style = str(driver.paramstyle)
        is_mysql = any(name in driver.__name__.lower() for name in ("mysql", "mariadb"))
        self._quote = "`" if is_mysql else '"'
        self._table = ".".join(map(self._quoted, table.split(".")))
        # MySQL compares text without case by default: two topics must not share a row.
        self._binary = " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin" if is_mysql else ""
        self._error: type[Exception] = driver.Error

    def create(self) -> None:
        """Create the table if missing. Commits or rolls back: for a connection opened by the store."""
        try:
            self._execute(_PROBE, ())
        except self._error:
            self._connection.rollback()
        else:
            return  # it exists: the user may lack the right to create tables
        try:
            self._execute(_CREATE, ())
            self._connection.commit()
        except self._error:
            self._connection.rollback()
            self._execute(_PROBE, ())  # another process made it meanwhile, or this raises the cause

    def read(self, place: Place) -> object:
        rows = self._fetch(_READ, place)
        return _first(rows[0]) if rows else None

    def move(self, place: Place, offset: int, message_id: int, at_least: int, at_most: int) -> bool:
        count = self._execute(_MOVE, (offset, message_id, *place, at_least, at_most))
        if count < 0:
            raise NoDatabase(f"the driver of {type(self._connection)} does not count updated rows: use SQLAlchemy")
        return count > 0

    def insert(self, place: Place, offset: int, message_id: int) -> None:
        self._execute(_INSERT, (offset, message_id, *place))

    def _execute(self, template: str, values: Sequence[object]) -> int:
        cursor = self._connection.cursor()
        try:
            cursor.execute(*self._statement(template, values))
            return int(cursor.rowcount)
        finally:
            cursor.close()

    def _fetch(self, template: str, values: Sequence[object]) -> list[Any]:
        cursor = self._connection.cursor()
        try:
            cursor.execute(*self._statement(template, values))
            return list(cursor.fetchall())
        finally:
            cursor.close()

    def _statement(self, template: str, values: Sequence[object]) -> tuple[str, Any]:
        mark = _MARKS[self._style]
        text = template.format(
            *(mark(number) for number in range(1, len(values) + 1)),
            table=self._table,
            partition=self._quoted("partition"),
            offset=self._quoted("offset"),
            text=TEXT_MAX,
            part=PARTITION_MAX,
            binary=self._binary,
        )
        if self._style == "named":
            return text, {f"p{number}": value for number, value in enumerate(values, 1)}
        return text, tuple(values)

    def _quoted(self, name: str) -> str:
        return f"{self._quote}{name.replace(self._quote, 2 * self._quote)}{self._quote}"


def check_in_transaction(connection: Any) -> None:
    """Raise NotInTransaction if *connection*, of any driver, would commit the next statement by itself."""
    if getattr(connection, "in_transaction", False) is True:  # sqlite3, mysql.connector
        return
    if getattr(getattr(connection, "info", None), "transaction_status", 0):  # psycopg: 0 is IDLE
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


def _driver_of(connection: Any) -> Any:
    """Return the PEP 249 module of *connection*. Raises NoDatabase."""
    for kind in type(connection).__mro__:
        name = kind.__module__
        while name:
            module = sys.modules.get(name)
            if getattr(module, "paramstyle", None) in _MARKS and hasattr(module, "Error"):
                return module
            name = name.rpartition(".")[0]
    raise NoDatabase(
        f"{type(connection).__module__}.{type(connection).__name__} is no PEP 249 connection, and no connection or "
        "session of SQLAlchemy: give one that is"
    )


def _first(row: Any) -> object:
    """Return the only column of a row, whatever type the connection uses for rows."""
    return next(iter(row.values())) if isinstance(row, Mapping) else cast("object", row[0])
