"""Outcomes of finished XA branches, to tell committed, rolled back and unknown apart when asked later. Pure.

A coordinator may have missed the reply to a COMMIT, or restart a day later. The newest outcomes are kept across
restarts, within a limit of bytes; older ones are dropped and become unknown.
"""

from enum import StrEnum
from typing import Final

import msgspec

from journal.records.newest import NewestByKey

OUTCOMES_BYTES_MAX: Final = 4 * 1024 * 1024  # some 25,000 branches with names as a coordinator makes them
_ENTRY_BYTES: Final = 64  # what an outcome takes besides its key


class Outcome(StrEnum):
    """Outcome of a branch."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"


class FinishedBranch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One finished branch: its key as on the wire, its outcome, and its end in milliseconds."""

    key: str
    outcome: Outcome
    time_ms: int


class Outcomes(NewestByKey[str, FinishedBranch]):
    """The remembered outcomes, by the branch's key. Folded from the journal like the rest of the state."""

    def __init__(self) -> None:
        super().__init__(lambda ended: len(ended.key) + _ENTRY_BYTES)

    def add(self, ended: FinishedBranch) -> None:
        """Add the end of a branch; drop the oldest ones beyond the limit."""
        self.remove(ended.key)
        self.put(ended.key, ended)
        while self.bytes > OUTCOMES_BYTES_MAX:
            self.remove(next(iter(self)).key)
