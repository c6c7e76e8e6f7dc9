"""Outcomes of finished XA branches, to tell committed, rolled back and unknown apart when asked later. Pure.

A coordinator may have missed the reply to a COMMIT, or restart a day later. The newest outcomes are kept across
restarts, within a limit of bytes; older ones are dropped and become unknown.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec

OUTCOMES_BYTES_MAX: Final = 4 * 1024 * 1024  # some 25,000 branches with names as a coordinator makes them
_ENTRY_BYTES: Final = 64  # what an outcome takes besides its key


class Outcome(StrEnum):
    """Outcome of a branch."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"


class Ended(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One finished branch: its key as on the wire, its outcome, and its end in milliseconds."""

    key: str
    outcome: Outcome
    time_ms: int


class Outcomes:
    """The remembered outcomes. One owner thread; folded from the journal like the rest of the state."""

    def __init__(self) -> None:
        self._ended: dict[str, Ended] = {}  # the oldest first
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._ended)

    def __iter__(self) -> Iterator[Ended]:
        """Every outcome, the oldest first."""
        return iter(self._ended.values())

    def find(self, key: str) -> Ended | None:
        """Return the end of the last branch with *key*; None if it is unknown."""
        return self._ended.get(key)

    def note(self, ended: Ended) -> None:
        """Add the end of a branch; drop the oldest ones beyond the limit."""
        self.drop(ended.key)
        self._ended[ended.key] = ended
        self._bytes += len(ended.key) + _ENTRY_BYTES
        while self._bytes > OUTCOMES_BYTES_MAX:
            self.drop(next(iter(self._ended)))

    def drop(self, key: str) -> None:
        """Drop the outcome of *key*, because another branch of that name has begun."""
        if self._ended.pop(key, None) is not None:
            self._bytes -= len(key) + _ENTRY_BYTES
