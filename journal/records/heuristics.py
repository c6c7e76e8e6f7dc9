"""Decisions of operators about branches in doubt, and their evidence. Pure.

A coordinator that never returns leaves prepared branches behind. An operator then decides: a HEURISTIC record says who,
when and why before the decision takes effect, and until it is forgotten RECOVER lists the branch and every verb on it
reports the decision (X/Open XA, heuristic completion; spec 2.7, 2.10).
"""

from enum import IntEnum
from typing import Final

import msgspec

from journal.records.states import BranchEvent, BranchState

HEURISTICS_MAX: Final = 100_000  # not forgotten yet: all of them are in memory, and in every checkpoint
WHO_BYTES_MAX: Final = 255
WHY_BYTES_MAX: Final = 1024


class HeuristicDecision(IntEnum):
    """Decision about a branch in doubt."""

    COMMIT = 1
    ROLLBACK = 2
    COMPLETE = 3  # remove it: its messages are never published, though it is not reported as rolled back


EVENTS: Final = {
    HeuristicDecision.COMMIT: BranchEvent.HEURISTIC_COMMIT,
    HeuristicDecision.ROLLBACK: BranchEvent.HEURISTIC_ROLLBACK,
    HeuristicDecision.COMPLETE: BranchEvent.HEURISTIC_COMPLETE,
}
STATES: Final = {
    HeuristicDecision.COMMIT: BranchState.HEUR_COMMIT,
    HeuristicDecision.ROLLBACK: BranchState.HEUR_ROLLBACK,
    HeuristicDecision.COMPLETE: BranchState.HEUR_COMPLETE,
}


class HeuristicEnd(msgspec.Struct, frozen=True, kw_only=True):
    """One branch that an operator ended: the decision, its author, time and reason, and the prepared messages."""

    key: str
    decision: HeuristicDecision
    who: str
    why: str
    time_ms: int
    prepared_ms: int
    messages: int
    bytes: int
