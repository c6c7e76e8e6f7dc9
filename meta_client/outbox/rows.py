"""Tables of an outbox in SQLAlchemy Core: their definition, and every statement.

metaq_outbox has a row for each message, by id; `refused` says why a broker does not take it. metaq_outbox_relay has one
row, which a relay locks: two relays never move rows at the same time. It names the batches that brokers may not have
committed.
"""

import datetime
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from meta_client.outbox.batches import BatchBranch, dump, load
from meta_client.outbox.errors import NoOutbox
from meta_client.protocol.trace_context import split_traceparent
from meta_client.sql.core import (
    ARRAY,
    TIMESTAMP,
    BigInteger,
    Column,
    Connection,
    CreateTable,
    Dialect,
    Identity,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    Table,
    Text,
    any_,
    bindparam,
    bytewise_text,
    delete,
    exc,
    func,
    insert,
    known_column,
    known_table,
    mysql,
    select,
    update,
)
from meta_client.sql.executor import Executor, SqlAlchemyExecutor
from meta_client.transactions.names import TableName
from meta_client.transactions.table import IDENTITY, RowDecision, parse_brokers
from meta_client.transactions.table import TABLE as DECISIONS

TABLE: Final = "metaq_outbox"
RELAY_TABLE: Final = "metaq_outbox_relay"
TOPIC_MAX: Final = 255  # characters
PLACE_MAX: Final = 21  # "2147483647-2147483647"
REASON_MAX: Final = 1_000  # characters


class OutboxRow(NamedTuple):
    """A message that waits."""

    id: int
    topic: str
    payload: bytes
    attribute: str | None
    partition: str | None
    until: int  # bytes of the batch up to its end


class RefusedRow(NamedTuple):
    """A message that no broker takes, with the reason and its age by the database's clock."""

    id: int
    topic: str
    attribute: str | None
    bytes: int
    age_s: float
    refused: str


class OutboxStatus(NamedTuple):
    """Contents of an outbox."""

    waiting: int
    oldest_age_s: float | None  # of what waits; None: nothing does
    refused: int
    relayed_age_s: float | None  # since a relay last moved rows; None: none has


def _any_text() -> Text:
    return Text().with_variant(mysql.LONGTEXT(charset="utf8mb4"), "mysql", "mariadb")


class _Tables:
    """Both tables. *quote*: see Column."""

    def __init__(self, quote: bool | None) -> None:
        both = MetaData()
        self.outbox = Table(
            TABLE,
            both,
            Column("id", BigInteger().with_variant(Integer, "sqlite"), Identity(), primary_key=True, quote=quote),
            Column("topic", bytewise_text(TOPIC_MAX), nullable=False, quote=quote),
            Column("payload", LargeBinary().with_variant(mysql.LONGBLOB, "mysql", "mariadb"), nullable=False),
            Column("attribute", _any_text(), quote=quote),
            Column("partition", bytewise_text(PLACE_MAX), quote=quote),
            Column("added_at", TIMESTAMP(timezone=True), nullable=False, server_default=func.now()),
            Column("refused", _any_text()),
            mysql_engine="InnoDB",
            sqlite_autoincrement=True,
            quote=quote,
        )
        self.relay = Table(
            RELAY_TABLE,
            both,
            Column("only_one", Integer, primary_key=True, autoincrement=False),
            Column("relayed_at", TIMESTAMP(timezone=True), nullable=True),
            Column("batches", _any_text()),
            mysql_engine="InnoDB",
            quote=quote,
        )
        names = "topic", "payload", "attribute", "partition"
        self.insert = insert(self.outbox).values({name: bindparam(f"the_{name}") for name in names}).inline()


