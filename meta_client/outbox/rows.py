"""Statements on the tables of an outbox, in SQLAlchemy Core."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from meta_client.outbox.decision_rows import is_unconfirmed
from meta_client.outbox.errors import NoOutbox, RowsChanged
from meta_client.outbox.relay_state import BatchBranch, RelayState, load
from meta_client.outbox.tables import ASIDE, DEFERRED, OUTBOX, RELAY, RELAY_TABLE, tables
from meta_client.outbox.waits import PassedOver
from meta_client.protocol.integers import INT64_MIN
from meta_client.sql.core import (
    ARRAY,
    BigInteger,
    Connection,
    Delete,
    Insert,
    Table,
    any_,
    bindparam,
    delete,
    func,
    insert,
    select,
    tuple_,
    update,
)
from meta_client.sql.executor import Executor
from zk.tree.nodes import Partition

REASON_MAX: Final = 1_000  # characters
PUT_BACK_AT_ONCE: Final = 4_000


class OutboxRow(NamedTuple):
    """A message that waits. *partition*: of a deferred one, where it was to go."""

    id: int
    topic: str
    payload: bytes
    attribute: str | None
    partition: str | None
    until: int  # bytes of the batch up to its end


# InnoDB locks each row that a statement passes, waits for those that are not committed, and keeps others from adding
# any: there, statements that change rows name one each.
_LOCKS_WHAT_IT_PASSES: Final = ("mysql", "mariadb")
_TOUCH: Final = update(RELAY).values(only_one=1)
_RECORD: Final = update(RELAY).values(state=bindparam("the_state"), relayed_at=func.now())
_READ_STATE: Final = select(RELAY.c.state)
_LOCK: Final = _READ_STATE.with_for_update()
_WRITE_STATE: Final = update(RELAY).values(state=bindparam("the_state"))
_MESSAGE: Final = "id", "topic", "payload", "attribute", "partition", "added_at"


def _by_id(table: Table) -> Delete:
    return delete(table).where(table.c.id == bindparam("the_id"))


def _copy(source: Table, to: Table, *where: Any, **others: Any) -> Insert:
    """Return the statement that copies the row `the_id`, or those *where*, from one table to another, with *others* as
    columns."""
    columns = {name: source.c[name] for name in _MESSAGE} | others
    found = select(*columns.values()).where(*where or (source.c.id == bindparam("the_id"),))
    return insert(to).from_select(list(columns), found)


def _below_all(connection: Connection) -> int:
    """Return an id that is free everywhere, for a message whose own is taken: TRUNCATE in MySQL has ids begin again,
    while rows of before are set aside."""
    least = (connection.scalar(select(func.min(table.c.id))) or 0 for table in (OUTBOX, DEFERRED, ASIDE))
    return min(0, *least) - 1


_NEW_ID: Final = bindparam("new_id", type_=BigInteger)
_DEFER: Final = _copy(OUTBOX, DEFERRED, broker_id=bindparam("the_broker"), destination=bindparam("the_destination"))
_BACK: Final = _copy(ASIDE, OUTBOX, id=_NEW_ID), _by_id(ASIDE)
_FROM: Final = DEFERRED.c.id >= bindparam("first")
_SHIFT: Final = (
    _copy(
        DEFERRED,
        DEFERRED,
        _FROM,
        id=DEFERRED.c.id - bindparam("shift", type_=BigInteger),
        broker_id=DEFERRED.c.broker_id,
        destination=DEFERRED.c.destination,
    ),
    delete(DEFERRED).where(_FROM),
)
_RELEASED: Final = (
    DEFERRED.c.broker_id == bindparam("broker"),
    DEFERRED.c.id.between(bindparam("first"), bindparam("last")),
)
_PUT_BACK: Final = _copy(DEFERRED, OUTBOX, *_RELEASED), delete(DEFERRED).where(*_RELEASED)


def add_row(executor: Executor, topic: str, payload: bytes, attribute: str | None, partition: str | None) -> None:
    """Insert a message."""
    values: Mapping[str, object] = {
        "the_topic": topic,
        "the_payload": payload,
        "the_attribute": attribute,
        "the_partition": partition,
    }
    executor.execute(tables(executor.quote).insert, values)


class RowSource:
    """Rows of one table, which a relay moves, those first whose ids are least. *partition*: its column of that name."""

    def __init__(self, table: Table, partition: str, *due: Any) -> None:
        cells = table.c
        self._first = select(cells.id).where(*due).limit(1)
        size = (func.length(cells.payload) + func.length(func.coalesce(cells.attribute, ""))).label("size")
        first = select(cells.id, size).where(*due).order_by(cells.id).limit(bindparam("count_max")).subquery()
        until = func.sum(first.c.size).over(order_by=first.c.id).label("until")
        summed = select(first.c.id, first.c.size, until).subquery()
        columns = *(cells[name] for name in ("id", "topic", "payload", "attribute", partition)), summed.c.until
        found = select(*columns).join(summed, summed.c.id == cells.id).order_by(cells.id)
        self._oldest = found.where(summed.c.until - summed.c.size < bindparam("bytes_max"))
        self._remove = delete(table).where(cells.id.in_(bindparam("ids", expanding=True)))
        self._remove_array = delete(table).where(cells.id == any_(bindparam("ids", type_=ARRAY(BigInteger))))
        self._remove_one = _by_id(table)
        self._set_aside = _copy(table, ASIDE, id=_NEW_ID, reason=bindparam("the_reason"))

    def has_any(self, connection: Connection, **due: Collection[Any]) -> bool:
        """Return whether a row is *due*: *passed_over* are topics; of deferred ones there are *brokers*, and *places*
        passed over."""
        return connection.scalar(self._first, _listed(due)) is not None

    def oldest(
        self, connection: Connection, count_max: int, bytes_max: int, **due: Collection[Any]
    ) -> Sequence[OutboxRow]:
        """Return the first rows that are *due*: at most so many, and so many bytes and a message."""
        values = {"count_max": count_max, "bytes_max": bytes_max} | _listed(due)
        return [OutboxRow(*row) for row in connection.execute(self._oldest, values)]

    def remove(self, connection: Connection, ids: Collection[int]) -> None:
        """Delete rows. Raises RowsChanged unless all are there."""
        if connection.dialect.name in _LOCKS_WHAT_IT_PASSES:
            removed = connection.execute(self._remove_one, [{"the_id": row_id} for row_id in ids]).rowcount
        else:
            statement = self._remove_array if connection.dialect.name == "postgresql" else self._remove
            removed = connection.execute(statement, {"ids": list(ids)}).rowcount
        _check_count(removed, len(ids))

    def set_aside(self, connection: Connection, row_id: int, reason: str) -> None:
        """Set a message aside, with the reason. Commits. Raises RowsChanged."""
        is_taken = connection.scalar(select(ASIDE.c.id).where(ASIDE.c.id == row_id)) is not None
        new_id = _below_all(connection) if is_taken else row_id
        connection.execute(self._set_aside, {"the_id": row_id, "new_id": new_id, "the_reason": reason[:REASON_MAX]})
        _check_count(connection.execute(self._remove_one, {"the_id": row_id}).rowcount, 1)
        connection.commit()


def _ended(topic: Any) -> Any:
    """Return a topic, or the column, with an end: MySQL's collations compare as if there were no spaces there."""
    return topic + "/"


