"""Asks every side, in an order that makes the answers consistent. Changes nothing.

Brokers list prepared branches twice, an age apart: branches in both lists are older than that by our clock alone. Logs
and databases are read after that, so that a missing decision was missing at the time of the list. Brokers are then
asked again about undecided branches, which may have ended since.
"""

import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from journal.errors import JournalError
from journal.records.xid import Xid
from meta_client.batches.decision import BatchDecision, Decisions
from meta_client.client import Client
from meta_client.coordinator.decision_log import read_decisions
from meta_client.coordinator.errors import CannotEnlist, ForeignLog, Unreachable
from meta_client.coordinator.receipts import Receipts
from meta_client.doctor.cases import to_ask
from meta_client.doctor.decisions import owner_of
from meta_client.doctor.evidence import (
    AT_BROKER,
    Answer,
    BranchAt,
    BrokerEvidence,
    DatabaseEvidence,
    Evidence,
    LogEvidence,
)
from meta_client.doctor.verdicts import BranchAnswer, Owner
from meta_client.errors import NotSupported
from meta_client.operations.branches import AT_ONCE, OnlineBranches
from meta_client.operations.report_parsing import key_of
from meta_client.protocol.answers import BranchStatus
from meta_client.protocol.errors import MetaError, RemoteError
from meta_client.transactions.databases import place_of_url, table_at
from meta_client.transactions.errors import NoDecisionTable, RestoredTable
from meta_client.transactions.generation import check_newest
from zk.brokers.cluster import known_broker_ids
from zk.errors import ZooKeeperError

AGE_S: Final = 10.0  # PREPARE is answered within half of that, or has failed
ROWS_MAX: Final = 10_000  # of one table, besides those of prepared branches
NAME_SHOWN: Final = 100  # characters
NO_MASTER: Final = (
    "ZooKeeper has its nodes, and no master is up: start it, or read its directory with `metaq txn list --dir`; of one "
    "that is gone for good, delete the nodes"
)
ShowStep = Callable[[str], AbstractContextManager[object]]  # shows progress


class Adapter(Protocol):
    """Questions to one kind of database server, beyond the decision table."""

    def names_of(self, url: str) -> tuple[str, str]:
        """Return the name of the database at *url*, and its address without secrets."""

    def collect_evidence(self, said: DatabaseEvidence, gtrids: Sequence[str]) -> DatabaseEvidence:
        """Add what the server says about open and prepared transactions; *gtrids* are prepared at brokers."""


def gather(
    client: Client, databases: Iterable[str], log_paths: Iterable[Path], age_s: float, step: ShowStep
) -> Evidence:
    """Ask every side: the brokers that *client* reaches, *databases*, coordinators' logs. Raises ZooKeeperError; a side
    that can't be asked is named in the result."""
    brokers = _ask_brokers(client, age_s, step)
    with step("reading decision logs"):
        logs, problems = read_logs(log_paths)
    batches: dict[str, BatchDecision] = {}
    for query in sorted({owner_of(at)[1] for at in brokers.reports if owner_of(at)[0] is Owner.BATCH}):
        try:
            batches[query] = Decisions(client.session, query).read()
        except ZooKeeperError as error:
            problems[f"decision of Spark query {query}"] = str(error)
    asked = []
    known = [*brokers.reports, *(brokers.findings.keys() - brokers.reports.keys())]
    for url in dict.fromkeys(databases):
        label, address = names_of(url)
        with step(f"asking {label}"):
            asked.append(_ask_database(client, DatabaseEvidence(label, url, address), known, age_s))
    found = Evidence(brokers, tuple(asked), tuple(logs), batches, problems)
    branches, places = to_ask(found)
    with step(f"asking brokers about {len(branches)} branches"):
        brokers = _ask_again(client, brokers, sorted(branches))
    outcomes = {}
    for xid, where in places.items():
        with step(f"asking a database about {xid}"):
            if (answer := _ask_outcome(asked, xid, where)) is not None:
                outcomes[xid] = answer
    return replace(found, brokers=brokers, outcomes=outcomes)


def _ask_brokers(client: Client, age_s: float, step: ShowStep) -> BrokerEvidence:
    lists = OnlineBranches(client)
    with step("asking brokers"):
        first = {(broker_id, key) for broker_id, keys in lists.keys(None).items() for key in keys}
    if first:
        with step(f"waiting {age_s:g} s: what is at work ends by itself"):
            time.sleep(age_s)
    with step("asking brokers"):
        reports = {(report["broker"], key_of(report)): report for report in lists.listed(None)}
        failures = dict(lists.failures)
        findings = {
            (report["broker"], key_of(report)): report["finding"] | {"state": report["state"]}
            for report in lists.findings()
        }
        answered = lists.keys(None)
    gone = {broker_id: NO_MASTER for broker_id in known_broker_ids(client.session) if broker_id not in answered}
    failures = gone | failures | lists.failures
    return BrokerEvidence(reports, frozenset(first & reports.keys()), failures, findings)


