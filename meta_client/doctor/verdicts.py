"""Verdict on one branch in doubt: a table over the sides' answers. Pure.

A verdict is certain if a decision implies it: a row, a logged decision, or the row inserted because no decision exists
yet. A missing answer never counts as an answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final


class Owner(Enum):
    """Owner of a branch, by the branch's own name."""

    TABLE = "decision table"
    LOG = "decision log"
    BATCH = "Spark query"
    FOREIGN = "another transaction manager"


class OwnerAnswer(Enum):
    COMMIT = "commit"
    ROLLBACK = "rollback"  # a row; logs hold decisions to commit alone
    NONE = "nothing"  # asked, and undecided
    OPEN = "open"  # undecided, and a live session may be about to decide
    SILENT = "unknown"  # it was not given, gave no answer, or can't be asked


class BranchAnswer(Enum):
    """Answer of a broker, or a database, about its branch."""

    PREPARED = "prepared"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    COMMITTED_BY_HAND = "committed by hand"
    ROLLED_BACK_BY_HAND = "rolled back by hand"
    COMPLETED_BY_HAND = "completed by hand"
    UNKNOWN = "does not know it"
    SILENT = "unknown"


class Age(IntEnum):
    """Age of a transaction: time since its youngest prepared branch was prepared."""

    YOUNG = 0  # its own process may still be at work
    OLD = 1
    STUCK = 2  # so old that a living owner should have ended it


class Verdict(Enum):
    """Action that one branch needs."""

    DONE = "done"  # ended, without contradiction
    WAIT = "at work"  # its transaction, or its coordinator, is alive
    COMMIT = "commit"
    ROLL_BACK = "roll back"
    DECIDE = "decide"  # undecided: insert the rollback row, unless a commit comes first
    AGREED = "forget"  # an operator ended it as was decided
    MIXED = "mixed"  # one side committed and the other rolled back
    HAZARD = "hazard"  # decided, and this branch's end is unknown
    BY_HAND = "ended by hand"  # ended by an operator, and the decision is unknown
    ASK = "ask a person"  # every side was asked, and none knows
    UNKNOWN = "unknown"  # a side could not be asked


CERTAIN: Final = frozenset({Verdict.COMMIT, Verdict.ROLL_BACK, Verdict.DECIDE, Verdict.AGREED})
FOR_A_PERSON: Final = frozenset({Verdict.MIXED, Verdict.HAZARD, Verdict.BY_HAND, Verdict.ASK, Verdict.UNKNOWN})


@dataclass(frozen=True, slots=True)
class Facts:
    """Inputs of the verdict on one branch. *before*: state of the transaction's database branch where that must commit
    first (the broker's branch of a decision log); otherwise None."""

    owner: Owner
    decided: OwnerAnswer
    said: BranchAnswer
    age: Age
    before: BranchAnswer | None = None


V = Verdict

# A branch that ended or does not exist, by decision: commit, rollback, unknown.
_ENDED: Final[Mapping[BranchAnswer, tuple[Verdict, Verdict, Verdict]]] = {
    BranchAnswer.COMMITTED: (V.DONE, V.MIXED, V.DONE),
    BranchAnswer.ROLLED_BACK: (V.MIXED, V.DONE, V.DONE),
    BranchAnswer.COMMITTED_BY_HAND: (V.AGREED, V.MIXED, V.BY_HAND),
    BranchAnswer.ROLLED_BACK_BY_HAND: (V.MIXED, V.AGREED, V.BY_HAND),
    BranchAnswer.COMPLETED_BY_HAND: (V.HAZARD, V.HAZARD, V.BY_HAND),
    BranchAnswer.UNKNOWN: (V.HAZARD, V.DONE, V.DONE),
}
_COLUMN: Final = {OwnerAnswer.COMMIT: 0, OwnerAnswer.ROLLBACK: 1}

# A prepared branch decided to commit, by its database branch's state: that one commits first.
_AFTER_ITS_DATABASE: Final[Mapping[BranchAnswer | None, Verdict]] = {
    None: V.COMMIT,
    BranchAnswer.PREPARED: V.COMMIT,
    BranchAnswer.COMMITTED: V.COMMIT,
    BranchAnswer.ROLLED_BACK: V.MIXED,
    BranchAnswer.UNKNOWN: V.HAZARD,
    BranchAnswer.SILENT: V.UNKNOWN,
}


def verdict_on(facts: Facts) -> Verdict:
    """Return the verdict on the branch described by *facts*."""
    if facts.said is BranchAnswer.SILENT:
        return V.UNKNOWN
    if facts.said is not BranchAnswer.PREPARED:
        return _ENDED[facts.said][_COLUMN.get(facts.decided, 2)]
    if facts.age is Age.YOUNG:
        return V.WAIT
    if facts.owner is Owner.FOREIGN:
        return V.ASK
    match facts.decided:
        case OwnerAnswer.COMMIT:
            return _AFTER_ITS_DATABASE.get(facts.before, V.HAZARD)
        case OwnerAnswer.ROLLBACK:
            return V.ROLL_BACK
        case OwnerAnswer.OPEN:
            return V.ASK if facts.age is Age.STUCK else V.WAIT
        case OwnerAnswer.NONE:
            return V.DECIDE if facts.owner is Owner.TABLE else V.ASK
    return V.UNKNOWN