def _listed(due: Mapping[str, Collection[Any]]) -> dict[str, Any]:
    """Return the parameters that say what is due."""
    values = {name: list(each) for name, each in due.items()}
    values["passed_over"] = list(map(_ended, due["passed_over"]))
    if "places" in due:
        values["places"] = [(_ended(topic), broker_id) for topic, broker_id in due["places"]]
    return values


_NOT_OVER: Final[Any] = bindparam("passed_over", expanding=True)
WAITING: Final = RowSource(OUTBOX, "partition", _ended(OUTBOX.c.topic).not_in(_NOT_OVER))
DEFERRED_ROWS: Final = RowSource(
    DEFERRED,
    "destination",
    _ended(DEFERRED.c.topic).not_in(_NOT_OVER),
    DEFERRED.c.broker_id.in_(bindparam("brokers", expanding=True)),
    tuple_(_ended(DEFERRED.c.topic), DEFERRED.c.broker_id).not_in(bindparam("places", expanding=True)),
)


def defer(connection: Connection, deferred: Collection[tuple[OutboxRow, Partition]]) -> None:
    """Have messages wait for the brokers of these partitions, where others pass them. Raises RowsChanged."""
    values = [
        {"the_id": row.id, "the_broker": partition.broker_id, "the_destination": str(partition)}
        for row, partition in deferred
    ]
    taken = select(DEFERRED.c.id).where(DEFERRED.c.id.in_([row.id for row, _ in deferred])).limit(1)
    if connection.scalar(taken) is not None:
        _shift_deferred(connection)
    connection.execute(_DEFER, values)
    WAITING.remove(connection, [row.id for row, _ in deferred])


def _shift_deferred(connection: Connection) -> None:
    """Give deferred messages ids below all others: where ids began again, those of before go first, in their order."""
    ids = DEFERRED.c.id
    first, last, count = connection.execute(select(func.min(ids), func.max(ids), func.count())).one()
    _change_tables(connection, _SHIFT, {"first": first, "shift": last - _below_all(connection)}, count)


def read_state(connection: Connection) -> RelayState:
    """Return what the relay's row tells. Raises NoOutbox (DamagedRow)."""
    return _loaded(connection.execute(_READ_STATE).first())


