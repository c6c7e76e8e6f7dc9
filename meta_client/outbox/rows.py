"""Statements on the tables of an outbox, in SQLAlchemy Core."""

import datetime
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from meta_client.outbox.batches import BatchBranch, dump, load
from meta_client.outbox.errors import NoOutbox, RowsChanged
from meta_client.outbox.tables import ASIDE, OUTBOX, RELAY, RELAY_TABLE, tables
from meta_client.protocol.trace_context import split_traceparent
from meta_client.sql.core import (
    ARRAY,
    BigInteger,
    Connection,
    Insert,
    Select,
    Table,
    any_,
    bindparam,
    delete,
    func,
    insert,
    known_column,
    known_table,
    select,
    update,
)
from meta_client.sql.executor import Executor
from meta_client.transactions.names import TableName
from meta_client.transactions.table import IDENTITY, RowDecision, parse_brokers
from meta_client.transactions.table import TABLE as DECISIONS

REASON_MAX: Final = 1_000  # characters
COUNTED_MAX: Final = 100_000  # rows that a look counts one by one


class OutboxRow(NamedTuple):
    """A message that waits."""

    id: int
    topic: str
    payload: bytes
    attribute: str | None
    partition: str | None
    until: int  # bytes of the batch up to its end


class AsideRow(NamedTuple):
    """A message that was set aside, with the reason and its age by the database's clock."""

    id: int
    topic: str
    attribute: str | None
    bytes: int
    age_s: float
    reason: str


class OutboxStatus(NamedTuple):
    """Contents of an outbox. A count above COUNTED_MAX is estimated by ids, rather too high."""

    waiting: int
    oldest_age_s: float | None  # of what waits; None: nothing does
    aside: int
    relayed_age_s: float | None  # since a relay last moved rows; None: none has


_DUE: Final = OUTBOX.c.topic.not_in(bindparam("passed_over", expanding=True))
_FIRST: Final = select(OUTBOX.c.id).where(_DUE).limit(1)
# InnoDB locks each row that a statement passes, waits for those that are not committed, and keeps others from adding
# any: there, statements that change rows name one each.
_LOCKS_WHAT_IT_PASSES: Final = ("mysql", "mariadb")
_REMOVE: Final = delete(OUTBOX).where(OUTBOX.c.id.in_(bindparam("ids", expanding=True)))
_REMOVE_ONE: Final = delete(OUTBOX).where(OUTBOX.c.id == bindparam("the_id"))
_REMOVE_ARRAY: Final = delete(OUTBOX).where(OUTBOX.c.id == any_(bindparam("ids", type_=ARRAY(BigInteger))))
_TOUCH: Final = update(RELAY).values(only_one=1)
_RECORD: Final = update(RELAY).values(batches=bindparam("the_batches"), relayed_at=func.now())
_READ_BATCHES: Final = select(RELAY.c.batches)
_LOCK: Final = _READ_BATCHES.with_for_update()
_WRITE_BATCHES: Final = update(RELAY).values(batches=bindparam("the_batches"))
_DECISION: Final = known_table(DECISIONS, *map(known_column, ("gtrid", "outcome", "brokers"))).c
_IDENTITY: Final = known_table(IDENTITY, *map(known_column, ("table_id", "generation"))).c
_IS_COMMIT: Final = (_DECISION.gtrid == bindparam("gtrid")) & (_DECISION.outcome == RowDecision.COMMIT.value)
_BROKERS: Final = select(_DECISION.brokers).where(_IS_COMMIT)
_TABLE_ID: Final = select(_IDENTITY.table_id)
_GENERATION: Final = select(_IDENTITY.generation)
_MESSAGE: Final = "id", "topic", "payload", "attribute", "partition", "added_at"


def _oldest() -> Select[Any]:
    """Return the statement that reads a batch: as many rows as begin below a sum of bytes."""
    size = (func.length(OUTBOX.c.payload) + func.length(func.coalesce(OUTBOX.c.attribute, ""))).label("size")
    first = select(OUTBOX.c.id, size).where(_DUE).order_by(OUTBOX.c.id).limit(bindparam("count_max")).subquery()
    until = func.sum(first.c.size).over(order_by=first.c.id).label("until")
    summed = select(first.c.id, first.c.size, until).subquery()
    *columns, _ = OutboxRow._fields
    found = select(*(OUTBOX.c[name] for name in columns), summed.c.until).join(summed, summed.c.id == OUTBOX.c.id)
    return found.where(summed.c.until - summed.c.size < bindparam("bytes_max")).order_by(OUTBOX.c.id)


def _copy(source: Table, to: Table, **others: Any) -> Insert:
    """Return the statement that copies the row `the_id` from one table to another."""
    found = select(*(source.c[name] for name in _MESSAGE), *others.values()).where(source.c.id == bindparam("the_id"))
    return insert(to).from_select([*_MESSAGE, *others], found)


def _counted(table: Table) -> Any:
    return select(func.count()).select_from(select(table.c.id).limit(COUNTED_MAX + 1).subquery()).scalar_subquery()


