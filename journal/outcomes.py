"""How finished XA branches ended, so that a late question is told committed from rolled back from unknown. Pure.

Whoever coordinates may have missed the answer to a COMMIT, or come back a day later. The newest outcomes are kept,
through restarts, for as many branches as fit into a bound; older ones are forgotten, and then nobody knows.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec

OUTCOMES_BYTES_MAX: Final = 4 * 1024 * 1024  # some 25,000 branches with names as a coordinator makes them
_ENTRY_BYTES: Final = 64  # what an outcome takes besides its key


class Outcome(StrEnum):
    """How a branch ended."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"


class Ended(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One finished branch: its key as on the wire, how it ended, and when, in milliseconds."""

    key: str
    outcome: Outcome
    time_ms: int


class Outcomes:
    """The memory. One owner thread; folded from the journal like the rest of the state."""

    def __init__(self) -> None:
        self._ended: dict[str, Ended] = {}  # the oldest first
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._ended)

    def __iter__(self) -> Iterator[Ended]:
        """Every outcome, the oldest first."""
        return iter(self._ended.values())

    def find(self, key: str) -> Ended | None:
        """How the branch ended that had *key* last; None: nobody remembers."""
        return self._ended.get(key)

    def note(self, ended: Ended) -> None:
        """Remember how a branch ended; what is too much is forgotten, the oldest first."""
        self.drop(ended.key)
        self._ended[ended.key] = ended
        self._bytes += len(ended.key) + _ENTRY_BYTES
        while self._bytes > OUTCOMES_BYTES_MAX:
            self.drop(next(iter(self._ended)))

    def drop(self, key: str) -> None:
        """Forget: another branch of that name has begun."""
        if self._ended.pop(key, None) is not None:
            self._bytes -= len(key) + _ENTRY_BYTES
