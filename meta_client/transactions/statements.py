"""The decision table over any DB-API connection, in the dialect of one kind of database."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final, TypeVar

from meta_client.coordinator.errors import CannotEnlist, Unreachable
from meta_client.protocol.errors import one_line
from meta_client.transactions.dialects import Statements
from meta_client.transactions.errors import INIT, NoDecisionTable, OtherTable, RowGone, RowLocked
from meta_client.transactions.names import TableName
from meta_client.transactions.table import (
    DATABASE,
    GRACE_S,
    IDENTITY,
    Recorded,
    Row,
    RowDecision,
    TableIdentity,
    parse_brokers,
)

_Answer = TypeVar("_Answer")

NAMES_AT_ONCE: Final = 1_000
_DECISIONS: Final = {outcome.value: outcome for outcome in RowDecision}


class SqlTable:
    """A DecisionTable over *connection*, which must be in autocommit mode. `close` closes it."""

    def __init__(
        self,
        connection: Any,
        identity: TableIdentity,
        statements: Statements,
        failures: tuple[type[Exception], ...],
        is_lock: Callable[[Exception], bool] = lambda error: False,
    ) -> None:
        """*failures*: the driver's exception classes. *is_lock*: true of an error that says that another transaction
        holds what the statement needs."""
        self._identity = identity
        self._connection = connection
        self._statements = statements
        self._failures = failures
        self._is_lock = is_lock

    @property
    def identity(self) -> TableIdentity:
        return self._identity

    def resolve(self, gtrid: str) -> RowDecision:
        # A separate statement, and so transaction: the one that waited for the row does not see it.
        if self._change(self._statements.resolve(1), (gtrid,)) == 1:
            return RowDecision.ROLLBACK
        if (outcome := self.decided(gtrid)) is None:
            raise RowGone(DATABASE, f"the row of {gtrid} was deleted while it was looked at: it has just ended")
        return outcome

    def resolve_all(self, gtrids: Sequence[str]) -> dict[str, RowDecision]:
        # In one order: resolvers in parallel wait for each other, and never in a circle.
        ordered = tuple(sorted(gtrids))
        self._change(self._statements.resolve(len(ordered)), ordered)
        return self.decided_all(ordered)

    def decided_all(self, gtrids: Sequence[str]) -> dict[str, RowDecision]:
        found = self.recorded(gtrids)
        if found:
            self._make_durable()
        return {row.gtrid: row.outcome for row in found if row.outcome is not None}

    def decided(self, gtrid: str) -> RowDecision | None:
        rows = self._rows_of(self._statements.read, (gtrid,))
        if not rows:
            return None
        self._make_durable()
        if (outcome := _DECISIONS.get(rows[0][0])) is None:
            raise Unreachable(DATABASE, f"the row of {gtrid} says {rows[0][0]!r}, which is no outcome")
        return outcome

    def rows(self, age_s: float, limit: int) -> list[Row]:
        found = self._rows_of(self._statements.rows, (GRACE_S, age_s, limit))
        if found:
            self._make_durable()
        return [Row(gtrid, parse_brokers(brokers), hazard, bool(is_old)) for gtrid, brokers, hazard, is_old in found]

    def recorded(self, gtrids: Sequence[str]) -> list[Recorded]:
        found: list[Recorded] = []
        for first in range(0, len(gtrids), NAMES_AT_ONCE):
            some = gtrids[first : first + NAMES_AT_ONCE]
            found += _recorded(self._rows_of(self._statements.recorded, (self._statements.listed(some),)))
        return found

    def kept(self, age_s: float, limit: int) -> list[Recorded]:
        return _recorded(self._rows_of(self._statements.kept, (age_s, limit)))

    def delete(self, gtrids: Sequence[str]) -> None:
        for first in range(0, len(gtrids), NAMES_AT_ONCE):
            self._change(self._statements.delete, (self._statements.listed(gtrids[first : first + NAMES_AT_ONCE]),))

    def clock_s(self) -> float:
        ((clock_s,),) = self._rows_of(self._statements.read_clock, ())
        return float(clock_s)

    def delete_kept(self) -> int:
        # Select, then delete by key: a searching deletion may wait for every row it passes.
        total, deleted = 0, -1
        while deleted:
            found = self._rows_of(self._statements.old_rollbacks, (self._identity.keep_s, NAMES_AT_ONCE))
            names = [gtrid for (gtrid,) in found]
            deleted = self._change(self._statements.delete_kept, (self._statements.listed(names),)) if names else 0
            total += deleted
        return total

    def mark(self, gtrid: str, hazard: str) -> None:
        self._change(self._statements.mark, (hazard, gtrid))

    def generation(self) -> int:
        found = self._rows_of(self._statements.generation, ())
        if not found:
            known = self._identity.name.table_id
            raise Unreachable(DATABASE, f"{IDENTITY} is empty: put its row back, of table_id {known}, or run `{INIT}`")
        ((table_id, generation),) = found
        if table_id != self._identity.name.table_id:
            raise OtherTable(str(table_id))
        return int(generation)

    def advance(self, generation: int, to: int) -> bool:
        return self._change(self._statements.advance, (to, generation)) == 1

    def anchor(self) -> None:
        self._change(self._statements.anchor, ())

    def close(self) -> None:
        with suppress(Exception):  # pg8000 raises, once it is broken
            self._connection.close()

    def _make_durable(self) -> None:
        for statement in self._statements.make_durable:
            self._change(statement, ())

    def _change(self, statement: str, parameters: tuple[object, ...]) -> int:
        """Execute a statement; return the count of changed rows."""
        return self._execute(statement, parameters, lambda cursor: int(cursor.rowcount))

    def _rows_of(self, statement: str, parameters: tuple[object, ...]) -> list[tuple[Any, ...]]:
        return self._execute(statement, parameters, lambda cursor: list(cursor.fetchall()))

    def _execute(self, statement: str, parameters: tuple[object, ...], take: Callable[[Any], _Answer]) -> _Answer:
        opening = self._statements.opening
        try:
            with closing(self._connection.cursor()) as cursor:
                if opening:
                    cursor.execute(opening)
                cursor.execute(statement, parameters)
                taken = take(cursor)
                if opening:
                    cursor.execute("COMMIT")
                return taken
        except self._failures as error:
            if opening:
                self._roll_back()
            kind = RowLocked if self._is_lock(error) else Unreachable
            raise kind(DATABASE, one_line(error)) from error

    def _roll_back(self) -> None:
        with suppress(*self._failures), closing(self._connection.cursor()) as cursor:
            cursor.execute("ROLLBACK")


def _recorded(rows: list[tuple[Any, ...]]) -> list[Recorded]:
    return [_record(*row) for row in rows]


def _record(gtrid: str, outcome: str, brokers: str, hazard: str | None, age_s: Any) -> Recorded:
    said, named = _DECISIONS.get(outcome), parse_brokers(brokers)
    if said is None:
        hazard = f"its row says {outcome!r}, which is no outcome"
    elif said is RowDecision.COMMIT and named is None:
        hazard = f"its row names its brokers as {brokers!r}, which can't be read"
    return Recorded(gtrid, said, named or (), hazard, float(age_s))


def made_by(connect: Callable[[], Any], known_by: str = "cursor") -> Any:
    """Return a connection from *connect*, which may be the caller's; the driver's have an attribute *known_by*. Raises
    CannotEnlist, and Unreachable for anything else."""
    try:
        made = connect()
    except CannotEnlist:
        raise
    except Exception as error:
        raise Unreachable(DATABASE, f"no connection can be made: {one_line(error)}") from error
    if not hasattr(made, known_by):
        raise not_a_connection(made, "a function")
    return made


def not_a_connection(made: object, wanted: str) -> CannotEnlist:
    """Return the error for a connect= that gave *made*, and is to be *wanted*."""
    return CannotEnlist(
        f"connect= gave a {type(made).__module__}.{type(made).__qualname__}: give {wanted} that makes another "
        f"connection of the driver"
    )


def identity_of(database: str, table_id: object, keep_s: int) -> TableIdentity:
    """Return a table's identity from the columns of its row. Raises NoDecisionTable."""
    try:
        return TableIdentity(TableName(str(table_id)), keep_s)
    except ValueError as error:
        raise NoDecisionTable(database, f"{IDENTITY} is damaged: {error}") from error


@contextmanager
def reaching(*failures: type[Exception], undo: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Raise *failures* of the block, a driver's, as Unreachable; call *undo* first after any error."""
    try:
        yield
    except BaseException as error:
        with suppress(Exception):  # the first error is told; pg8000 can't close a broken connection
            undo()
        if isinstance(error, failures):
            raise Unreachable(DATABASE, one_line(error)) from error
        raise
