"""Interface of one side of a transaction, implemented by postgres and broker.

A participant serves one thread at a time. Its methods take transactions, not branches; the branch qualifier is private
to it, so that a transaction has one name in the log, in messages and in the observer.
"""

from contextlib import AbstractContextManager
from enum import Enum
from typing import Protocol

from journal.records.xid import Xid


class BranchEnd(Enum):
    """Outcome of a branch, as reported by its participant."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    NOT_ENDED = "still prepared"
    UNKNOWN = "does not know it"
    NOT_SUPPORTED = "cannot tell"  # this version of the resource has no such question


class Participant(Protocol):
    """One resource that can prepare."""

    @property
    def name(self) -> str:
        """Name for messages: "the database", "the broker"."""

    def check(self) -> None:
        """Check that a transaction can begin now. May ask the resource, once.

        Raises CannotEnlist, TransactionMisuse, Unreachable.
        """

    def begin(self, xid: Xid) -> None:
        """Open a branch for the user's work from now on.

        Raises CannotEnlist, Unreachable, or the resource's own error; then nothing is open.
        """

    def prepare(self, xid: Xid) -> bool:
        """Promise that the branch can commit or roll back after any crash. Return False if there is nothing to commit:
        the branch is over. Raises PrepareFailed; then the caller must roll back."""

    def commit(self, xid: Xid) -> None:
        """Commit the prepared branch, begun here or found by recover.

        Raises BranchUnknown (not prepared: ask for its `outcome`), Unreachable (ask again), HeuristicOutcome.
        """

    def commit_one_phase(self, xid: Xid) -> None:
        """Commit the branch without a prepare. Raises the resource's own error; then it may have committed or not."""

    def rollback(self, xid: Xid) -> None:
        """Undo the branch, prepared or not. A missing branch is fine.

        Raises HeuristicOutcome, and Unreachable, also while an unanswered PREPARE may still arrive.
        """

    def outcome(self, xid: Xid, receipt: str) -> BranchEnd:
        """Return how the branch ended that was prepared with *receipt* and is no longer prepared. Raises
        Unreachable."""

    def resource_id(self) -> str:
        """Return the resource's identity, known once begun; `reaches` compares it."""

    def receipt(self) -> str:
        """Return the text for the decision log that identifies resource and branch, for `reaches` and `outcome`."""

    def prepared(self) -> list[Xid]:
        """Return every transaction of any coordinator with a prepared branch of this kind. Raises Unreachable."""

    def reaches(self, resource_id: str) -> bool:
        """True if the last `prepared` asked the resource of *resource_id*, which may be a receipt."""

    def spare(self) -> "AbstractContextManager[Participant]":
        """Return another connection to the resource, for the background recovery. Entering raises Unreachable."""
