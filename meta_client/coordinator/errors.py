"""What can go wrong with a coordinated transaction, by what the caller does next. Every message is one line."""

from journal.xid import Xid
from meta_client.protocol.errors import MetaError


class CoordinatorError(MetaError):
    """Base of this package's errors."""


class PrepareFailed(CoordinatorError):
    """A participant did not promise to commit. Both sides are rolled back: mend the cause, do the work again."""

    def __init__(self, xid: Xid, participant: str, reason: str) -> None:
        super().__init__(f"transaction {xid.gtrid.decode(errors='replace')}: {participant} did not prepare: {reason}")
        self.xid = xid
        self.participant = participant


class CannotEnlist(CoordinatorError):
    """A connection or producer can't take part as it is. Nothing was begun; the message says what to change."""


class Unreachable(CoordinatorError):
    """A participant did not answer: what was asked may have acted or not. Ask again."""

    def __init__(self, participant: str, reason: str) -> None:
        super().__init__(f"{participant} gave no answer: {reason}")
        self.participant = participant


class BranchUnknown(CoordinatorError):
    """The participant holds no such prepared branch: it was committed or rolled back before. Ask
    its `status`, or compare what both sides hold."""

    def __init__(self, xid: Xid, participant: str) -> None:
        super().__init__(f"{participant} holds no prepared branch {xid}")
        self.xid = xid


class HeuristicOutcome(CoordinatorError):
    """Somebody finished a branch by hand, against what was wanted: database and broker may now disagree.

    No program can mend that. The message names the branch, who answers what, and what to compare.
    """

    def __init__(self, xid: Xid, participant: str, wanted: str, answer: str) -> None:
        super().__init__(
            f"transaction {xid.gtrid.decode(errors='replace')} had to {wanted}, and {participant} answers "
            f"'{answer}': database and broker may disagree about it; compare its rows with its messages, mend them "
            f"by hand, then forget the branch at the broker"
        )
        self.xid = xid
        self.participant = participant
        self.wanted = wanted
        self.answer = answer


class DecisionUnknown(CoordinatorError):
    """The decision log failed while a decision was written. The transaction is prepared on both sides, and
    neither committed nor rolled back: once the disk is well, start again and let `recover` finish it."""


class CoordinatorClosed(CoordinatorError):
    """The coordinator was closed: open a new one. A transaction that was decided by then is finished by the next
    `recover`."""


class ForeignLog(CoordinatorError):
    """The directory holds another coordinator's decisions, or a broker's journal. Nothing was touched: name
    another directory."""


class LogInUse(CoordinatorError):
    """Another process, or another coordinator of this one, has the directory. One log, one
    coordinator: stop the other one, or name another directory."""
