"""What a side of a transaction must be able to do. Two implement it: postgres and broker.

A participant serves one thread at a time. It takes transactions, not branches: the qualifier of its branches is its
own affair, so that one transaction has one name in the log, in the messages and in the observer.
"""

from typing import Protocol

from journal.xid import Xid


class Participant(Protocol):
    """One resource that can prepare, as the coordinator sees it."""

    @property
    def name(self) -> str:
        """For messages: "the database", "the broker"."""

    def check(self) -> None:
        """Whether a transaction can begin now. May ask the resource, once. Raises CannotEnlist, Unreachable."""

    def begin(self, xid: Xid) -> None:
        """Open a branch; what the user does with the resource from now on belongs to it.

        Raises CannotEnlist, Unreachable, or the resource's own error; then nothing is open.
        """

    def prepare(self, xid: Xid) -> bool:
        """Promise that the branch can still commit or roll back after any crash; False: there is nothing to commit,
        the branch is over. Raises PrepareFailed; then the caller must roll back."""

    def commit(self, xid: Xid) -> None:
        """Commit the prepared branch, begun here or found by recover.

        Raises BranchUnknown (it is finished already), Unreachable (ask again), HeuristicOutcome.
        """

    def commit_one_phase(self, xid: Xid) -> None:
        """Commit the branch without a prepare. Raises the resource's own error; then it may have committed or not."""

    def rollback(self, xid: Xid) -> None:
        """Undo the branch, prepared or not; one that is gone already is fine. Raises Unreachable, HeuristicOutcome."""

    def was_rolled_back(self, xid: Xid, where: str) -> bool:
        """Whether the branch, which *where* does not list as prepared, is known to have been rolled back there.

        False also if nobody remembers. Raises Unreachable.
        """

    def where(self) -> str:
        """Which resource it is, known once begun: what the decision log remembers, and `reaches` compares."""

    def prepared(self) -> list[Xid]:
        """Every transaction, whoever's, with a prepared branch of this kind there. Raises Unreachable."""

    def reaches(self, where: str) -> bool:
        """Whether the last `prepared` asked the resource that *where* names: only then is "not listed" an answer."""
