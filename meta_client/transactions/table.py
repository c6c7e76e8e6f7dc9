"""Requirements on a database: two protocols, and the values that cross them.

Everything rests on one property: only one transaction inserts a row under one primary key; another insert of it waits
until that transaction has committed or rolled back. Why it holds for each database:
docs/transactions-reasoning.md.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol, runtime_checkable

from meta_client.transactions.names import TableName

TABLE: Final = "metaq_decision"
IDENTITY: Final = "metaq_decision_table"
ANCHOR: Final = "do not delete"  # gtrid of a row that no transaction has: without it rows were lost
KEEP_S: Final = 86_400  # retention of the row of a rolled-back transaction
DATABASE: Final = "the database"  # for messages
GRACE_S: Final = 60.0  # age at which a resolver may delete a row
_BROKERS: Final = re.compile(r"[0-9]{1,10}(,[0-9]{1,10})*", re.ASCII)


class RowDecision(Enum):
    COMMIT = "commit"
    ROLLBACK = "rollback"


class CommitFailure(Enum):
    """Meaning of an error of COMMIT."""

    REFUSED = auto()  # the database has rolled it back, or never got COMMIT
    UNANSWERED = auto()  # from the database or its driver: the row tells
    FOREIGN = auto()  # from other code around COMMIT, as a signal's handler: the row tells, and the error is raised


@dataclass(frozen=True, slots=True)
class Row:
    """One decision to commit. *brokers* must commit, None if they can't be read; *hazard* says which of them ended
    otherwise, if any."""

    gtrid: str
    brokers: tuple[int, ...] | None
    hazard: str | None
    is_old: bool  # older than GRACE_S


@dataclass(frozen=True, slots=True)
class Recorded:
    """One row, of either outcome, or None: neither. A rollback names no brokers; *hazard* also says what can't be
    read."""

    gtrid: str
    outcome: RowDecision | None
    brokers: tuple[int, ...]
    hazard: str | None
    age_s: float  # by the database's clock


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """Identity of a table. *keep_s*: retention of rollback rows, by the database's clock; a transaction older than half
    of that can no longer commit."""

    name: TableName
    keep_s: int

    @property
    def age_s_max(self) -> int:
        """Maximum age of a database transaction when it decides."""
        return self.keep_s // 2


class DecisionTable(Protocol):
    """The table, over an autocommit connection of our own. One thread at a time.

    Every method raises Unreachable if the outcome is unknown: ask again.
    """

    @property
    def identity(self) -> TableIdentity: ...

    def resolve(self, gtrid: str) -> RowDecision:
        """Decide to roll back unless a decision exists; return the decision, which is durable and final.

        Waits briefly for a transaction that has inserted the row and not ended, then raises RowLocked. Raises RowGone
        for a row that is deleted meanwhile.
        """

    def decided(self, gtrid: str) -> RowDecision | None:
        """Return the decision, which is durable and final; None if there is no row."""

    def resolve_all(self, gtrids: Sequence[str]) -> dict[str, RowDecision]:
        """Do as `resolve` for a few hundred transactions together; return their decisions. Of one that is left out
        nothing is known: ask again. Raises RowLocked if any row is locked."""

    def decided_all(self, gtrids: Sequence[str]) -> dict[str, RowDecision]:
        """Return the decisions that exist, as `decided`."""

    def rows(self, age_s: float, limit: int) -> list[Row]:
        """Return decisions to commit of at least that age, those without a hazard first."""

    def recorded(self, gtrids: Sequence[str]) -> list[Recorded]:
        """Return the existing rows of *gtrids*. Read-only, like `kept`."""

    def kept(self, age_s: float, limit: int) -> list[Recorded]:
        """Return rows with a hazard, then decisions to commit of at least that age."""

    def delete(self, gtrids: Sequence[str]) -> None:
        """Delete the rows of finished transactions."""

    def clock_s(self) -> float:
        """Return the database's clock, in seconds since 1970."""

    def delete_kept(self) -> int:
        """Delete the rows of transactions rolled back so long ago that none can commit any more; return their
        number."""

    def mark(self, gtrid: str, hazard: str) -> None:
        """Keep the row, with the reason."""

    def generation(self) -> int:
        """Return the table's generation (generation.py); 0 if its rows were lost. Raises OtherTable for one that was
        made in its place."""

    def advance(self, generation: int, to: int) -> bool:
        """Raise the generation to *to*, durably, if it is *generation*; return True if it was."""

    def anchor(self) -> None:
        """Insert the row ANCHOR if it is missing."""

    def close(self) -> None: ...


Opener = Callable[[], DecisionTable]  # raises Unreachable, CannotEnlist; the caller closes it


@runtime_checkable
class Session(Protocol):
    """A caller's connection, for one transaction. Owner's thread only."""

    def driver_connection(self) -> object:
        """Return the driver's connection, which can be in one transaction with messages at a time. Call it first.
        Raises as `begin`."""

    def begin(self) -> TableIdentity:
        """Check the connection, and begin or join a database transaction. Raises CannotEnlist, TransactionMisuse,
        Unreachable, leaving the connection unchanged."""

    def problem(self) -> str | None:
        """Return the reason why the database transaction can't commit, if any. Called before brokers prepare."""

    def decide(self, gtrid: str, brokers: Collection[int]) -> None:
        """Insert the row. Raises PrepareFailed, or the database's own error where the caller should repeat the
        transaction."""

    def commit(self) -> None:
        """Commit the database transaction. Of an Exception `classify_commit` tells the outcome; after any other one it
        is unknown. The caller rolls back."""

    def classify_commit(self, error: Exception) -> CommitFailure:
        """Return the meaning of *error*, which `commit` has just raised. FOREIGN unless it is the database's own: a
        signal's handler may raise anything anywhere."""

    def rollback(self) -> None:
        """Roll the database transaction back. Raises nothing: a lost connection rolls back by itself."""

    def opener(self) -> Opener:
        """Return an opener of the table over another connection to the same database; it keeps no reference to this
        one."""


def brokers_text(brokers: Collection[int]) -> str:
    """Return *brokers* in the row's text form."""
    return ",".join(map(str, sorted(brokers)))


def parse_brokers(text: str) -> tuple[int, ...] | None:
    """Parse the output of `brokers_text`; None for any other text."""
    if _BROKERS.fullmatch(text) is None:
        return None
    return tuple(int(part) for part in text.split(","))
