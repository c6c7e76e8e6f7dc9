"""Errors of coordinated transactions, by what the caller does next. Every message is one line."""

from journal.records.xid import Xid
from meta_client.coordinator.participants import BranchEnd
from meta_client.protocol.errors import MetaError

ParticipantEnd = tuple[str, BranchEnd]  # a participant, and how it ended its branch


class CoordinatorError(MetaError):
    """Base of this package's errors."""


class PrepareFailed(CoordinatorError):
    """A participant did not promise to commit. Both sides are rolled back: mend the cause, do the work again."""

    def __init__(self, xid: Xid, participant: str, reason: str) -> None:
        super().__init__(f"transaction {xid.gtrid.decode(errors='replace')}: {participant} did not prepare: {reason}")
        self.xid = xid
        self.participant = participant


class CannotEnlist(CoordinatorError):
    """The connection or producer can't take part as it is. Nothing was begun; the message says what to change."""


class Unreachable(CoordinatorError):
    """A participant did not answer: what was asked may have acted or not. Ask again."""

    def __init__(self, participant: str, reason: str) -> None:
        super().__init__(f"{participant} gave no answer: {reason}")
        self.participant = participant


class BranchUnknown(CoordinatorError):
    """The participant holds no such prepared branch. That alone says nothing about how it ended: ask its `outcome`."""

    def __init__(self, xid: Xid, participant: str) -> None:
        super().__init__(f"{participant} holds no prepared branch {xid}")
        self.xid = xid


class HeuristicOutcome(CoordinatorError):
    """A branch did not end as decided, or its end is unknown: database and broker may disagree. Repair it by hand.

    The message lists each side's outcome; *code* is X/Open's: XA_HEURRB (rolled back), XA_HEURMIX (committed on one
    side, rolled back on the other), XA_HEURHAZ (unknown). The decision stays in the log, and every `recover` reports
    it, until `Coordinator.forget`.
    """

    def __init__(
        self,
        xid: Xid,
        participant: str,
        wanted: str,
        answer: str,
        ended: BranchEnd,
        others: tuple[ParticipantEnd, ...] = (),
    ) -> None:
        """*answer*: the answer of *participant*, whose branch has *ended* so; *others*: the outcomes of the others."""
        ends = {ended, *(other for _, other in others)}
        if not ends <= {BranchEnd.COMMITTED, BranchEnd.ROLLED_BACK, BranchEnd.NOT_ENDED}:
            self.code = "XA_HEURHAZ"
        elif {BranchEnd.COMMITTED, BranchEnd.ROLLED_BACK} <= ends:
            self.code = "XA_HEURMIX"
        else:
            self.code = "XA_HEURRB" if ended is BranchEnd.ROLLED_BACK else "XA_HEURCOM"
        sides = "".join(f"; {name}: {other.value}" for name, other in others)
        super().__init__(
            f"transaction {xid.gtrid.decode(errors='replace')} had to {wanted}, and {participant} answers "
            f"'{answer}': database and broker may disagree about it ({self.code}{sides}); compare its rows with its "
            f"messages, mend them by hand, then forget the branch at the broker, and a decided transaction at its "
            f"coordinator (Coordinator.forget), or its row in metaq_decision"
        )
        self.xid = xid
        self.participant = participant
        self.wanted = wanted
        self.answer = answer
        self.ended = ended

    def beside(self, *others: ParticipantEnd) -> "HeuristicOutcome":
        """Return the same error with the outcomes of *others*."""
        return HeuristicOutcome(self.xid, self.participant, self.wanted, self.answer, self.ended, others)


class Abandoned(CoordinatorError):
    """The transaction was given up before it was decided. Both sides are rolled back: do the work again if it is still
    wanted."""


class DecisionUnknown(CoordinatorError):
    """The decision log failed while a decision was written. The transaction is prepared on both sides: repair the disk,
    start again and call `recover`."""


class CoordinatorClosed(CoordinatorError):
    """The coordinator was closed: open a new one. The next `recover` finishes decided transactions."""


class ForeignLog(CoordinatorError):
    """The directory holds another coordinator's decisions, or a broker's journal. Nothing was touched: name
    another directory."""


class CopiedLog(CoordinatorError):
    """The directory is a copy of a coordinator's, or was moved by copying it. Nothing was touched; the message says how
    to make it the only one."""


class LogInUse(CoordinatorError):
    """Another process, or another coordinator of this one, has the directory. One log, one
    coordinator: stop the other one, or name another directory."""