def _span(table: Table) -> Select[Any]:
    """Return the statement for the number of ids from the first row to the last; SQLite finds the ends only one by
    one."""
    first, last = (select(each(table.c.id)).scalar_subquery() for each in (func.min, func.max))
    return select(last - first + 1)


_OLDEST: Final = _oldest()
_SET_ASIDE: Final = _copy(OUTBOX, ASIDE, reason=bindparam("the_reason")), _REMOVE_ONE
_BACK: Final = _copy(ASIDE, OUTBOX), delete(ASIDE).where(ASIDE.c.id == bindparam("the_id"))
_STATUS: Final = select(
    func.now(),
    _counted(OUTBOX),
    select(OUTBOX.c.added_at).order_by(OUTBOX.c.id).limit(1).scalar_subquery(),
    _counted(ASIDE),
    select(RELAY.c.relayed_at).limit(1).scalar_subquery(),
)


def add_row(executor: Executor, topic: str, payload: bytes, attribute: str | None, partition: str | None) -> None:
    """Insert a message."""
    values: Mapping[str, object] = {
        "the_topic": topic,
        "the_payload": payload,
        "the_attribute": attribute,
        "the_partition": partition,
    }
    executor.execute(tables(executor.quote).insert, values)


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


def remove(connection: Connection, ids: Collection[int]) -> None:
    """Delete messages. Raises RowsChanged unless all are there."""
    if connection.dialect.name in _LOCKS_WHAT_IT_PASSES:
        removed = connection.execute(_REMOVE_ONE, [{"the_id": row_id} for row_id in ids]).rowcount
    else:
        statement = _REMOVE_ARRAY if connection.dialect.name == "postgresql" else _REMOVE
        removed = connection.execute(statement, {"ids": list(ids)}).rowcount
    _check_count(removed, len(ids))


def unconfirmed(connection: Connection) -> list[BatchBranch]:
    """Return branches that brokers may not have committed: messages of their topics wait until they have. Raises
    DamagedRow."""
    recorded = load(connection.scalar(_READ_BATCHES) or "")
    return [branch for branch in recorded if branch.broker_id in brokers_of(connection, branch.gtrid)]


def release(connection: Connection, broker_id: int) -> list[BatchBranch]:
    """Have messages wait no longer for the branches of a broker; return these. Commits. Raises NoOutbox
    (DamagedRow)."""
    recorded = lock(connection)
    gone = [branch for branch in recorded if branch.broker_id == broker_id]
    if gone:
        connection.execute(
            _WRITE_BATCHES, {"the_batches": dump([each for each in recorded if each.broker_id != broker_id])}
        )
    connection.commit()
    return gone


def set_aside(connection: Connection, row_id: int, reason: str) -> None:
    """Set a message aside, with the reason. Commits. Raises RowsChanged."""
    copy, remove_it = _SET_ASIDE
    connection.execute(copy, {"the_id": row_id, "the_reason": reason[:REASON_MAX]})
    _check_count(connection.execute(remove_it, {"the_id": row_id}).rowcount, 1)
    connection.commit()


def retry(connection: Connection, ids: Collection[int] | None) -> int:
    """Have messages that were set aside wait again, all without *ids*; return how many. Commits. Raises
    RowsChanged."""
    chosen = () if ids is None else (ASIDE.c.id.in_(ids),)
    found = [{"the_id": row_id} for row_id in connection.scalars(select(ASIDE.c.id).where(*chosen))]
    if found:
        copy, remove_it = _BACK
        connection.execute(copy, found)
        _check_count(connection.execute(remove_it, found).rowcount, len(found))
    connection.commit()
    return len(found)


def _check_count(removed: int, read: int) -> None:
    """Raise RowsChanged if another process has removed what was read: a message would be there twice."""
    if removed != read:
        raise RowsChanged("rows of the outbox were changed while they were moved: nothing was moved")


def status(connection: Connection) -> OutboxStatus:
    """Count what the outbox holds."""
    now, waiting, first, aside, relayed_at = connection.execute(_STATUS).one()
    waiting, aside = (
        int(connection.scalar(_span(table)) or 0) if count > COUNTED_MAX else count
        for table, count in ((OUTBOX, waiting), (ASIDE, aside))
    )
    return OutboxStatus(waiting, _age_s(now, first), aside, _age_s(now, relayed_at))


def aside_rows(connection: Connection, limit: int) -> list[AsideRow]:
    """Return messages that were set aside, oldest first."""
    table = ASIDE.c
    columns = table.id, table.topic, table.attribute, func.length(table.payload), func.now(), table.added_at
    found = connection.execute(select(*columns, table.reason).order_by(table.id).limit(limit))
    return [
        AsideRow(row_id, topic, attribute and split_traceparent(attribute)[0], size, _age_s(now, added_at) or 0.0, why)
        for row_id, topic, attribute, size, now, added_at, why in found
    ]


def _age_s(now: datetime.datetime, then: datetime.datetime | None) -> float | None:
    return None if then is None else max(0.0, (now - then).total_seconds())
