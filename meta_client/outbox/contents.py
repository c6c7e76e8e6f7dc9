"""Counts and lists what an outbox holds, in SQLAlchemy Core. Changes nothing."""

import datetime
import time
from typing import Any, Final, NamedTuple

from meta_client.outbox.errors import NoOutbox
from meta_client.outbox.tables import ASIDE, DEFERRED, OUTBOX, RELAY
from meta_client.protocol.trace_context import split_traceparent
from meta_client.sql.core import Connection, Select, Table, func, known_column, known_table, select

_CLASS: Final = known_table("pg_class", *map(known_column, ("oid", "relpersistence")))
COUNTED_MAX: Final = 100_000  # rows that a look counts one by one
STATUS_S: Final = 5.0  # between two looks


class AsideRow(NamedTuple):
    """A message that was set aside, with the reason and its age by the database's clock."""

    id: int
    topic: str
    attribute: str | None
    bytes: int
    age_s: float
    reason: str


class OutboxStatus(NamedTuple):
    """Contents of an outbox. A table's count above COUNTED_MAX is estimated."""

    waiting: int
    oldest_age_s: float | None  # of what waits; None: nothing does
    aside: int
    relayed_age_s: float | None  # since a relay last moved rows; None: none has

    @property
    def is_estimated(self) -> bool:
        """True if a number may be estimated."""
        return max(self.waiting, self.aside) > COUNTED_MAX


def _counted(table: Table) -> Any:
    return select(func.count()).select_from(select(table.c.id).limit(COUNTED_MAX + 1).subquery()).scalar_subquery()


def _marks(table: Table) -> Select[Any]:
    """Return the statement for the ids of the first row, of the last one that is counted, and of the last; SQLite finds
    the ends only one by one."""
    first, last = (select(each(table.c.id)).scalar_subquery() for each in (func.min, func.max))
    counted = select(table.c.id).order_by(table.c.id).offset(COUNTED_MAX).limit(1).scalar_subquery()
    return select(first, counted, last)


_STATUS: Final = select(
    func.now(),
    _counted(OUTBOX),
    select(OUTBOX.c.added_at).order_by(OUTBOX.c.id).limit(1).scalar_subquery(),
    _counted(DEFERRED),
    select(DEFERRED.c.added_at).order_by(DEFERRED.c.id).limit(1).scalar_subquery(),
    _counted(ASIDE),
    select(RELAY.c.relayed_at).limit(1).scalar_subquery(),
)


def _check_kept(connection: Connection) -> None:
    """Raise NoOutbox where PostgreSQL hides rows from this role, whose messages would wait for good, or loses them."""
    if connection.dialect.name != "postgresql":
        return
    for table in (OUTBOX, DEFERRED, ASIDE, RELAY):
        name = table.name
        columns = _CLASS.c.relpersistence, func.row_security_active(name)
        for kind, is_hidden in connection.execute(select(*columns).where(_CLASS.c.oid == func.to_regclass(name))):
            if is_hidden:
                remedy = f"ALTER TABLE {name} DISABLE ROW LEVEL SECURITY"
                raise NoOutbox(f"row-level security may hide rows of {name} from this role", remedy)
            if kind != "p":
                raise NoOutbox(f"{name} is unlogged: a crash would empty it", f"ALTER TABLE {name} SET LOGGED")


def status(connection: Connection) -> OutboxStatus:
    """Count what the outbox holds. Raises NoOutbox where rows may be hidden, or lost."""
    _check_kept(connection)
    now, *found, relayed_at = connection.execute(_STATUS).one()
    waiting, first, deferred, first_deferred, aside = found
    waiting, deferred, aside = (
        _estimate(connection, table) if count > COUNTED_MAX else count
        for table, count in ((OUTBOX, waiting), (DEFERRED, deferred), (ASIDE, aside))
    )
    oldest = min((each for each in (first, first_deferred) if each is not None), default=None)
    return OutboxStatus(waiting + deferred, _age_s(now, oldest), aside, _age_s(now, relayed_at))


class LastLook:
    """Contents of an outbox a few seconds ago. One thread reads them; any may ask."""

    def __init__(self) -> None:
        self._status: OutboxStatus | None = None
        self._began = -STATUS_S

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._began + STATUS_S

    def begin(self) -> None:
        """Forget the look before."""
        self._status, self._began = None, time.monotonic()

    def read(self, connection: Connection) -> None:
        """Look. Raises the database's errors, and NoOutbox, after which it is due again."""
        try:
            self._status = status(connection)
        except NoOutbox:
            self._began = -STATUS_S
            raise

    @property
    def status(self) -> OutboxStatus | None:
        """Return what it found; None: not known, or too long ago."""
        return self._status if time.monotonic() < self._began + 3 * STATUS_S else None

    @property
    def oldest_age_s(self) -> float | None:
        """Age of the oldest message that waited, as if it still did; None: none did, or it is not known."""
        if (found := self.status) is None or found.oldest_age_s is None:
            return None
        return found.oldest_age_s + time.monotonic() - self._began


def _estimate(connection: Connection, table: Table) -> int:
    """Return the number of rows, if ids are as sparse behind those that are counted as among them: others passed what
    is deferred."""
    first, counted, last = connection.execute(_marks(table)).one()
    if counted is None:  # fewer by now
        return COUNTED_MAX
    return COUNTED_MAX + 1 + int((last - counted) * (COUNTED_MAX + 1) // (counted - first + 1))


def deferred_counts(connection: Connection) -> dict[int, int]:
    """Return the number of messages that wait for each broker while others pass them."""
    column = DEFERRED.c.broker_id
    found = connection.execute(select(column, func.count()).group_by(column).order_by(column))
    return {row[0]: row[1] for row in found}


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
