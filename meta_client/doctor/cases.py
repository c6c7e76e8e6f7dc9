"""Joins the sides' answers into cases, one per transaction, with a verdict on each branch. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from journal.records.ledger import RESTORED_BY
from journal.records.xid import Xid
from meta_client.coordinator.names import DATABASE, branch, log_of
from meta_client.coordinator.receipts import Receipts
from meta_client.doctor.decisions import OwnerDecision, batch_decision, decided_places, decision_of, owner_of
from meta_client.doctor.evidence import (
    AT_BROKER,
    Answer,
    BranchAt,
    DatabaseEvidence,
    Evidence,
    PreparedXact,
)
from meta_client.doctor.verdicts import CERTAIN, Age, BranchAnswer, Facts, Owner, OwnerAnswer, Verdict, verdict_on
from meta_client.operations.branch_text import age_s as report_age_s
from meta_client.protocol.answers import BranchStatus
from meta_client.protocol.branch_report import Report
from meta_client.transactions.table import RowDecision

STUCK_S: Final = 300.0  # no healthy transaction stays prepared for so long
NO_ANSWER: Final = Answer(BranchAnswer.SILENT, "it was not asked")
NO_RECEIPTS: Final = "the log does not say in words of this version which database takes part"


@dataclass(frozen=True, slots=True)
class Side:
    """One branch of a transaction: at a broker, or, with *database*, prepared in one."""

    place: str
    answer: Answer
    verdict: Verdict
    at: BranchAt | None = None
    report: Report | None = None
    xact: PreparedXact | None = None
    database: DatabaseEvidence | None = None
    finding: Report | None = None  # from the broker's ledger

    @property
    def may_be_noted(self) -> bool:
        """True if it belongs on its broker's ledger and is not there yet."""
        is_wrong = self.verdict in (Verdict.MIXED, Verdict.HAZARD)
        return is_wrong and self.at is not None and self.finding is None


@dataclass(frozen=True, slots=True)
class Case:
    """One transaction. *xid*: of the whole, or of a foreign one's only known branch."""

    owner: Owner
    owner_name: str  # the table's id, the coordinator's prefix, the qualifier
    xid: Xid
    decision: OwnerDecision
    age: Age
    sides: tuple[Side, ...]

    @property
    def name(self) -> str:
        return str(self.xid) if self.owner is Owner.FOREIGN else self.xid.gtrid.decode()

    @property
    def is_over(self) -> bool:
        return all(side.verdict is Verdict.DONE for side in self.sides)


@dataclass(slots=True)
class _Gathered:
    """A case under construction."""

    owner: Owner
    owner_name: str
    xid: Xid
    decision: OwnerDecision | None  # of a Spark batch: about these branches of it, and not all
    at_brokers: dict[BranchAt, Report | None] = field(default_factory=dict)
    xacts: list[tuple[DatabaseEvidence, PreparedXact]] = field(default_factory=list)


def to_ask(found: Evidence) -> tuple[set[BranchAt], dict[Xid, Receipts]]:
    """Return branches whose STATUS is needed in addition to the lists, and decided transactions whose database outcome
    is needed.

    A listed, undecided branch is asked again: its transaction may have ended since, with its row deleted.
    """
    reports, decided = found.brokers.reports, set[Xid]()
    wanted: set[BranchAt] = set()
    for database in found.databases:
        for row in database.rows.values():
            decided.add(Xid(1, row.gtrid.encode(), b""))
            if database.table is not None and row.outcome is RowDecision.COMMIT:
                wanted |= {(broker_id, database.table.key(row.gtrid, broker_id)) for broker_id in row.brokers}
    places: dict[Xid, Receipts] = {}
    for log in found.logs:
        decided |= log.unfinished.keys()
        for xid, where, at in decided_places(log.unfinished):
            wanted.add(at)
            places[xid] = where
    wanted |= found.brokers.findings.keys()
    wanted -= reports.keys()
    for at, report in reports.items():
        is_ours = owner_of(at)[0] is not Owner.FOREIGN
        if is_ours and report["state"] == BranchStatus.PREPARED and branch(at[1].xid, b"") not in decided:
            wanted.add(at)
    prepared = {branch(xact.xid, b"") for _, xact in _prepared(found) if xact.xid.bqual == DATABASE}
    return wanted, {xid: where for xid, where in places.items() if xid not in prepared}


