"""Base of the sessions of all drivers: the decision's INSERT, and the meaning of a database's errors.

A driver's session maps its errors to `Says`; what follows from that is decided here.
"""

import logging
from abc import abstractmethod
from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import Final

from journal.records.xid import Xid
from meta_client.coordinator.errors import CannotEnlist, PrepareFailed, Unreachable
from meta_client.protocol.errors import one_line
from meta_client.transactions.table import DATABASE, TABLE, CommitFailure, Session, TableIdentity, brokers_text

log = logging.getLogger(__name__)

FAILED: Final = "a statement failed and the block went on: let the error out, or use a savepoint"
ENDED: Final = (
    "its transaction was ended inside the block, by a COMMIT, a ROLLBACK, a deadlock, or what commits by itself, as "
    "CREATE TABLE in MySQL and executescript() of sqlite3 do, and what a commit has stored stays: leave COMMIT and "
    "ROLLBACK to the block's end, and let the database's errors out"
)
UNDONE: Final = "its row was undone before COMMIT, by a ROLLBACK to a savepoint: leave savepoints to the block"
AUTOCOMMIT: Final = "the database connection is in autocommit mode: each statement commits alone"


class Says(Enum):
    """Meaning of a database error."""

    AGAIN = auto()  # a serialization failure, a deadlock: the owner repeats the transaction
    NO_ANSWER = auto()  # the connection is over, or the statement was stopped: it may do at another time
    DUPLICATE = auto()
    IS_NULL = auto()
    NO_RIGHT = auto()
    READ_ONLY = auto()
    NOT_THE_TRANSACTION = auto()  # no transaction, or one without the mark
    FAILED_BEFORE = auto()  # an earlier statement failed
    MADE_AGAIN = auto()  # another table is in the place of the one that the branches name


class RowLost(Exception):
    """COMMIT was not sent: the transaction that it would end does not hold the row. Another one may."""


class DecidingSession(Session):
    """A driver's connection, in the transaction that is to decide."""

    survives_release = False  # what `begin` has marked inside a savepoint still counts once that is released
    failures: tuple[type[Exception], ...]  # the driver's error classes
    undo_failures: tuple[type[Exception], ...] = ()  # besides, those of a rollback
    _is_managed = False  # a framework begins and ends its transactions
    _has_begun = False  # BEGIN was sent, or is about to be
    _identity: TableIdentity
    _gtrid: str | None = None  # set once the row is inserted

    @abstractmethod
    def lost(self) -> str | None:
        """Return why COMMIT would not store the row together with the block's rows, if so; without a row do as
        `problem`. Called where others may have used the connection since `decide`."""

    @abstractmethod
    def _enter(self) -> TableIdentity:
        """Begin or join a database transaction, and mark it. Sets `_has_begun` before it begins one."""

    @abstractmethod
    def _insert(self, gtrid: str, brokers: str) -> int:
        """Insert the row; return the number of rows stored."""

    def _is_made_again(self) -> bool:
        """Return whether another table holds the row. Called where its INSERT does not tell."""
        return False

    def _forget(self) -> None:
        """Forget what was read of tables: the next block of each connection looks again."""

    @abstractmethod
    def _says(self, error: Exception) -> Says | None:
        """Return the meaning of *error*, one of `failures`."""

    @abstractmethod
    def _has_rolled_back(self, error: Exception) -> bool:
        """True if a COMMIT that raised *error*, one of `failures`, has stored nothing for certain."""

    @abstractmethod
    def _roll_back(self) -> None: ...

    @abstractmethod
    def _abandon(self) -> None:
        """Close the connection, whatever its state."""

    def begin(self) -> TableIdentity:
        try:
            self._identity = self._enter()
        except self.failures as error:
            says = self._says(error)
            if says is Says.FAILED_BEFORE:
                raise CannotEnlist("a statement failed in the connection's transaction: roll it back first") from error
            self._leave_as_it_was(has_failed=True)
            if says is Says.AGAIN:
                raise
            if says is Says.NO_ANSWER:
                raise Unreachable(DATABASE, one_line(error)) from error
            raise CannotEnlist(f"the database connection can't take part: {one_line(error)}") from error
        except BaseException:
            self._leave_as_it_was(has_failed=False)
            raise
        return self._identity

    def _leave_as_it_was(self, *, has_failed: bool) -> None:
        """Roll back what was begun here, and a transaction in which a statement has failed."""
        if (self._has_begun or has_failed) and not self._is_managed:  # a framework must see the failure itself
            self.rollback()

    def decide(self, gtrid: str, brokers: Collection[int]) -> None:
        try:
            if self._insert(gtrid, brokers_text(brokers)) != 1:
                why = _KEPT_OUT
            elif self._is_made_again():
                why = _MADE_AGAIN
            else:
                self._gtrid = gtrid
                return
            cause = None
        except self.failures as error:
            if (says := self._says(error)) is Says.AGAIN:
                raise
            why, cause = reason(says, error, self._identity), error
        self._forget()  # tables may have been made again, or moved to another schema
        raise PrepareFailed(Xid(1, gtrid.encode(), b""), DATABASE, why) from cause

    def _check_row(self) -> None:
        """Raise RowLost if a row was inserted, and COMMIT would not store it."""
        if self._gtrid is not None and (lost := self.lost()) is not None:
            raise RowLost(lost)

    def classify_commit(self, error: Exception) -> CommitFailure:
        if isinstance(error, RowLost):
            return CommitFailure.UNANSWERED
        if not isinstance(error, self.failures):
            return CommitFailure.FOREIGN
        return CommitFailure.REFUSED if self._has_rolled_back(error) else CommitFailure.UNANSWERED

    def make_durable(self) -> None:
        """Put a COMMIT that was answered on the disk. Raises OSError."""

    def rollback(self) -> None:
        try:
            self._roll_back()
        except (*self.failures, *self.undo_failures) as error:
            log.warning("database connection could not be rolled back, and is closed reason=%s", one_line(error))
            self._abandon()


_KEPT_OUT: Final = f"a trigger keeps its row out of {TABLE}: drop that, because resolvers would roll its messages back"
_MADE_AGAIN: Final = "its decision tables were made again since the connection was first used: do it again"
_REASONS: Final[Mapping[Says | None, str]] = {
    Says.DUPLICATE: "a resolver has rolled it back meanwhile, so long did it take from PREPARE to COMMIT: do it again",
    Says.IS_NULL: "its database transaction is older than {age_s} s, and must not decide any more",
    Says.NO_RIGHT: f"{{error}}: its user needs SELECT, INSERT, UPDATE, DELETE on {TABLE}",
    Says.READ_ONLY: "its transaction is READ ONLY, and the decision is a row of it: begin it READ WRITE",
    Says.NOT_THE_TRANSACTION: ENDED,
    Says.FAILED_BEFORE: FAILED,
    Says.MADE_AGAIN: _MADE_AGAIN,
}


def reason(says: Says | None, error: Exception, identity: TableIdentity) -> str:
    """Return the reason why the row was not written."""
    return _REASONS.get(says, "{error}").format(error=one_line(error), age_s=identity.age_s_max)
