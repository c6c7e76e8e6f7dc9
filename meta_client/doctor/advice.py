"""Reasons, commands and risks in words, for each unfinished branch. Pure.

Every identifier in a command is quoted for a shell, because qualifiers are untrusted.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

from meta_client.batches.names import BatchName
from meta_client.doctor.cases import Case, Side
from meta_client.doctor.decisions import OwnerDecision
from meta_client.doctor.evidence import DatabaseEvidence, PreparedXact
from meta_client.doctor.verdicts import BranchAnswer, Owner, OwnerAnswer, Verdict
from meta_client.transactions.table import TABLE

MEND = "compare rows and messages, and mend them, first: this only ends the report"
PUBLISHES = "a commit publishes messages whose rows may not be there, a rollback loses messages whose rows may be"
STORES = "a commit stores rows whose messages may be lost, a rollback loses rows whose messages may be published"
_AS_BY_HAND = {BranchAnswer.COMMITTED_BY_HAND: "commit", BranchAnswer.ROLLED_BACK_BY_HAND: "rollback"}


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice to a person about one branch. *risk*: what the commands might break; empty where they can't."""

    reason: str
    commands: tuple[str, ...] = ()
    risk: str = ""


def advice_on(case: Case, side: Side, again: str) -> Advice:
    """Return the advice for one branch. *again*: the doctor's command line, without --apply."""
    by = case.decision.by
    match side.verdict:
        case Verdict.DONE:
            return Advice(f"{side.place}: {side.answer.said.value}")
        case Verdict.WAIT:
            return Advice(_who_is_at_work(case))
        case Verdict.COMMIT | Verdict.ROLL_BACK:
            return Advice(f"{by} says {case.decision.said.value}", (f"{again} --apply",))
        case Verdict.DECIDE:
            why = f"{by} has no row of it: the row of a rollback decides, and should its transaction live, fails that"
            return Advice(why, (f"{again} --apply",))
        case Verdict.AGREED:
            return Advice(f"an operator ended it as {by} says: it can be forgotten", (f"{again} --apply",))
        case Verdict.MIXED | Verdict.HAZARD:
            return _mend(case, side)
        case Verdict.BY_HAND:
            return _by_hand(case, side)
        case Verdict.ASK:
            return _ask_owner(case, side)
    return _unknown(case, side, again)


def _who_is_at_work(case: Case) -> str:
    if case.decision.said is OwnerAnswer.OPEN:
        return case.decision.by
    return "it is younger than the age: its own process is at work"


def _mend(case: Case, side: Side) -> Advice:
    said, wanted = side.answer.said, case.decision.said.value
    commands = [*_forget_decision(case), *_forget(side)]
    if side.finding is not None:
        reason = f"on record by {side.finding['who']}: {side.finding['why']} ({side.finding['evidence']})"
        return Advice(reason, tuple(commands), MEND)
    here = f"{side.place} {said.value}" if said is BranchAnswer.UNKNOWN else f"{side.place}: {said.value}"
    reason = f"{case.decision.by} says {wanted}, and {here}"
    if side.at is None and side.xact is None and side.answer.why:
        reason = f"{side.place} holds: {side.answer.why}"
    elif said is BranchAnswer.PREPARED:
        reason = f"{case.decision.by} says {wanted}, and its database did not commit, so that this must not alone"
    if said is BranchAnswer.PREPARED:
        verbs = ("rollback",) if side.verdict is Verdict.MIXED else ("commit", "rollback")
        commands = [*_end_commands(side, *verbs), *commands]
    return Advice(reason, tuple(commands), MEND)


def _by_hand(case: Case, side: Side) -> Advice:
    decision = (side.report or {}).get("decision") or {}
    who, why = decision.get("who", "an operator"), decision.get("why", "")
    reason = f"{side.answer.said.value} by {who} ({why}); {_nobody(case)}"
    risk = "a coordinator that asks later is told that there is no such branch"
    if left := [other.place for other in case.sides if other.answer.said is BranchAnswer.PREPARED]:
        risk = f"nobody remembers how this ended: end {', '.join(left)} alike first"
    return Advice(reason, tuple(_forget(side)), risk)


