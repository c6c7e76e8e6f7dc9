"""What an operator decided about a branch in doubt, and the evidence. Pure.

A coordinator that never comes back leaves prepared branches behind. Somebody looks at the database, decides, and
answers for it: a HEURISTIC record says who, when and why before anything is done, and until it is forgotten RECOVER
lists the branch and every verb is told of it (X/Open XA, heuristic completion; spec 2.7, 2.10).
"""

from enum import IntEnum
from typing import Final

import msgspec

from journal.states import BranchEvent, BranchState

HEURISTICS_MAX: Final = 100_000  # that nobody has forgotten: all of them are in memory, and in every checkpoint
WHO_BYTES_MAX: Final = 255
WHY_BYTES_MAX: Final = 1024


class HeuristicDecision(IntEnum):
    """What to do with a branch in doubt."""

    COMMIT = 1
    ROLLBACK = 2
    COMPLETE = 3  # take it away: its messages are never published, and nobody says that it was rolled back


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
    """One branch that an operator ended: the decision, who took it, when, why, and the promise that was seen."""

    key: str
    decision: HeuristicDecision
    who: str
    why: str
    time_ms: int
    prepared_ms: int
    messages: int
    bytes: int
