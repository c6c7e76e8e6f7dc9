"""The decision table over any DB-API connection: what is asked of it, in the words of one kind of database."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

from meta_client.coordinator.errors import Unreachable
from meta_client.transactions.table import DATABASE, GRACE_S, Identity, Outcome, Row, parse_brokers

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Statements:
    """SQL of one kind of database, each with the parameters that stand behind it."""

    resolve: str  # gtrid; inserts the row of a rollback unless there is one, and waits for whoever inserts one
    read: str  # gtrid; its outcome
    rows: str  # GRACE_S, age in seconds, how many
    delete: str  # gtrids, as `listed` gives them
    delete_kept: str  # age in seconds
    mark: str  # hazard, gtrid
    listed: Callable[[Sequence[str]], object]  # a list of texts, as a parameter


class SqlTable:
    """A DecisionTable over *connection*, which commits each statement by itself. Closes it in the end."""

    def __init__(
        self, connection: Any, identity: Identity, statements: Statements, failures: tuple[type[Exception], ...]
    ) -> None:
        """*failures*: what the driver raises."""
        self._identity = identity
        self._connection = connection
        self._statements = statements
        self._failures = failures

    @property
    def identity(self) -> Identity:
        return self._identity

    def resolve(self, gtrid: str) -> Outcome:
        # Read in a statement, and so a transaction, of its own: one that waited for the row does not see it.
        if self._do(self._statements.resolve, (gtrid,)) == 1:
            return Outcome.ROLLBACK
        rows = self._ask(self._statements.read, (gtrid,))
        if not rows:
            raise Unreachable(DATABASE, f"the row of {gtrid} was deleted while it was looked at: it has just ended")
        return Outcome(rows[0][0])

    def rows(self, age_s: float, limit: int) -> list[Row]:
        found = self._ask(self._statements.rows, (GRACE_S, age_s, limit))
        return [Row(gtrid, parse_brokers(brokers), hazard, bool(is_old)) for gtrid, brokers, hazard, is_old in found]

    def delete(self, gtrids: Sequence[str]) -> None:
        if gtrids:
            self._do(self._statements.delete, (self._statements.listed(gtrids),))

    def delete_kept(self) -> int:
        return self._do(self._statements.delete_kept, (self._identity.keep_s,))

    def mark(self, gtrid: str, hazard: str) -> None:
        self._do(self._statements.mark, (hazard, gtrid))

    def close(self) -> None:
        self._connection.close()

    def _do(self, statement: str, parameters: tuple[object, ...]) -> int:
        """How many rows it changed."""
        return self._with_cursor(lambda cursor: int(cursor.execute(statement, parameters).rowcount))

    def _ask(self, statement: str, parameters: tuple[object, ...]) -> list[tuple[Any, ...]]:
        return self._with_cursor(lambda cursor: list(cursor.execute(statement, parameters).fetchall()))

    def _with_cursor(self, work: Callable[[Any], Answer]) -> Answer:
        try:
            with closing(self._connection.cursor()) as cursor:
                return work(cursor)
        except self._failures as error:
            raise Unreachable(DATABASE, one_line(error)) from error


def one_line(error: BaseException) -> str:
    """What a driver says, without its line breaks."""
    return " ".join(str(error).split()) or type(error).__name__
