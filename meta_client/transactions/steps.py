"""Steps of one transaction whose decision is a row: a table, walked by one function. Pure.

A step has happened when it is recorded. DECIDED, the database's COMMIT, is the commit point: no path leads from it to
ROLLED_BACK. Without a message the database commits alone: from BEGUN to DECIDED, and no row is written.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class CommitStep(Enum):
    """Events of a transaction, in the order of a commit."""

    BEGUN = "begun"
    PREPARED = "prepared"  # every broker with messages can commit or roll back after any crash
    RECORDED = "recorded"  # the row is inserted in the caller's open transaction
    DECIDED = "decided"  # the database has committed the caller's rows and ours: the commit point
    COMMIT_SENT = "commit sent"  # COMMIT is on its way to the brokers
    ROLLED_BACK = "rolled back"  # as if it had never begun


S = CommitStep

NEXT: Final[Mapping[S, frozenset[S]]] = {
    S.BEGUN: frozenset({S.PREPARED, S.DECIDED, S.ROLLED_BACK}),
    S.PREPARED: frozenset({S.RECORDED, S.ROLLED_BACK}),
    S.RECORDED: frozenset({S.DECIDED, S.ROLLED_BACK}),
    S.DECIDED: frozenset({S.COMMIT_SENT}),
    S.COMMIT_SENT: frozenset(),
    S.ROLLED_BACK: frozenset(),
}

UNDECIDED_STEPS: Final = frozenset({S.BEGUN, S.PREPARED, S.RECORDED})


def next_step(current: CommitStep, wanted: CommitStep) -> CommitStep:
    """Return *wanted* if it may follow *current*. Asserts that the table allows the pair."""
    assert wanted in NEXT[current], f"{wanted} must not follow {current}"
    return wanted
