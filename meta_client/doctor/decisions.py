"""Decision of a transaction's owner: of its table, its coordinator's log or its Spark query. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from journal.errors import InvalidRecord
from journal.records.xid import InvalidXid, XaKey, Xid
from meta_client.batches.decision import OVER, BatchOutcome
from meta_client.batches.names import QUALIFIER, BatchName, BranchName
from meta_client.coordinator.names import BROKER, branch, log_of
from meta_client.coordinator.receipts import Receipts
from meta_client.doctor.evidence import BranchAt, DatabaseEvidence, Evidence, LogEvidence, OpenSession, one_of
from meta_client.doctor.verdicts import Owner, OwnerAnswer
from meta_client.transactions.names import TableName, table_of
from meta_client.transactions.table import Recorded, RowDecision

AS_DECIDED: Final[Mapping[RowDecision | None, OwnerAnswer]] = {
    RowDecision.COMMIT: OwnerAnswer.COMMIT,
    RowDecision.ROLLBACK: OwnerAnswer.ROLLBACK,
}


@dataclass(frozen=True, slots=True)
class OwnerDecision:
    """Decision of a transaction's owner; *by*: its table or log, or the reason why there is none."""

    said: OwnerAnswer
    by: str
    table: DatabaseEvidence | None = None
    row: Recorded | None = None
    session: OpenSession | None = None  # whose transaction may decide
    receipts: Receipts | None = None


def owner_of(at: BranchAt) -> tuple[Owner, str]:
    """Return the owner of a broker's branch, as kind and name, from the branch's name alone."""
    broker_id, key = at
    if (table_id := table_of(key.xid)) is not None:
        name = TableName(table_id)
        if key.qualifier == name.qualifier and name.gtrid_of(key.xid, broker_id) is not None:
            return Owner.TABLE, table_id
    if key.xid.bqual == BROKER and (log := log_of(key.xid)) is not None:
        return Owner.LOG, log.label
    if key.qualifier == QUALIFIER and (batch := BatchName.of(key.xid)) is not None:
        return Owner.BATCH, batch.query
    return Owner.FOREIGN, key.qualifier


def decided_places(unfinished: Mapping[Xid, str]) -> Iterator[tuple[Xid, Receipts, BranchAt]]:
    """Yield the places of the branches of each transaction decided in a log, if its receipts name them."""
    for xid, text in unfinished.items():
        try:
            where = Receipts.parse(text)
            broker_id, _, qualifier = where.broker.partition("/")
            yield xid, where, (int(broker_id), XaKey(branch(xid, BROKER), unquote(qualifier)))
        except (InvalidRecord, InvalidXid, ValueError):
            continue


def decision_of(owner: Owner, name: str, xid: Xid, found: Evidence, age_s: float) -> OwnerDecision:
    """Return the decision of *owner*, called *name*, about transaction *xid*."""
    match owner:
        case Owner.TABLE:
            return _by_table(name, xid, found, age_s)
        case Owner.LOG:
            return _by_log(name, xid, found.logs)
    return OwnerDecision(OwnerAnswer.SILENT, "no table or log of metaq's decides about it")


def batch_decision(at: BranchAt, found: Evidence) -> OwnerDecision | None:
    """Return the decision about a Spark batch's branch: of several attempts of a task one is committed. None: another
    owner's."""
    broker_id, key = at
    if owner_of(at)[0] is not Owner.BATCH or (batch := BatchName.of(key.xid)) is None:
        return None
    if (decision := found.batches.get(batch.query)) is None:
        return OwnerDecision(OwnerAnswer.SILENT, f"the decision of Spark query {batch.query} can't be read")
    outcome = decision.outcome_of(batch.batch, BranchName.of(key.xid, broker_id))
    if outcome is BatchOutcome.OPEN:
        return OwnerDecision(OwnerAnswer.OPEN, f"Spark query {batch.query} has not decided about batch {batch.batch}")
    if decision == OVER:
        return OwnerDecision(OwnerAnswer.ROLLBACK, f"the end of Spark's write {batch.query}")
    by = f"the decision of Spark query {batch.query} about batch {decision.batch}"
    return OwnerDecision(OwnerAnswer.COMMIT if outcome is BatchOutcome.COMMIT else OwnerAnswer.ROLLBACK, by)


def _by_table(name: str, xid: Xid, found: Evidence, age_s: float) -> OwnerDecision:
    gtrid = xid.gtrid.decode()
    having = [given for given in found.databases if given.table is not None and given.table.table_id == name]
    if not having:
        silent = "".join(f"; {given.label}: {given.failure}" for given in found.databases if given.failure)
        return OwnerDecision(OwnerAnswer.SILENT, f"no database that answered has decision table {name}{silent}")
    if len(having) > 1:
        labels = ", ".join(given.label for given in having)
        return OwnerDecision(
            OwnerAnswer.SILENT,
            f"several databases answer to decision table {name}: {labels}; give the one in use",
        )
    (table,) = having
    by = f"the decision table of {table.label}"
    if table.failure is not None:
        return OwnerDecision(OwnerAnswer.SILENT, f"{by} gave no whole answer: {table.failure}", table)
    if (row := table.rows.get(gtrid)) is not None:
        return OwnerDecision(AS_DECIDED.get(row.outcome, OwnerAnswer.SILENT), by, table, row)
    if (writing := table.in_flight.get(gtrid) or _may_write(table.sessions, age_s)) is not None:
        told = f"{writing.name} {writing.does} {by}, and has not ended its transaction"
        return OwnerDecision(OwnerAnswer.OPEN, told, table, session=writing)
    if table.restored is not None:
        return OwnerDecision(
            OwnerAnswer.SILENT, f"{by} has no row of it, which proves nothing: {table.restored}", table
        )
    return OwnerDecision(OwnerAnswer.NONE, by, table)


def _may_write(sessions: tuple[OpenSession, ...], age_s: float) -> OpenSession | None:
    """Return the session whose transaction may hold the row, or is about to: it began before the brokers prepared."""
    old = [one for one in sessions if one.age_s is None or one.age_s >= age_s]
    return one_of(old) if old else None


def _by_log(name: str, xid: Xid, logs: tuple[LogEvidence, ...]) -> OwnerDecision:
    named = [log for log in logs if log.name.label == name]
    if not named:
        return OwnerDecision(
            OwnerAnswer.SILENT, f"the decision log of coordinator {name} was not given, or could not be read"
        )
    for log in named:
        if xid in log.unfinished:
            where = next((where for known, where, _ in decided_places(log.unfinished) if known == xid), None)
            return OwnerDecision(OwnerAnswer.COMMIT, f"decision log {log.path}", receipts=where)
    for log in named:
        if log.is_held:
            return OwnerDecision(OwnerAnswer.OPEN, f"the coordinator of decision log {log.path} runs")
    for log in named:
        if log.is_copy:
            return OwnerDecision(
                OwnerAnswer.SILENT, f"decision log {log.path} was not made there: a copy may lack decisions"
            )
    return OwnerDecision(OwnerAnswer.NONE, f"decision log {named[0].path}")