def _loaded(row: Any) -> RelayState:
    if row is None:
        raise NoOutbox(f"{RELAY_TABLE} is empty")
    return load(row[0] or "")


def lock(connection: Connection) -> RelayState:
    """Let no other relay move rows until the transaction ends, and wait for one that does. Raises NoOutbox
    (DamagedRow)."""
    if connection.dialect.name == "sqlite":  # has no FOR UPDATE: a write locks the file
        connection.execute(_TOUCH)
    return _loaded(connection.execute(_LOCK).first())


def has_any(connection: Connection, state: RelayState, over: PassedOver) -> bool:
    """Return whether messages wait, except those *over*."""
    ready = set(state.deferred).difference(over.brokers)
    if ready and DEFERRED_ROWS.has_any(connection, passed_over=over.topics, brokers=ready, places=over.places):
        return True
    return WAITING.has_any(connection, passed_over=over.topics)


def oldest_deferred(
    connection: Connection, count_max: int, bytes_max: int, over: PassedOver, brokers: Collection[int]
) -> Sequence[OutboxRow]:
    """Return the first rows for *brokers*, except those *over*."""
    due = {"passed_over": over.topics, "brokers": brokers, "places": over.places}
    return DEFERRED_ROWS.oldest(connection, count_max, bytes_max, **due)


def has_deferred(connection: Connection, broker_id: int) -> bool:
    """Return whether messages are deferred for a broker."""
    return DEFERRED_ROWS.has_any(connection, passed_over=(), brokers=[broker_id], places=())


def write_state(connection: Connection, state: RelayState, *, is_moved: bool) -> None:
    """Record *state* with the decision about a batch. *is_moved*: messages were sent, just now."""
    connection.execute(_RECORD if is_moved else _WRITE_STATE, {"the_state": state.dump()})


def unconfirmed(connection: Connection) -> list[BatchBranch]:
    """Return branches that brokers may not have committed: messages for these brokers wait until they have. Raises
    DamagedRow."""
    return _undone(connection, read_state(connection))


def _undone(connection: Connection, state: RelayState) -> list[BatchBranch]:
    return [branch for branch in state.batches if is_unconfirmed(connection, branch)]


def release(connection: Connection, broker_id: int) -> tuple[int, int]:
    """Have messages wait no longer for a broker; return the number of its branches given up, and of messages that were
    put back. Commits. Raises NoOutbox (DamagedRow), RowsChanged."""
    last, put_back, cells = INT64_MIN, 0, DEFERRED.c
    wanted = select(cells.id).where(cells.broker_id == broker_id).order_by(cells.id).limit(PUT_BACK_AT_ONCE)
    state = lock(connection)  # to the end: if the broker comes back, later ones would overtake those put back
    if connection.scalar(select(cells.id).join(OUTBOX, OUTBOX.c.id == cells.id).limit(1)) is not None:
        _shift_deferred(connection)
    while found := list(connection.scalars(wanted.where(cells.id > last))):
        last, put_back = found[-1], put_back + len(found)
        _change_tables(connection, _PUT_BACK, {"broker": broker_id, "first": found[0], "last": last}, len(found))
    given_up = sum(branch.broker_id == broker_id for branch in _undone(connection, state))
    batches = tuple(branch for branch in state.batches if branch.broker_id != broker_id)
    deferred = tuple(each for each in state.deferred if each != broker_id)
    connection.execute(_WRITE_STATE, {"the_state": RelayState(batches, deferred).dump()})
    connection.commit()
    return given_up, put_back


def retry(connection: Connection, ids: Collection[int] | None) -> int:
    """Have messages that were set aside wait again, all without *ids*; return how many. Commits. Raises
    RowsChanged."""
    chosen = () if ids is None else (ASIDE.c.id.in_(ids),)
    waiting = set(connection.scalars(select(ASIDE.c.id).join(OUTBOX, OUTBOX.c.id == ASIDE.c.id).where(*chosen)))
    free = itertools.count(_below_all(connection), -1)
    every = connection.scalars(select(ASIDE.c.id).where(*chosen))
    found = [{"the_id": row_id, "new_id": next(free) if row_id in waiting else row_id} for row_id in every]
    if found:
        _change_tables(connection, _BACK, found, len(found))
    connection.commit()
    return len(found)


def _change_tables(connection: Connection, statements: tuple[Insert, Delete], values: Any, count: int) -> None:
    copy, remove_them = statements
    connection.execute(copy, values)
    _check_count(connection.execute(remove_them, values).rowcount, count)


def _check_count(removed: int, read: int) -> None:
    """Raise RowsChanged if another process has removed what was read: a message would be there twice."""
    if removed != read:
        raise RowsChanged("rows of the outbox were changed while they were moved: nothing was moved")