_tables = lru_cache(maxsize=4)(_Tables)
_OUTBOX: Final = _tables(None).outbox
_RELAY: Final = _tables(None).relay
_WAITS: Final = _OUTBOX.c.refused.is_(None)
_DUE: Final = _WAITS & _OUTBOX.c.topic.not_in(bindparam("passed_over", expanding=True))
_FIRST: Final = select(_OUTBOX.c.id).where(_DUE).limit(1)
_MAKE_ROW: Final = insert(_RELAY).values(only_one=1)
# InnoDB locks each row that a statement passes, waits for those that are not committed, and keeps others from adding
# any: there, statements that change rows name one each.
_LOCKS_WHAT_IT_PASSES: Final = ("mysql", "mariadb")
_AT_ID: Final = _OUTBOX.c.id == bindparam("the_id")
_REMOVE: Final = delete(_OUTBOX).where(_OUTBOX.c.id.in_(bindparam("ids", expanding=True)))
_REMOVE_ARRAY: Final = delete(_OUTBOX).where(_OUTBOX.c.id == any_(bindparam("ids", type_=ARRAY(BigInteger))))
_REMOVE_ONE: Final = delete(_OUTBOX).where(_AT_ID)
_TOUCH: Final = update(_RELAY).values(only_one=1)
_LOCK: Final = select(_RELAY.c.batches).with_for_update()
_RECORD: Final = update(_RELAY).values(batches=bindparam("the_batches"), relayed_at=func.now())
_DECISION: Final = known_table(DECISIONS, *map(known_column, ("gtrid", "outcome", "brokers"))).c
_IDENTITY: Final = known_table(IDENTITY, *map(known_column, ("table_id", "generation"))).c
_IS_COMMIT: Final = (_DECISION.gtrid == bindparam("gtrid")) & (_DECISION.outcome == RowDecision.COMMIT.value)
_BROKERS: Final = select(_DECISION.brokers).where(_IS_COMMIT)
_TABLE_ID: Final = select(_IDENTITY.table_id)
_GENERATION: Final = select(_IDENTITY.generation)
_RETRY_ONE: Final = update(_OUTBOX).where(_AT_ID).values(refused=None)


def _oldest() -> Select[Any]:
    """Return the statement that reads a batch: as many rows as begin below a sum of bytes."""
    size = (func.length(_OUTBOX.c.payload) + func.length(func.coalesce(_OUTBOX.c.attribute, ""))).label("size")
    first = select(_OUTBOX.c.id, size).where(_DUE).order_by(_OUTBOX.c.id).limit(bindparam("count_max")).subquery()
    until = func.sum(first.c.size).over(order_by=first.c.id).label("until")
    summed = select(first.c.id, first.c.size, until).subquery()
    *columns, _ = OutboxRow._fields
    found = select(*(_OUTBOX.c[name] for name in columns), summed.c.until).join(summed, summed.c.id == _OUTBOX.c.id)
    return found.where(summed.c.until - summed.c.size < bindparam("bytes_max")).order_by(_OUTBOX.c.id)


_OLDEST: Final = _oldest()


def add_row(executor: Executor, topic: str, payload: bytes, attribute: str | None, partition: str | None) -> None:
    """Insert a message."""
    values: Mapping[str, object] = {
        "the_topic": topic,
        "the_payload": payload,
        "the_attribute": attribute,
        "the_partition": partition,
    }
    executor.execute(_tables(executor.quote).insert, values)


def ddl(dialect: Dialect) -> str:
    """Return the SQL that makes both tables, for a migration."""
    made = [CreateTable(_OUTBOX), CreateTable(_RELAY), _MAKE_ROW]
    compiled = [each.compile(dialect=dialect, compile_kwargs={"literal_binds": True}) for each in made]
    return "".join(f"{str(each).strip()};\n" for each in compiled)


def create(connection: Connection) -> None:
    """Make both tables if missing, and the relay's row. Commits."""
    executor = SqlAlchemyExecutor(connection)
    for table in (_OUTBOX, _RELAY):
        executor.create(select(table).limit(1), CreateTable(table))
    if connection.scalar(select(_RELAY.c.only_one)) is None:
        try:
            connection.execute(_MAKE_ROW)
        except exc.IntegrityError:  # another process made it meanwhile
            connection.rollback()
    connection.commit()


def is_complete(connection: Connection) -> bool:
    """Return whether the relay's row is there. Raises the database's error without the tables."""
    connection.execute(select(_OUTBOX.c.id).limit(1))
    return connection.scalar(select(_RELAY.c.only_one)) is not None


def has_waiting(connection: Connection, passed_over: Collection[str]) -> bool:
    """Return whether a message waits whose topic is not among *passed_over*."""
    return connection.scalar(_FIRST, {"passed_over": list(passed_over)}) is not None


