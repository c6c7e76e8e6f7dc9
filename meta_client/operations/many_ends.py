"""Ends of many branches by hand: what each needs, doing it, and what has become of each.

Every branch is asked about before, so that a repeat finds what was done before, and again if its broker refuses: it may
have changed in between. Nothing but the branches that were given is touched.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from journal.records.heuristics import HeuristicDecision
from journal.records.xid import XaKey
from meta_client.coordinator.errors import Unreachable
from meta_client.errors import NotSupported
from meta_client.operations.branch_input import WantedBranch
from meta_client.operations.branches import Answered, BranchError, Branches, NoBranch, PlacedKey, is_gone
from meta_client.operations.report_parsing import key_of
from meta_client.protocol.answers import BranchStatus
from meta_client.protocol.branch_report import DECIDED, Report
from meta_client.protocol.errors import RemoteError, printable_line
from meta_client.transactions.names import TableName, table_of
from meta_client.transactions.table import DecisionTable, RowDecision

AT_ONCE: Final = 500  # branches whose rows are read before they are ended


class ManyVerb(Enum):
    COMMIT = "commit"
    ROLLBACK = "rollback"
    COMPLETE = "complete"
    FORGET = "forget"


class EndState(Enum):
    """Knowledge of one branch."""

    TO_DO = "to do"
    DONE = "done"
    BEFORE = "done before"
    LEFT = "left alone"  # its source offers another verb, or none
    REFUSED = "refused"
    UNKNOWN = "unknown"  # its broker gave no answer: repeat the command


FAILED: Final = frozenset({EndState.REFUSED, EndState.UNKNOWN, EndState.TO_DO})
_DECISIONS: Final = {
    ManyVerb.COMMIT: HeuristicDecision.COMMIT,
    ManyVerb.ROLLBACK: HeuristicDecision.ROLLBACK,
    ManyVerb.COMPLETE: HeuristicDecision.COMPLETE,
}
_ENDED_SO: Final = {ManyVerb.COMMIT: BranchStatus.COMMITTED, ManyVerb.ROLLBACK: BranchStatus.ROLLED_BACK}
# Decisions of rows, as `metaq txn doctor` and `metaq reconcile` tell them, against which no branch is ended.
_AGREES: Final = {ManyVerb.COMMIT: RowDecision.COMMIT, ManyVerb.ROLLBACK: RowDecision.ROLLBACK}
_ROWS: Final = frozenset(decision.value for decision in RowDecision)


@dataclass(frozen=True, slots=True)
class BranchOutcome:
    """One branch of the input, and what is known of it."""

    key: XaKey
    broker: int
    state: EndState
    reason: str = ""
    messages: int = 0
    bytes: int = 0
    decision: str | None = None  # of its row

    @property
    def place(self) -> PlacedKey:
        return self.key, self.broker


class ManyEnds:
    """Ends branches by one verb."""

    def __init__(
        self, branches: Branches, verb: ManyVerb, tables: Mapping[TableName, DecisionTable], *, despite_rows: bool
    ) -> None:
        """*tables*: whose rows are asked before a branch is ended. *despite_rows*: end it although a row says
        otherwise."""
        self._branches = branches
        self._verb = verb
        self._tables = tables
        self._despite_rows = despite_rows

    def plan(self, wanted: Iterable[WantedBranch]) -> list[BranchOutcome]:
        """Return the state of each branch, once. Raises Unreachable if a table can't be asked."""
        found: dict[PlacedKey, BranchOutcome] = {}
        for one in self._named(wanted):
            if (before := found.setdefault(one.place, one)) is not one and before.state is EndState.TO_DO:
                found[one.place] = replace(one, decision=one.decision or before.decision)
        offered = [one for one in found.values() if one.state is EndState.TO_DO]
        found |= {one.place: one for one in self.beside_rows(self._looked_at(offered))}
        return list(found.values())

    def carry_out(
        self, plan: Sequence[BranchOutcome], who: str, why: str, on_done: Callable[[int], None]
    ) -> Iterator[BranchOutcome]:
        """End what is to be done; yield each branch with what has become of it. *on_done* gets their number."""
        yield from (one for one in plan if one.state is not EndState.TO_DO)
        to_do, count = [one for one in plan if one.state is EndState.TO_DO], 0
        for start in range(0, len(to_do), AT_ONCE):
            try:
                checked = self.beside_rows(to_do[start : start + AT_ONCE])
            except Unreachable as silent:
                yield from (replace(one, state=EndState.UNKNOWN, reason=str(silent)) for one in to_do[start:])
                return
            some = {one.place: one for one in checked if one.state is EndState.TO_DO}
            yield from (one for one in checked if one.state is not EndState.TO_DO)
            failed: list[BranchOutcome] = []
            for place, error in self._end(list(some), who, why):
                count += 1
                if not isinstance(error, Exception):
                    yield replace(some[place], state=EndState.DONE)
                elif isinstance(error, RemoteError | NoBranch | NotSupported):
                    failed.append(replace(some[place], reason=printable_line(str(error))))
                else:
                    yield replace(some[place], state=EndState.UNKNOWN, reason=printable_line(str(error)))
            yield from self._changed(failed)
            on_done(count)

    def _end(self, places: list[PlacedKey], who: str, why: str) -> Answered[Report] | Answered[None]:
        if self._verb is ManyVerb.FORGET:
            return self._branches.forget_all(places)
        return self._branches.end_all(places, _DECISIONS[self._verb], who, why)

    def _named(self, wanted: Iterable[WantedBranch]) -> Iterator[BranchOutcome]:
        """Yield each branch that is meant, at its broker."""
        listed: dict[object, list[PlacedKey]] | None = None
        for one in wanted:
            places = [(one.name, one.broker)] if isinstance(one.name, XaKey) and one.broker is not None else None
            if places is None:
                if listed is None:
                    listed = self._listed()
                places = [at for at in listed.get(one.name, ()) if one.broker in (None, at[1])]
                if len(places) != 1:
                    raise NoBranch(self._why_not_one(one, len(places)))
            ((key, broker_id),) = places
            state, reason = EndState.TO_DO, ""
            if one.verbs is not None and self._verb.value not in one.verbs:
                state, reason = EndState.LEFT, f"its source offers {' or '.join(one.verbs) or 'nothing to do by hand'}"
            yield BranchOutcome(key, broker_id, state, reason, decision=one.decision)

    def _why_not_one(self, wanted: WantedBranch, count: int) -> str:
        if count:
            return f"{count} branches are called {wanted.name}: name one by its key and --broker; nothing was done"
        asked = "; ".join(self._branches.failures.values()) or "see metaq txn list"
        return f"no branch in doubt is called {wanted.name}: {asked}; nothing was done"

    def _listed(self) -> dict[object, list[PlacedKey]]:
        places = [(key, broker_id) for broker_id, keys in self._branches.keys(None).items() for key in keys]
        if self._verb is ManyVerb.FORGET:
            places += [(key_of(report), report["broker"]) for report in self._branches.findings()]
        listed: dict[object, list[PlacedKey]] = {}
        for place in dict.fromkeys(places):  # one that was begun again appears twice
            listed.setdefault(place[0], []).append(place)
            listed.setdefault(place[0].xid, []).append(place)
        return listed

    def _looked_at(self, some: Sequence[BranchOutcome]) -> list[BranchOutcome]:
        """Return branches with the state that their brokers tell."""
        by_place = {one.place: one for one in some}
        found: dict[PlacedKey, BranchOutcome] = {}
        gone: list[PlacedKey] = []
        for place, report in self._branches.show_all(list(by_place)):
            one = by_place[place]
            if not isinstance(report, Exception):
                found[place] = self._judged(one, report)
            elif is_gone(report):
                gone.append(place)
            else:
                found[place] = replace(one, state=EndState.UNKNOWN, reason=printable_line(str(report)))
        for place, status in self._branches.statuses(gone):
            found[place] = self._judged_ended(by_place[place], status)
        return [found[place] for place in by_place]

    def _judged(self, one: BranchOutcome, report: Report) -> BranchOutcome:
        state = report["state"]
        one = replace(one, messages=report["messages"], bytes=report["bytes"])
        if self._verb is ManyVerb.FORGET:
            if (decision := report.get("decision")) is not None:
                return replace(one, reason=f"{decision['who']} decided: {decision['decision']}")
            if (finding := report.get("finding")) is not None:
                return replace(one, reason=f"{finding['who']} found: {finding['why']}")
            said = f"it is {state}: no operator decided it, so there is nothing to forget"
            return replace(one, state=EndState.REFUSED, reason=said)
        if state == BranchStatus.PREPARED.value:
            return replace(one, state=EndState.TO_DO)
        if state == DECIDED[_DECISIONS[self._verb]].value:
            return replace(one, state=EndState.BEFORE, reason=f"it is {state.replace('_', ' ')}")
        return replace(one, state=EndState.REFUSED, reason=f"it is {state.replace('_', ' ')}, not prepared")

    def _judged_ended(self, one: BranchOutcome, status: BranchStatus | BranchError) -> BranchOutcome:
        if self._verb is ManyVerb.FORGET:
            return replace(one, state=EndState.BEFORE, reason="nothing is on record of it")
        if isinstance(status, Exception):
            return replace(one, state=EndState.UNKNOWN, reason=printable_line(str(status)))
        if status is _ENDED_SO.get(self._verb):
            return replace(one, state=EndState.BEFORE, reason=f"it is {status.value.replace('_', ' ')}, not by hand")
        said = "not known to its broker" if status is BranchStatus.UNKNOWN else status.value.replace("_", " ")
        return replace(one, state=EndState.REFUSED, reason=f"it is {said}, not prepared")

    def _changed(self, failed: Sequence[BranchOutcome]) -> Iterator[BranchOutcome]:
        """Yield branches that their brokers have refused to end, as they are now."""
        for one, now in zip(failed, self._looked_at(failed), strict=True):
            yield replace(now, state=EndState.REFUSED, reason=one.reason) if now.state is EndState.TO_DO else now

    def beside_rows(self, some: Sequence[BranchOutcome]) -> list[BranchOutcome]:
        """Return branches, those refused whose row says otherwise. Raises Unreachable."""
        if self._despite_rows or self._verb is ManyVerb.FORGET:
            return list(some)
        rows: dict[str, str] = {}
        for name, table in self._tables.items():
            gtrids = {one.key.xid.gtrid.decode() for one in some if table_of(one.key.xid) == name.table_id}
            rows |= {gtrid: decision.value for gtrid, decision in table.decided_all(sorted(gtrids)).items()}
        return [self._beside(one, rows.get(one.key.xid.gtrid.decode(errors="replace"), one.decision)) for one in some]

    def without_row(self, some: Iterable[BranchOutcome]) -> int:
        """Return how many of the branches to be ended name a decision table that nobody asked."""
        if self._despite_rows or self._verb is ManyVerb.FORGET:
            return 0
        asked = {None, *(name.table_id for name in self._tables)}
        of_rows = (one for one in some if one.state is EndState.TO_DO and one.decision is None)
        return sum(table_of(one.key.xid) not in asked for one in of_rows)

    def _beside(self, one: BranchOutcome, decision: str | None) -> BranchOutcome:
        agrees = _AGREES.get(self._verb)
        if (
            one.state is not EndState.TO_DO
            or decision not in _ROWS
            or (agrees is not None and decision == agrees.value)
        ):
            return one
        return replace(
            one,
            state=EndState.REFUSED,
            reason=f"its row in the decision table says {decision}; --despite-row ends it all the same",
        )


def counts(outcomes: Iterable[BranchOutcome]) -> dict[str, int]:
    """Return how many branches are in each state."""
    found = Counter(one.state for one in outcomes)
    return {state.value: found[state] for state in EndState if found[state]}
