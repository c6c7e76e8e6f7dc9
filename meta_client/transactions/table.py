"""What a database must be able to do: two protocols, and the values that cross them.

The whole rests on one property: a row under one primary key is inserted by one transaction alone, and whoever else
inserts it waits until that one has committed or rolled back. docs/transactions.md says for each database why it holds.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, runtime_checkable

from meta_client.transactions.names import TableName

TABLE: Final = "metaq_decision"
IDENTITY: Final = "metaq_decision_table"
KEEP_S: Final = 86_400  # how long the row of a rolled-back transaction stays
DATABASE: Final = "the database"  # for messages
GRACE_S: Final = 60.0  # a row is deleted by others than its transaction after this at the earliest


class Outcome(Enum):
    """What a row says."""

    COMMIT = "commit"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Row:
    """One decision to commit. *brokers* had to be told, and *hazard* says which of them did otherwise, if any."""

    gtrid: str
    brokers: tuple[int, ...]
    hazard: str | None
    is_old: bool  # older than GRACE_S


@dataclass(frozen=True, slots=True)
class Identity:
    """Which table it is. *keep_s*: rows of what was rolled back stay so long, by the database's clock; a transaction
    older than half of that no longer commits."""

    name: TableName
    keep_s: int

    @property
    def age_s_max(self) -> int:
        """How old a database transaction may be when it decides."""
        return self.keep_s // 2


class DecisionTable(Protocol):
    """The table, over a connection of our own that commits each statement. One thread at a time.

    Every method raises Unreachable: nothing is known then, ask again.
    """

    @property
    def identity(self) -> Identity: ...

    def resolve(self, gtrid: str) -> Outcome:
        """Decide to roll back, unless something was decided before; durable, and true for ever on return.

        Waits for a transaction that has written the row and has not ended, for a moment: then Unreachable.
        """

    def rows(self, age_s: float, limit: int) -> list[Row]:
        """Decisions to commit that are at least so old, those without a hazard first."""

    def delete(self, gtrids: Sequence[str]) -> None:
        """Drop the rows of finished transactions."""

    def delete_kept(self) -> int:
        """Drop the rows of transactions that were rolled back so long ago that none can commit any more."""

    def mark(self, gtrid: str, hazard: str) -> None:
        """Keep the row, and say why."""

    def close(self) -> None: ...


Opener = Callable[[], DecisionTable]  # raises Unreachable, CannotEnlist; the caller closes it


@runtime_checkable
class Session(Protocol):
    """A caller's connection, for one transaction. Its owner's thread alone."""

    def driver_connection(self) -> object:
        """The connection of the database's driver, which can be in one transaction with messages at a time. First of
        all. Raises as `begin`."""

    def begin(self) -> Identity:
        """Check the connection, and be in a database transaction. Raises CannotEnlist, TransactionMisuse, Unreachable;
        then it is as it was."""

    def problem(self) -> str | None:
        """Why that database transaction can't commit any more, if it can't: asked before brokers prepare."""

    def decide(self, gtrid: str, brokers: Collection[int]) -> None:
        """Insert the row. Raises PrepareFailed, or the database's own error where doing it again is right."""

    def commit(self) -> None:
        """Commit the database transaction. Raises what the database says when it is rolled back for certain, and
        CommitUnknown when nobody knows. Anything else that cuts the wait short leaves it unknown, too."""

    def rollback(self) -> None:
        """Roll it back. Raises nothing: a connection that is lost does so by itself."""

    def opener(self) -> Opener:
        """Opens the table over another connection to the same database; holds nothing of this one."""


class DriverSession(Session, Protocol):
    """A driver's connection, whose transactions a framework may begin and end in its own way."""

    def is_unknown(self, error: Exception) -> bool:
        """Whether nobody knows what became of a COMMIT that raised *error*; if not, it is rolled back."""


def brokers_text(brokers: Collection[int]) -> str:
    """*brokers* as a row has them."""
    return ",".join(map(str, sorted(brokers)))


def parse_brokers(text: str) -> tuple[int, ...]:
    """What `brokers_text` wrote. Raises ValueError."""
    return tuple(int(part) for part in text.split(","))