def lock(connection: Connection) -> tuple[BatchBranch, ...]:
    """Let no other relay move rows until the transaction ends, and wait for one that does. Return the branches that
    brokers may not have committed. Raises NoOutbox (DamagedRow)."""
    if connection.dialect.name == "sqlite":  # has no FOR UPDATE: a write locks the file
        connection.execute(_TOUCH)
    row = connection.execute(_LOCK).first()
    if row is None:
        raise NoOutbox(f"{RELAY_TABLE} is empty")
    return load(row[0] or "")


def brokers_of(connection: Connection, gtrid: str) -> tuple[int, ...]:
    """Return the brokers that may not have committed a batch yet; empty: all have."""
    return parse_brokers(connection.scalar(_BROKERS, {"gtrid": gtrid}) or "") or ()


def oldest(connection: Connection, passed_over: Collection[str], count_max: int, bytes_max: int) -> Sequence[OutboxRow]:
    """Return the first messages that wait, by id: at most so many, and so many bytes and a message."""
    values = {"passed_over": list(passed_over), "count_max": count_max, "bytes_max": bytes_max}
    return [OutboxRow(*row) for row in connection.execute(_OLDEST, values)]


def table_name(connection: Connection) -> TableName:
    """Return the name of the decision table. Raises ValueError for one that is damaged."""
    return TableName(str(connection.scalar(_TABLE_ID)))


def generation(connection: Connection) -> int:
    """Return the decision table's generation."""
    return int(connection.scalar(_GENERATION) or 0)


def record_batches(connection: Connection, branches: Sequence[BatchBranch]) -> None:
    """Record a batch with its decision, and what is left of those before."""
    connection.execute(_RECORD, {"the_batches": dump(branches)})


def remove(connection: Connection, ids: Collection[int]) -> int:
    """Delete messages; return how many were there."""
    if connection.dialect.name in _LOCKS_WHAT_IT_PASSES:
        return connection.execute(_REMOVE_ONE, [{"the_id": row_id} for row_id in ids]).rowcount
    statement = _REMOVE_ARRAY if connection.dialect.name == "postgresql" else _REMOVE
    return connection.execute(statement, {"ids": list(ids)}).rowcount


def refuse(connection: Connection, row_id: int, reason: str) -> None:
    """Set a message aside, with the reason. Commits."""
    connection.execute(update(_OUTBOX).where(_OUTBOX.c.id == row_id).values(refused=reason[:REASON_MAX]))
    connection.commit()


def retry(connection: Connection, ids: Collection[int] | None) -> int:
    """Have messages that were refused wait again, all without *ids*; return how many. Commits."""
    chosen = () if ids is None else (_OUTBOX.c.id.in_(ids),)
    found = [{"the_id": row_id} for row_id in connection.scalars(select(_OUTBOX.c.id).where(~_WAITS, *chosen))]
    if found:
        connection.execute(_RETRY_ONE, found)
    connection.commit()
    return len(found)


def status(connection: Connection) -> OutboxStatus:
    """Count what the outbox holds: a pass over all of it."""
    waiting, first, now = _one(connection, select(func.count(), func.min(_OUTBOX.c.added_at), func.now()).where(_WAITS))
    refused = connection.scalar(select(func.count()).select_from(_OUTBOX).where(~_WAITS))
    (relayed_at,) = _one(connection, select(_RELAY.c.relayed_at))
    return OutboxStatus(waiting, _age_s(now, first), int(refused or 0), _age_s(now, relayed_at))


def refused_rows(connection: Connection, limit: int) -> list[RefusedRow]:
    """Return the messages that no broker takes, oldest first."""
    table = _OUTBOX.c
    columns = table.id, table.topic, table.attribute, func.length(table.payload), func.now(), table.added_at
    found = connection.execute(select(*columns, table.refused).where(~_WAITS).order_by(table.id).limit(limit))
    return [
        RefusedRow(
            row_id, topic, attribute and split_traceparent(attribute)[0], size, _age_s(now, added_at) or 0.0, why
        )
        for row_id, topic, attribute, size, now, added_at, why in found
    ]


def _one(connection: Connection, statement: Any) -> Any:
    return connection.execute(statement).first() or (None,)


def _age_s(now: datetime.datetime, then: datetime.datetime | None) -> float | None:
    return None if then is None else max(0.0, (now - then).total_seconds())
