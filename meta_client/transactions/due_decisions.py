"""Decisions about transactions whose branches are due: read from their rows, or made where there is none.

Hundreds are read with one statement, and made with one. A statement that meets a row which a living transaction holds
decides nothing: it is repeated for fewer, down to one.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from meta_client.coordinator.errors import Unreachable
from meta_client.transactions.brokers import Brokers
from meta_client.transactions.errors import OtherTable
from meta_client.transactions.generation import Generations
from meta_client.transactions.resolver_state import Counts, ResolverState
from meta_client.transactions.table import DecisionTable, RowDecision

log = logging.getLogger(__name__)

SOME: Final = 16  # transactions of a statement, after one for hundreds was refused
_GENERATION: Final = "table's generation"
RESTORED: Final = "its broker was restored, and it may have ended since: metaq txn doctor shows how to end it by hand"
Decide = Callable[[Sequence[str]], dict[str, RowDecision]]


class DueDecisions:
    def __init__(self, brokers: Brokers, generations: Generations | None, state: ResolverState) -> None:
        """*generations* notices a restored database; None: there is no ZooKeeper to compare with."""
        self.is_sound = True  # no statement has failed: failures do not say whether the connection is still usable
        self._brokers = brokers
        self._generations = generations
        self._state = state

    def presumes(self, table: DecisionTable) -> bool:
        """Return True if a missing row proves that nothing was decided. Raises OtherTable."""
        self.is_sound = True
        return self._is_newest(table)

    def _is_newest(self, table: DecisionTable) -> bool:
        try:
            if self._generations is None:
                table.generation()
            else:
                self._generations.check(table)
        except OtherTable:
            raise
        except Unreachable as error:
            self._state.count(Counts(errors=1))
            self._state.log_problem(_GENERATION, str(error))
            return False
        self._state.over(_GENERATION)
        return True

    def of(
        self, table: DecisionTable, due: Mapping[str, Sequence[int]], *, presumes: bool
    ) -> Iterator[tuple[str, RowDecision]]:
        """Yield what *table* decides about transactions whose branches are prepared at these brokers. Without
        *presumes*, and of a restored branch, leave alone what has no row. Raises OtherTable."""
        failed = set[str]()
        found = self._asked(table.decided_all, list(due), failed)
        left = due.keys() - found.keys() - failed
        if presumes and left:
            undecided = self._may_be_decided({gtrid: due[gtrid] for gtrid in due if gtrid in left})
            if undecided and self._is_newest(table):  # last: brokers may have been asked for seconds
                found |= self._asked(table.resolve_all, undecided, failed)
        for gtrid in due:
            if gtrid in found:
                yield gtrid, found[gtrid]

    def _asked(self, decide: Decide, gtrids: Sequence[str], failed: set[str]) -> dict[str, RowDecision]:
        """Return the answers of *decide*, asked about fewer at a time where it fails; add those without to *failed*."""
        if not gtrids:
            return {}
        try:
            return decide(gtrids)
        except Unreachable as error:  # a transaction may be committing right now
            if len(gtrids) == 1:
                self.is_sound = False
                failed.add(gtrids[0])
                log.debug("not resolved yet gtrid=%s reason=%s", gtrids[0], error)
                return {}
        count = SOME if len(gtrids) > SOME else 1
        found: dict[str, RowDecision] = {}
        for first in range(0, len(gtrids), count):
            found |= self._asked(decide, gtrids[first : first + count], failed)
        return found

    def _may_be_decided(self, undecided: Mapping[str, Sequence[int]]) -> list[str]:
        """Return the transactions of which a rollback row may be inserted."""
        places = [(gtrid, broker_id) for gtrid, brokers in undecided.items() for broker_id in brokers]
        refused = set[str]()
        for (gtrid, broker_id), is_restored in self._brokers.restored(places).items():
            what = f"{gtrid} {broker_id}"
            if isinstance(is_restored, Unreachable):
                self._state.log_problem(what, str(is_restored))
            elif is_restored:
                if self._state.is_new(what, RESTORED):
                    self._state.count(Counts(hazards=1))
                    log.warning("not resolved yet what=%s reason=%s", what, RESTORED)
            else:
                continue
            refused.add(gtrid)
        return [gtrid for gtrid in undecided if gtrid not in refused]
