"""Applies certain verdicts: commits and rolls back as decided, decides where no decision exists, and records cases that
need a person.

Each step asks its side again, so changes since the diagnosis are respected: all operations are those of resolvers and
recovery, and may be repeated.
"""

from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from journal.records.xid import Xid
from meta_client.client import Client
from meta_client.coordinator.errors import CannotEnlist, CoordinatorError, HeuristicOutcome, Unreachable
from meta_client.coordinator.names import branch
from meta_client.coordinator.participants import BranchEnd
from meta_client.coordinator.phase_two import commit_once
from meta_client.doctor.cases import Case, Side
from meta_client.doctor.decisions import AS_DECIDED
from meta_client.doctor.verdicts import CERTAIN, Age, Owner, OwnerAnswer, Verdict
from meta_client.producer.xa_verbs import RemoteBranch, XaVerbs
from meta_client.protocol.errors import XaError
from meta_client.protocol.requests import BranchVerb
from meta_client.transactions.brokers import BranchPlace, BrokerBranch, Brokers
from meta_client.transactions.databases import table_at
from meta_client.transactions.errors import RowGone, RowLocked
from meta_client.transactions.names import TableName
from meta_client.transactions.table import DATABASE, DecisionTable, RowDecision

NAME: Final = "metaq-doctor"
AT_ONCE: Final = 500  # transactions that are ended together
BEFORE: Final = "it had been committed meanwhile"


@dataclass(frozen=True, slots=True)
class Applied:
    """Action on one branch. *is_over*: nothing is left to do; *is_at_work*: its transaction turned out to live."""

    side: Side
    what: str
    is_over: bool
    is_at_work: bool = False


def apply_all(cases: Sequence[Case], verbs: XaVerbs) -> Iterator[Applied]:
    """Do as `apply` for many cases: those of a decision table, which alone it can be, are ended together."""
    one_by_one: list[Case] = []
    together: dict[tuple[str, TableName], list[Case]] = defaultdict(list)
    for case in cases:
        if (place := _place_together(case)) is None:
            one_by_one.append(case)
        else:
            together[place].append(case)
    for (url, name), some in together.items():
        for first in range(0, len(some), AT_ONCE):
            left = yield from _end_together(url, name, some[first : first + AT_ONCE], verbs)
            one_by_one += left
    for case in one_by_one:
        yield from apply(case, verbs)


def _place_together(case: Case) -> tuple[str, TableName] | None:
    """Return the decision table of a case of which every certain branch has a name and a verdict of resolvers."""
    database = case.decision.table
    if case.owner is not Owner.TABLE or database is None or (name := database.table) is None:
        return None
    for side in case.sides:
        if side.verdict in CERTAIN and (
            side.verdict is Verdict.AGREED or side.at is None or side.at[1] != name.key(case.name, side.at[0])
        ):
            return None
    return database.url, name


def _end_together(
    url: str, name: TableName, cases: Sequence[Case], verbs: XaVerbs
) -> Generator[Applied, None, Sequence[Case]]:
    """End the branches of *cases*; return the cases that need more than a row that is there, or can be written."""
    undecided = [case.name for case in cases if case.decision.said is OwnerAnswer.NONE]
    try:
        with closing(_open_at(url, name)) as table:
            found = table.decided_all([case.name for case in cases if case.decision.said is not OwnerAnswer.NONE])
            found |= table.resolve_all(undecided) if undecided else {}
    except (Unreachable, CannotEnlist):
        return cases
    places: dict[RowDecision, dict[BranchPlace, Side]] = {outcome: {} for outcome in RowDecision}
    for case in cases:
        for side in case.sides:
            if case.name in found and side.verdict in CERTAIN and side.at is not None:
                places[found[case.name]][case.name, side.at[0]] = side
    brokers = Brokers(verbs, name)
    committed, rolled_back = places[RowDecision.COMMIT], places[RowDecision.ROLLBACK]
    for place, news in brokers.commit_all(committed).items():
        if isinstance(news, CoordinatorError):
            yield Applied(committed[place], f"not ended: {news}", is_over=False)
        else:
            yield Applied(committed[place], "committed" if news else BEFORE, is_over=True)
    for place, ended in brokers.rollback_all(rolled_back).items():
        if isinstance(ended, CoordinatorError):
            yield Applied(rolled_back[place], f"not ended: {ended}", is_over=False)
        else:
            yield Applied(rolled_back[place], BEFORE if ended is BranchEnd.COMMITTED else "rolled back", is_over=True)
    return [case for case in cases if case.name not in found]