def read_logs(paths: Iterable[Path]) -> tuple[list[LogEvidence], dict[str, str]]:
    """Read the decision logs at *paths*, or in the directories right below; also return the failures, with reasons."""
    logs: dict[str, LogEvidence] = {}
    problems: dict[str, str] = {}
    for path in paths:
        try:
            logs[str(path)] = _read_log(path)
        except ForeignLog as error:
            below = [child for child in sorted(path.iterdir()) if child.is_dir()]
            for child in below:
                try:
                    logs[str(child)] = _read_log(child)
                except ForeignLog:
                    continue
                except (JournalError, MetaError) as damage:
                    problems[f"decision log {child}"] = str(damage)
            if not any(Path(name).parent == path for name in (*logs, *problems)):
                problems[f"decision log {path}"] = str(error)
        except (JournalError, MetaError) as error:
            problems[f"decision log {path}"] = str(error)
    return list(logs.values()), problems


def _read_log(path: Path) -> LogEvidence:
    said = read_decisions(path)
    return LogEvidence(str(path), said.name, said.unfinished, said.is_held, said.is_copy)


def _ask_database(
    client: Client, said: DatabaseEvidence, branches: Sequence[BranchAt], age_s: float
) -> DatabaseEvidence:
    try:
        kind, where = place_of_url(said.url)
        if (adapter := _adapter(kind)) is not None:
            # Read open writers before the rows: one that commits in between is seen as a writer or by its row.
            gtrids = {at[1].xid.gtrid.decode() for at in branches if owner_of(at)[0] is Owner.TABLE}
            said = adapter.collect_evidence(replace(said, url=where), sorted(gtrids))
            if said.failure is not None:
                return said
        table = table_at(said.url)
    except NoDecisionTable as error:  # it may hold prepared transactions alone
        return said if said.has_prepared else replace(said, failure=str(error))
    except (Unreachable, CannotEnlist) as error:
        return replace(said, failure=str(error))
    try:
        try:
            check_newest(client.session, table)
        except RestoredTable as error:
            said = replace(said, restored=str(error))
        name = table.identity.name
        wanted = {at[1].xid.gtrid.decode() for at in branches if owner_of(at) == (Owner.TABLE, name.table_id)}
        kept = table.kept(age_s, ROWS_MAX + 1)
        if len(kept) > ROWS_MAX:
            gap = f"it has more than {ROWS_MAX} rows to end, of which not all were looked at"
            said = replace(said, gaps={**said.gaps, "its decision table": gap})
        rows = [*kept[:ROWS_MAX], *table.recorded(sorted(wanted))]
        strange = sorted({row.gtrid for row in rows if not name.owns(row.gtrid)})
        if strange:
            gap = f"{len(strange)} are not this table's transactions, the first is {strange[0][:NAME_SHOWN]!r}"
            said = replace(said, gaps={**said.gaps, "names in its decision table": gap})
        return replace(said, table=name, rows={row.gtrid: row for row in rows if name.owns(row.gtrid)})
    except Unreachable as error:
        return replace(said, failure=str(error))
    finally:
        table.close()


def _adapter(kind: str) -> Adapter | None:
    """Return the module for a kind of database; None for SQLite, whose transactions show in its file's lock alone."""
    match kind:
        case "postgres":
            from meta_client.doctor import postgres

            return postgres
        case "mysql":
            from meta_client.doctor import mysql

            return mysql
    return None


def names_of(url: str) -> tuple[str, str]:
    """Name of the database at *url*, and its address without a password."""
    try:
        kind, where = place_of_url(url)
    except CannotEnlist:
        return f"a database of {url.partition('://')[0]!r}" if "://" in url else "a database", ""
    if (adapter := _adapter(kind)) is not None:
        return adapter.names_of(where)
    return f"database {url.rpartition('/')[2]}", url


def command_line(zookeeper: str, databases: Iterable[str], logs: Iterable[Path]) -> str:
    """Return `metaq txn doctor` for the same sides, without secrets. *zookeeper*: blank for the default."""
    words = ["--zk", zookeeper] if zookeeper else []
    words += [word for url in databases for word in ("--database", names_of(url)[1])]
    words += [word for log in logs for word in ("--decisions", str(log))]
    return shlex.join(["metaq", "txn", "doctor", *words])


def _ask_again(client: Client, brokers: BrokerEvidence, branches: Sequence[BranchAt]) -> BrokerEvidence:
    asked: dict[BranchAt, Answer] = {}
    failures, lists = dict(brokers.failures), OnlineBranches(client)
    for start in range(0, len(branches), AT_ONCE):
        some = branches[start : start + AT_ONCE]
        asked |= {at: Answer(BranchAnswer.SILENT, failures[at[0]]) for at in some if at[0] in failures}
        for (key, broker_id), status in lists.statuses([(key, at) for at, key in some if at not in failures]):
            if isinstance(status, BranchStatus):
                asked[broker_id, key] = Answer(AT_BROKER[status])
                continue
            why = str(status)
            if isinstance(status, NotSupported):
                why = "it has no STATUS: no metaq broker, or an old one"
            elif not isinstance(status, RemoteError):  # not the broker's answer: do not wait for it again
                failures[broker_id] = why
            asked[broker_id, key] = Answer(BranchAnswer.SILENT, why)
    return replace(brokers, asked=asked, failures=failures)


def _ask_outcome(databases: Sequence[DatabaseEvidence], xid: Xid, receipts: Receipts) -> Answer | None:
    for database in databases:
        if database.failure is None and database.resource_id and database.resource_id == receipts.resource_ids[0]:
            from meta_client.doctor.postgres import outcome

            return outcome(database.url, xid, receipts.database)
    return None
