"""Tables of a PostgreSQL database as DataFrames, all in one snapshot, read by the workers.

The driver exports a snapshot and keeps its transaction open; every worker's transaction takes it. So what is read is
one moment of the database, whatever commits meanwhile.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from meta_client.transactions.dialects import POSTGRES
from meta_client.transactions.names import TableName
from meta_client.transactions.table import ANCHOR
from spark_jobs.source.worker_rows import worker_rows

FORMAT: Final = "metaq-postgres-column"
ROWS_PER_TASK: Final = 500_000
TASKS_MAX: Final = 16
BATCH_ROWS: Final = 20_000
_MARKER: Final = re.compile(r"(?:([^.]+)\.)?([^.]+)\.([^.]+)")
_SCHEMA: Final = StructType([StructField("text", StringType(), True), StructField("number", LongType(), True)])
_ARROW: Final = pa.schema([("text", pa.string()), ("number", pa.int64())])
_HAS_TABLE: Final = "SELECT to_regclass('metaq_decision_table') IS NOT NULL"
_DECISIONS: Final = "SELECT gtrid, outcome, brokers FROM metaq_decision"
_GENERATION: Final = POSTGRES.statements("", "").generation.encode()
_BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_ALL_ROWS: Final = "SET row_security = off"  # a policy that hides some is an error then
_IDS: Final = (20, 21, 23)  # int8, int2, int4
_TEXTS: Final = (25, 1042, 1043)  # text, char(n), varchar


class DatabaseProblem(Exception):
    """The database can't be read, with the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A column whose values name transactions, by gtrid or by message id: one row a transaction, or a message."""

    schema: str | None
    table: str
    column: str

    @classmethod
    def parse(cls, text: str) -> "Marker":
        """Parse `table.column` or `schema.table.column`. Raises DatabaseProblem."""
        if (match := _MARKER.fullmatch(text)) is None:
            raise DatabaseProblem(f"{text!r} is not TABLE.COLUMN or SCHEMA.TABLE.COLUMN")
        return cls(*match.groups())

    def __str__(self) -> str:
        return ".".join(filter(None, (self.schema, self.table, self.column)))

    @property
    def place(self) -> sql.Identifier:
        return sql.Identifier(*filter(None, (self.schema, self.table)))


@dataclass(frozen=True, slots=True)
class MarkerInfo:
    """A marker column as it is. *rows*: those whose value is not null, in the snapshot."""

    marker: Marker
    rows: int
    is_message_id: bool


@dataclass(frozen=True, slots=True)
class DatabaseSnapshot:
    """One moment of a database. *name*: its exported snapshot. *place* names the database without a password."""

    url: str
    name: str
    place: str
    table_id: str | None  # None: there is no decision table
    wal_lsn: str
    read_at: str
    generation: int  # of the decision table: meta_client/transactions/generation.py
    decisions: list["DecisionRow"]  # rows not deleted yet, few
    markers: list[MarkerInfo]

    @property
    def qualifier(self) -> str | None:
        """Qualifier of the branches that this database's decision table decides."""
        return None if self.table_id is None else TableName(self.table_id).qualifier


class DecisionRow(NamedTuple):
    """One row of the decision table. *brokers*: as its text."""

    gtrid: str
    outcome: str
    brokers: str


@contextmanager
def _connected(url: str, *, autocommit: bool = False) -> Iterator[psycopg.Connection[Any]]:
    """Connect as one who is refused by a policy that hides rows, rather than shown fewer. Raises DatabaseProblem, for
    what the block raises of psycopg, too."""
    try:
        with psycopg.connect(url, autocommit=autocommit, application_name="metaq certify") as connection:
            connection.execute(_ALL_ROWS)
            yield connection
    except psycopg.Error as error:
        raise DatabaseProblem(str(error).strip().splitlines()[0]) from error


@contextmanager
def snapshot(url: str, markers: list[Marker], *, may_lack_table: bool = False) -> Iterator[DatabaseSnapshot]:
    """Open a snapshot; workers read it until the block ends. *may_lack_table*: coordinators decide. Raises
    DatabaseProblem."""
    with _connected(url, autocommit=True) as connection:
        connection.execute(_BEGIN)
        name = _one(connection, "SELECT pg_export_snapshot()")
        wal = "pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn()"
        info = connection.info
        has_table = not may_lack_table or _one(connection, _HAS_TABLE) == "True"
        found = DatabaseSnapshot(
            url,
            name,
            f"{info.dbname} at {info.host or 'localhost'}:{info.port}",
            _table_id(connection) if has_table else None,
            _one(connection, f"SELECT (CASE WHEN pg_is_in_recovery() THEN {wal} END)::text"),
            _one(connection, "SELECT now()::text"),
            (connection.execute(_GENERATION).fetchone() or ("", 0))[1] if has_table else 0,
            [DecisionRow(*row) for row in connection.execute(_DECISIONS) if row[0] != ANCHOR] if has_table else [],
            [_info(connection, marker) for marker in dict.fromkeys(markers)],
        )
        yield found


