"""State of one table's resolver: its counts, and the problems that it has logged and that are still present."""

import logging
import operator
from collections.abc import Collection
from dataclasses import astuple, dataclass
from typing import Final

log = logging.getLogger(__name__)

_ASKED: Final = ("table", "rows", "broker ")  # of problems: those of a table or broker, not of a transaction


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals since the start. Immutable."""

    resolved_committed: int = 0  # branches
    resolved_rolled_back: int = 0
    hazards: int = 0  # decided branches that ended otherwise, or with an unknown outcome
    rows_deleted: int = 0
    errors: int = 0  # passes that could not reach every broker

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*map(operator.add, astuple(self), astuple(other)))


class ResolverState:
    """Counts and problems. The resolver's thread alone, except as said."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._problems: dict[str, str] = {}  # by a place, or by gtrid and perhaps broker

    @property
    def unreachable(self) -> tuple[str, ...]:
        """Databases and brokers that could not be asked, each with the reason. Any thread."""
        return tuple(f"{what}: {why}" for what, why in self._problems.copy().items() if what.startswith(_ASKED))

    def count(self, counts: Counts) -> None:
        self.counts += counts

    def has(self, what: str, problem: str) -> bool:
        return self._problems.get(what) == problem

    def is_new(self, what: str, problem: str) -> bool:
        """Keep a problem; return True unless it was there before."""
        if self.has(what, problem):
            return False
        self._problems[what] = problem
        return True

    def log_problem(self, what: str, problem: str) -> None:
        """Log a problem once, until it changes or ends."""
        if self.is_new(what, problem):
            log.warning("not resolved yet what=%s reason=%s", what, problem)

    def over(self, what: str) -> None:
        """Log that *what* is reachable, if it was not."""
        if self.drop(what):
            log.info("reachable again what=%s", what)

    def drop(self, what: str) -> bool:
        """Forget a problem; return True if there was one."""
        return self._problems.pop(what, None) is not None

    def keep_only(self, gtrids: Collection[str], prefix: str) -> None:
        """Forget problems of other transactions; *prefix* begins the names of all."""
        self._problems = {
            what: problem
            for what, problem in self._problems.items()
            if not what.startswith(prefix) or what.partition(" ")[0] in gtrids
        }