def apply(case: Case, verbs: XaVerbs) -> Iterator[Applied]:
    """End each branch of *case* with a certain verdict, a database's before a broker's. Raises nothing: failures are in
    the results."""
    certain = [side for side in case.sides if side.verdict in CERTAIN]
    outcome = case.decision.said
    if certain and case.owner is Owner.TABLE:
        try:
            outcome = _resolve(case)
        except RowLocked as error:  # its transaction may be committing right now
            is_at_work = case.age is not Age.STUCK
            yield from (Applied(side, f"left alone: {error}", is_over=False, is_at_work=is_at_work) for side in certain)
            return
        except (Unreachable, CannotEnlist) as error:
            yield from (Applied(side, f"not decided: {error}", is_over=False) for side in certain)
            return
    failure = ""
    for side in certain:
        if failure:
            yield Applied(side, f"left alone: {failure}", is_over=False)
            continue
        try:
            yield Applied(side, _carry_out(case, side, outcome, verbs), is_over=True)
        except CoordinatorError as error:
            yield Applied(side, f"not ended: {error}", is_over=False)
            if side.at is None:  # messages must appear after their rows
                failure = f"{side.place} comes first"


def record_finding(case: Case, side: Side, who: str, why: str, verbs: XaVerbs) -> Applied:
    """Record a mixed or hazardous branch in its broker's ledger, where it stays until FORGET: it still needs repair by
    hand. Raises nothing: failures are in the result."""
    assert side.at is not None
    broker_id, key = side.at
    said = [f"{case.decision.by}: {case.decision.said.value}"]
    said += [f"{one.place}: {one.answer.said.value}" for one in case.sides]
    verb = BranchVerb.MIXED if side.verdict is Verdict.MIXED else BranchVerb.HAZARD
    try:
        at = RemoteBranch(verbs, key, broker_id)
        is_kept = at.record_finding(verb, who, why, "; ".join(said))
    except XaError as error:
        return Applied(side, f"not on the ledger of {side.place}: {error}", is_over=False)
    what = f"on the ledger of {side.place}" if is_kept else f"{side.place} keeps no ledger"
    return Applied(side, what, is_over=False)


def _resolve(case: Case) -> OwnerAnswer:
    """Return the row's decision, which is on disk; insert the rollback row if there was none before. NONE: the row has
    been deleted since."""
    table = _open(case)
    try:
        outcome = table.resolve(case.name) if case.decision.said is OwnerAnswer.NONE else table.decided(case.name)
    except RowGone:
        outcome = None
    finally:
        table.close()
    return AS_DECIDED.get(outcome, OwnerAnswer.NONE)


def _open(case: Case) -> DecisionTable:
    assert case.decision.table is not None, "a table decides"
    return _open_at(case.decision.table.url, case.decision.table.table)


def _open_at(url: str, name: TableName | None) -> DecisionTable:
    table = table_at(url)
    if table.identity.name != name:
        table.close()
        raise Unreachable(DATABASE, f"it has another decision table now: {table.identity.name.table_id}")
    return table


def _carry_out(case: Case, side: Side, outcome: OwnerAnswer, verbs: XaVerbs) -> str:
    """Carry out the decision. Raises CoordinatorError."""
    if side.at is None:
        return _commit_prepared(case, side)
    broker_id, key = side.at
    one = BrokerBranch(RemoteBranch(verbs, key, broker_id))
    try:
        return _end_at_broker(case, side, outcome, one, verbs)
    except (HeuristicOutcome, Unreachable):
        if side.verdict is Verdict.AGREED and one.outcome(key.xid, "") is BranchEnd.UNKNOWN:
            return "it had been forgotten meanwhile"
        raise


def _end_at_broker(case: Case, side: Side, outcome: OwnerAnswer, one: BrokerBranch, verbs: XaVerbs) -> str:
    assert side.at is not None
    broker_id, key = side.at
    if case.owner is Owner.TABLE and outcome is OwnerAnswer.NONE:
        if side.verdict is not Verdict.AGREED and one.outcome(key.xid, "") is not BranchEnd.NOT_ENDED:
            return "it had been ended meanwhile"
        raise Unreachable(DATABASE, "its row has been deleted since: look again")
    if case.owner is Owner.TABLE and outcome is OwnerAnswer.ROLLBACK:
        ended = Brokers(verbs, TableName(case.owner_name)).rollback(case.name, broker_id)
        return BEFORE if ended is BranchEnd.COMMITTED else "rolled back"
    if case.owner is Owner.BATCH and outcome is OwnerAnswer.ROLLBACK:
        one.rollback()
        return "rolled back"
    # Without STATUS, a row's branch that was prepared and is gone counts as committed, as the row says.
    is_news = commit_once(one, branch(key.xid, b""), "", is_repeated=case.owner is not Owner.LOG)
    return "committed" if is_news else BEFORE


def _commit_prepared(case: Case, side: Side) -> str:
    assert side.xact is not None
    assert side.database is not None
    assert case.decision.receipts is not None
    from meta_client.doctor.postgres import commit

    if side.database.resource_id != case.decision.receipts.resource_ids[0]:
        raise Unreachable(side.place, "its own database was not given: --database URL")
    whole: Xid = branch(side.xact.xid, b"")
    commit(side.database.url, whole, case.decision.receipts.database)
    return "committed"


def verbs_of(client: Client) -> XaVerbs:
    """Return what finds brokers and branches."""
    return XaVerbs(client.topology, client.connections, NAME)
