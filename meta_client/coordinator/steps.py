"""Steps of one transaction: a table, walked by one function. Pure.

A step has happened when it is recorded. DECIDED is the commit point: reached only through both prepares, with no path
to ROLLED_BACK.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class TwoPhaseStep(Enum):
    """Events of a transaction, in the order of a commit."""

    BEGUN = "begun"  # both branches are open
    PREPARED_BROKER = "prepared broker"  # the broker can commit or roll back after any crash
    READ_ONLY_BROKER = "read-only broker"  # nothing was sent: the broker's branch is over, only the database is left
    PREPARED_DATABASE = "prepared database"  # so can the database
    DECIDED = "decided"  # the decision to commit is durable: the commit point
    COMMITTED_DATABASE = "committed database"  # the rows are visible
    COMMITTED_BROKER = "committed broker"  # the messages are visible
    FORGOTTEN = "forgotten"  # over; the log has dropped it
    ROLLED_BACK = "rolled back"  # over; as if it had never begun


S = TwoPhaseStep

NEXT: Final[Mapping[S, frozenset[S]]] = {
    S.BEGUN: frozenset({S.PREPARED_BROKER, S.READ_ONLY_BROKER, S.ROLLED_BACK}),
    S.PREPARED_BROKER: frozenset({S.PREPARED_DATABASE, S.ROLLED_BACK}),
    S.READ_ONLY_BROKER: frozenset({S.COMMITTED_DATABASE, S.ROLLED_BACK}),  # one phase: one resource needs no vote
    S.PREPARED_DATABASE: frozenset({S.DECIDED, S.ROLLED_BACK}),
    S.DECIDED: frozenset({S.COMMITTED_DATABASE}),
    S.COMMITTED_DATABASE: frozenset({S.COMMITTED_BROKER, S.FORGOTTEN}),
    S.COMMITTED_BROKER: frozenset({S.FORGOTTEN}),
    S.FORGOTTEN: frozenset(),
    S.ROLLED_BACK: frozenset(),
}

# Before the decision: any failure rolls both sides back.
UNDECIDED_STEPS: Final = frozenset({S.BEGUN, S.PREPARED_BROKER, S.READ_ONLY_BROKER, S.PREPARED_DATABASE})


def next_step(current: TwoPhaseStep, wanted: TwoPhaseStep) -> TwoPhaseStep:
    """Return *wanted* if it may follow *current*. Asserts that the table allows the pair."""
    assert wanted in NEXT[current], f"{wanted} must not follow {current}"
    return wanted