def _ask_owner(case: Case, side: Side) -> Advice:
    others = _elsewhere(case, side)
    if case.owner is Owner.FOREIGN:
        reason = f"a transaction manager other than metaq's began it, which alone knows{others}"
        by_hand = {_AS_BY_HAND[one.answer.said] for one in case.sides if one.answer.said in _AS_BY_HAND}
        verbs = by_hand if len(by_hand) == 1 else ("commit", "rollback")
        return Advice(reason, tuple(_end_commands(side, *verbs)), PUBLISHES if side.xact is None else STORES)
    if case.owner is Owner.BATCH:
        batch = BatchName.of(case.xid)
        assert batch is not None
        ends = "it does when it is started again, and repeats the batch. If it never is:"
        if not batch.is_repeatable:
            ends = (
                "its program alone does, which nobody can repeat. If that has ended, with all of the write's branches:"
            )
        risk = "a program that is at work fails at its end, with a part of its rows in the topics"
        reason = f"{case.decision.by}: {ends}"
        return Advice(reason, tuple(_end_commands(side, "rollback")), risk)
    if case.decision.said is OwnerAnswer.OPEN:
        reason = f"{case.decision.by}, yet this has been prepared for long: look why"
        if case.owner is Owner.LOG:
            return Advice(f"{reason}; recover() there ends it", (), "")
        return Advice(f"{reason}; end that session, then look again", tuple(_end_session(case.decision)))
    reason = f"{case.decision.by} has no decision, and no coordinator holds it: presumed abort{others}"
    risk = "if that log is an old backup, or not the only one, it may have been decided to commit: both would differ"
    return Advice(
        f"{reason}. Its service rolls it back when it starts again", tuple(_end_commands(side, "rollback")), risk
    )


def _unknown(case: Case, side: Side, again: str) -> Advice:
    if side.answer.said is BranchAnswer.SILENT:
        return Advice(f"{side.place}: {side.answer.why}", (again,))
    if case.decision.said is OwnerAnswer.COMMIT:
        return Advice(
            f"{case.decision.by} says commit, the database first, which can't be asked", (f"{again} --apply",)
        )
    if case.decision.table is not None and case.decision.table.restored is not None:
        return Advice(case.decision.by, tuple(_end_commands(side, "commit", "rollback")), PUBLISHES)
    if case.owner is Owner.BATCH:
        return Advice(case.decision.by, (again, *_end_commands(side, "commit", "rollback")), PUBLISHES)
    option = "--database URL" if case.owner is Owner.TABLE else "--decisions DIR"
    reason = _nobody(case)
    ends = tuple(_end_commands(side, "commit", "rollback"))
    return Advice(reason, (f"{again} {option}", *ends), f"if what decides is gone for good: {PUBLISHES}")


def _nobody(case: Case) -> str:
    if case.decision.said is OwnerAnswer.NONE:
        return f"{case.decision.by} has no decision about it"
    return case.decision.by


def _elsewhere(case: Case, side: Side) -> str:
    """Return the states of the transaction's other branches, as evidence."""
    others = [f"{other.place}: {other.answer.said.value}" for other in case.sides if other is not side]
    return f"; {', '.join(others)}" if others else "; no other branch of it was found"


def _end_commands(side: Side, *verbs: str) -> Iterator[str]:
    for verb in verbs:
        if side.at is not None:
            broker_id, key = side.at
            yield f"metaq txn {verb} {shlex.quote(str(key))} --broker {broker_id} --why '...'"
        elif side.xact is not None and side.database is not None:
            yield prepared_command(side.database, side.xact, verb)


def _end_session(decision: OwnerDecision) -> Iterator[str]:
    if decision.table is not None and decision.session is not None and decision.session.ends:
        yield sql_command(decision.table, decision.session.ends)


def prepared_command(given: DatabaseEvidence, xact: PreparedXact, verb: str) -> str:
    """Return the command that ends a prepared transaction; it must run in that transaction's database."""
    if given.client:
        xid = xact.xid
        statement = f"XA {verb.upper()} X'{xid.gtrid.hex()}',X'{xid.bqual.hex()}',{xid.format_id}"
        return sql_command(given, statement)
    address = given.address
    if given.database != xact.database:  # libpq uses the last one
        name = xact.database.replace("\\", r"\\").replace("'", r"\'")
        address = f"{address} dbname='{name}'"
    return sql_command(replace(given, address=address), f"{verb.upper()} PREPARED '{xact.xid}'")


def sql_command(given: DatabaseEvidence, statement: str) -> str:
    """Return the command that executes *statement*, which needs no escaping, in that database."""
    if given.client:
        return f'{given.client} -e "{statement}"'
    return f'psql {shlex.quote(given.address)} -c "{statement}"'


def _forget(side: Side) -> Iterator[str]:
    is_by_hand = side.answer.said in (
        BranchAnswer.COMMITTED_BY_HAND,
        BranchAnswer.ROLLED_BACK_BY_HAND,
        BranchAnswer.COMPLETED_BY_HAND,
    )
    if side.at is not None and (is_by_hand or side.finding is not None):
        yield f"metaq txn forget {shlex.quote(str(side.at[1]))} --broker {side.at[0]}"


def _forget_decision(case: Case) -> Iterator[str]:
    if case.decision.table is not None:
        statement = f"DELETE FROM {TABLE} WHERE gtrid = '{case.name}'"  # noqa: S608 - our own name, for a person
        yield f"in {case.decision.table.label}: {statement}"
    elif case.owner is Owner.LOG:
        yield f"in its service: coordinator.forget(Xid.of({case.name!r}, ''))"
