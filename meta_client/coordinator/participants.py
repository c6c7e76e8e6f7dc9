"""What a side of a transaction must be able to do. Two implement it: postgres and broker.

A participant serves one thread at a time. It takes transactions, not branches: the qualifier of its branches is its
own affair, so that one transaction has one name in the log, in the messages and in the observer.
"""

from contextlib import AbstractContextManager
from enum import Enum
from typing import Protocol

from journal.xid import Xid


class Ended(Enum):
    """Outcome of a branch, as its participant tells it."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    NOT_ENDED = "still prepared"
    UNKNOWN = "does not know it"
    UNTOLD = "cannot tell"  # this version of the resource has no such question


class Participant(Protocol):
    """One resource that can prepare, as the coordinator sees it."""

    @property
    def name(self) -> str:
        """For messages: "the database", "the broker"."""

    def check(self) -> None:
        """Whether a transaction can begin now. May ask the resource, once.

        Raises CannotEnlist, TransactionMisuse, Unreachable."""

    def begin(self, xid: Xid) -> None:
        """Open a branch; what the user does with the resource from now on belongs to it.

        Raises CannotEnlist, Unreachable, or the resource's own error; then nothing is open.
        """

    def prepare(self, xid: Xid) -> bool:
        """Promise that the branch can still commit or roll back after any crash; False: there is nothing to commit,
        the branch is over. Raises PrepareFailed; then the caller must roll back."""

    def commit(self, xid: Xid) -> None:
        """Commit the prepared branch, begun here or found by recover.

        Raises BranchUnknown (not prepared: ask for its `outcome`), Unreachable (ask again), HeuristicOutcome.
        """

    def commit_one_phase(self, xid: Xid) -> None:
        """Commit the branch without a prepare. Raises the resource's own error; then it may have committed or not."""

    def rollback(self, xid: Xid) -> None:
        """Undo the branch, prepared or not; one that is gone already is fine.

        Raises HeuristicOutcome, and Unreachable: also when it is not there yet, because its PREPARE got no answer.
        """

    def outcome(self, xid: Xid, receipt: str) -> Ended:
        """How the branch ended that was prepared with *receipt* and is not prepared any more. Raises Unreachable."""

    def where(self) -> str:
        """Which resource it is, known once begun: `reaches` compares it."""

    def receipt(self) -> str:
        """Which resource prepared the branch, and what its `outcome` can be asked by: for the decision log."""

    def prepared(self) -> list[Xid]:
        """Every transaction, whoever's, with a prepared branch of this kind there. Raises Unreachable."""

    def reaches(self, where: str) -> bool:
        """Whether the last `prepared` asked the resource that *where*, or a receipt, names."""

    def spare(self) -> "AbstractContextManager[Participant]":
        """Another way to the same resource, for whoever finishes beside its owner. Entering raises Unreachable."""