def cases_of(found: Evidence, now_ms: int, age_s: float) -> list[Case]:
    """Return every transaction known to some side, the longest in doubt first."""
    gathered: dict[tuple[Owner, str, int, bytes, OwnerDecision | None], _Gathered] = {}

    def case_for(owner: Owner, name: str, xid: Xid, decision: OwnerDecision | None = None) -> _Gathered:
        whole = xid if owner is Owner.FOREIGN else branch(xid, b"")
        made = _Gathered(owner, name, whole, decision)
        return gathered.setdefault((owner, name, xid.format_id, xid.gtrid, decision), made)

    for at, report in found.brokers.reports.items():
        case_for(*owner_of(at), at[1].xid, batch_decision(at, found)).at_brokers[at] = report
    for at in found.brokers.findings:
        case_for(*owner_of(at), at[1].xid, batch_decision(at, found)).at_brokers.setdefault(at)
    for database in found.databases:
        for row in database.rows.values():
            if database.table is None:
                continue
            one = case_for(Owner.TABLE, database.table.table_id, Xid(1, row.gtrid.encode(), b""))
            for broker_id in row.brokers:
                one.at_brokers.setdefault((broker_id, database.table.key(row.gtrid, broker_id)))
    for log in found.logs:
        for xid in log.unfinished:
            case_for(Owner.LOG, log.name.label, xid)
        for xid, _, at in decided_places(log.unfinished):
            case_for(Owner.LOG, log.name.label, xid).at_brokers.setdefault(at)
    for database, xact in _prepared(found):
        if xact.xid.bqual == DATABASE and (name := log_of(xact.xid)) is not None:
            case_for(Owner.LOG, name.label, xact.xid).xacts.append((database, xact))
            continue
        for one in gathered.values():  # join a foreign transaction's branches by their global part
            if one.owner is Owner.FOREIGN and (one.xid.format_id, one.xid.gtrid) == (
                *(xact.xid.format_id, xact.xid.gtrid),
            ):
                one.xacts.append((database, xact))
    cases = [_case(one, found, now_ms, age_s) for one in gathered.values()]
    return sorted((case for case in cases if case.sides), key=lambda case: -_longest_s(case, now_ms))


def _prepared(found: Evidence) -> Iterator[tuple[DatabaseEvidence, PreparedXact]]:
    """Yield each prepared transaction once, preferably from its own database: a server lists those of all databases."""
    seen: dict[tuple[str, Xid], tuple[DatabaseEvidence, PreparedXact]] = {}
    for database in found.databases:
        for xact in database.prepared:
            if (database.server, xact.xid) not in seen or xact.database == database.database:
                seen[database.server, xact.xid] = database, xact
    yield from seen.values()


def _case(one: _Gathered, found: Evidence, now_ms: int, age_s: float) -> Case:
    answers = {at: _answer_at(at, report, found) for at, report in one.at_brokers.items()}
    ages = [
        _age(at, one.at_brokers[at], found, now_ms)
        for at, answer in answers.items()
        if answer.said is BranchAnswer.PREPARED
    ]
    ages += [
        Age.YOUNG if xact.age_s < age_s else Age.STUCK if xact.age_s > STUCK_S else Age.OLD
        for _, xact in one.xacts
        if xact.age_s is not None
    ]
    age = min(ages, default=Age.OLD)
    decision = one.decision or decision_of(one.owner, one.owner_name, one.xid, found, age_s)
    before = None
    sides = list(_database_sides(one, decision, age, found))
    if one.owner is Owner.LOG and decision.said is OwnerAnswer.COMMIT:
        before = sides[0].answer.said if len(sides) == 1 else BranchAnswer.SILENT
    for at, answer in answers.items():
        verdict = verdict_on(Facts(one.owner, decision.said, answer.said, age, before))
        if (finding := found.brokers.findings.get(at)) is not None and (
            verdict not in CERTAIN or (verdict is Verdict.DECIDE and finding["who"] == RESTORED_BY)
        ):
            # Until FORGET. Of a restored branch, a commit's row may have been deleted after the back-up.
            verdict = Verdict(finding["state"])
        sides.append(Side(f"broker {at[0]}", answer, verdict, at, one.at_brokers[at], finding=finding))
    if decision.row is not None and decision.row.hazard is not None and not decision.row.brokers:
        label = decision.by
        sides.append(Side(label, Answer(BranchAnswer.UNKNOWN, decision.row.hazard), Verdict.HAZARD))
    return Case(one.owner, one.owner_name, one.xid, decision, age, tuple(sides))