def _table_id(connection: psycopg.Connection[Any]) -> str:
    found = _one(connection, "SELECT table_id FROM metaq_decision_table")
    try:
        return TableName(found).table_id
    except ValueError as error:
        raise DatabaseProblem(f"metaq_decision_table is damaged: {error}") from error


def _one(connection: psycopg.Connection[Any], query: str) -> str:
    row = connection.execute(query).fetchone()
    if row is None or row[0] is None:
        raise DatabaseProblem(f"nothing answers {query}: run metaq txn init")
    return str(row[0])


def _info(connection: psycopg.Connection[Any], marker: Marker) -> MarkerInfo:
    query = sql.SQL("SELECT count({0}) FROM {1}")
    row = connection.execute(query.format(sql.Identifier(marker.column), marker.place)).fetchone()
    assert row is not None
    empty = sql.SQL("SELECT {0} FROM {1} LIMIT 0").format(sql.Identifier(marker.column), marker.place)
    found = connection.execute(empty).description[0]  # type: ignore[index]
    if found.type_code not in (*_IDS, *_TEXTS):
        raise DatabaseProblem(f"{marker} holds {found.type_display}: use text for gtrids, bigint for message ids")
    return MarkerInfo(marker, row[0], found.type_code in _IDS)


def column(spark: SparkSession, snapshot: DatabaseSnapshot, info: MarkerInfo) -> DataFrame:
    """Return the column's values that are not null: `text`, or `number` of a column of message ids."""
    tasks = min(TASKS_MAX, 1 + info.rows // ROWS_PER_TASK)
    read = partial(read_column, snapshot.url, snapshot.name, info, tasks)
    return worker_rows(spark, FORMAT, range(tasks), read, _SCHEMA)


def read_column(url: str, snapshot: str, info: MarkerInfo, tasks: int, rest: int) -> Iterator[pa.RecordBatch]:
    """Yield the values whose hashes have *rest*, modulo the number of *tasks*."""
    marker = info.marker
    query = sql.SQL(
        "SELECT {0}::{4} FROM {1} WHERE {0} IS NOT NULL AND abs(hashtext({0}::text)::bigint) % {2} = {3}"
    ).format(
        sql.Identifier(marker.column),
        marker.place,
        sql.Literal(tasks),
        sql.Literal(rest),
        sql.SQL("bigint" if info.is_message_id else "text"),
    )
    with psycopg.connect(url, autocommit=True, application_name="metaq certify") as connection:
        connection.execute(_ALL_ROWS)
        connection.execute(_BEGIN)
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        with connection.cursor("metaq_certify") as cursor:
            cursor.itersize = BATCH_ROWS
            cursor.execute(query)
            while rows := cursor.fetchmany(BATCH_ROWS):
                values = [value for (value,) in rows]
                nothing = [None] * len(values)
                columns = [nothing, values] if info.is_message_id else [values, nothing]
                yield pa.RecordBatch.from_arrays(
                    [pa.array(one, field.type) for one, field in zip(columns, _ARROW, strict=True)], schema=_ARROW
                )


def rows_now(url: str, marker: Marker, values: list[str]) -> list[str]:
    """Return those of *values* that the column has now, once for each row. Raises DatabaseProblem."""
    query = sql.SQL("SELECT {0}::text FROM {1} WHERE {0}::text = ANY(%s)").format(
        sql.Identifier(marker.column), marker.place
    )
    with _connected(url) as connection:
        return [value for (value,) in connection.execute(query, (values,))]


class StoredOffset(NamedTuple):
    """Offset at which a group goes on in a partition."""

    group: str
    topic: str
    partition: str  # <broker>-<number>
    offset: int


def stored_offsets(url: str, table: str) -> list[StoredOffset]:
    """Return the offsets that consumers keep in *table*, of SqlOffsetStore or TransactionOffsetStore. Raises
    DatabaseProblem."""
    name = sql.Identifier(*table.split("."))
    query = sql.SQL('SELECT group_id, topic, partition, "offset" FROM {} ORDER BY 1, 2, 3').format(name)
    with _connected(url) as connection:
        return [StoredOffset(*row) for row in connection.execute(query)]