def _answer_at(at: BranchAt, report: Report | None, found: Evidence) -> Answer:
    if (asked := found.brokers.asked.get(at)) is not None:  # later than the list
        return asked
    if report is not None:
        return Answer(AT_BROKER[BranchStatus(report["state"])])
    if (why := found.brokers.failures.get(at[0])) is not None:
        return Answer(BranchAnswer.SILENT, why)
    return NO_ANSWER


def _age(at: BranchAt, report: Report | None, found: Evidence, now_ms: int) -> Age:
    if at not in found.brokers.old:
        return Age.YOUNG
    prepared_s = _prepared_s(report, now_ms)
    return Age.STUCK if prepared_s is not None and prepared_s > STUCK_S else Age.OLD


def _prepared_s(report: Report | None, now_ms: int) -> float | None:
    return None if report is None else report_age_s(report, report.get("prepared_ms") or 0, now_ms)


def _database_sides(one: _Gathered, decision: OwnerDecision, age: Age, found: Evidence) -> Iterator[Side]:
    is_logged = one.owner is Owner.LOG and decision.said is OwnerAnswer.COMMIT
    resource = "" if decision.receipts is None else decision.receipts.resource_ids[0]
    mine = [it for it in one.xacts if is_logged and it[0].resource_id == resource]
    for database, xact in mine or one.xacts:
        place = f"database {xact.database}" if xact.database else f"XA RECOVER of {database.label}"
        answer = Answer(BranchAnswer.PREPARED)
        if is_logged and not resource:
            answer = Answer(BranchAnswer.SILENT, NO_RECEIPTS)
        elif is_logged and database.resource_id != resource:
            answer = Answer(
                BranchAnswer.SILENT, "it is prepared there, where only a session of that database ends it: give it"
            )
        verdict = verdict_on(Facts(one.owner, decision.said, answer.said, age))
        yield Side(place, answer, verdict, xact=xact, database=database)
    if is_logged and not one.xacts:
        yield _committing_side(one, decision.receipts, age, found)


def _committing_side(one: _Gathered, receipts: Receipts | None, age: Age, found: Evidence) -> Side:
    """Return the database branch, not prepared any more, of a transaction that a log has decided to commit."""
    if receipts is None:
        return Side("the database", Answer(BranchAnswer.SILENT, NO_RECEIPTS), Verdict.UNKNOWN)
    resource, _ = receipts.resource_ids
    reached = next((given for given in found.databases if given.resource_id == resource), None)
    place = f"database {unquote(resource.rpartition('/')[2])}"
    answer = found.outcomes.get(
        one.xid, Answer(BranchAnswer.SILENT, f"{place} is not among those given: --database URL")
    )
    verdict = verdict_on(Facts(one.owner, OwnerAnswer.COMMIT, answer.said, age))
    return Side(place, answer, verdict, database=reached)


def _longest_s(case: Case, now_ms: int) -> float:
    ages = [_prepared_s(side.report, now_ms) for side in case.sides]
    ages += [None if side.xact is None else side.xact.age_s for side in case.sides]
    return max((age for age in ages if age is not None), default=0.0)
