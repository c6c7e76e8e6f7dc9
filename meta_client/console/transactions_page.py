"""Pages about transactions: what is in doubt, the ledger, one branch, and the doctor's verdicts."""

import asyncio
import time
from typing import Any, Final

from journal.records.xid import XaKey
from meta_client.console.changes import ACTIONS, actions_on
from meta_client.console.diagnosis import read_diagnosis
from meta_client.console.in_doubt import (
    LISTED_MAX,
    BranchFacts,
    InDoubt,
    oldest_first,
    parse_branch,
    read_branch,
    read_in_doubt,
)
from meta_client.console.page import Asked, InvalidQuery, Rows, Values
from meta_client.console.reads import Unknown
from meta_client.console.rendering import path
from meta_client.doctor.decisions import owner_of
from meta_client.operations.branch_text import age_s, history, ledger_row, remedy

MARGIN: Final = 11  # of a line of `remedy`


async def read_transactions(asked: Asked) -> Values:
    doubt = await read_in_doubt(asked.settings.client, asked.reads)
    by = "coordinator" if asked.query.get("by") == "coordinator" else None
    values: Values = {"doubt": doubt, "age_s": asked.settings.age_s, "by": by, "listed_max": LISTED_MAX}
    if isinstance(doubt, InDoubt):
        prepared = list(doubt.prepared)
        if by is not None:
            prepared.sort(key=lambda one: (one.owner.value, one.owner_name, oldest_first(one)))
        values["rows"] = Rows.of(prepared, asked.start)
        values["page_at"] = lambda start: path("transactions", by=by, start=start or None)
        values["coordinators"] = _coordinators(doubt)
        values["ledger"] = Rows.of([(one, ledger_row(one.report, one.key)) for one in doubt.ledger], 0)
    return values


async def read_branch_page(asked: Asked) -> Values:
    broker_id, key = branch_of(asked)
    found = await read_branch(asked.settings.client, asked.reads, broker_id, key)
    values: Values = {"broker_id": broker_id, "key": key, "found": found, "age_s": asked.settings.age_s}
    values |= {"history": [], "remedy": []}
    if isinstance(found, BranchFacts):
        values |= _history(found) | {"actions": actions_on(found), "names": ACTIONS}
        values["entry"] = _ledger_entry(found)
    return values


async def read_verdict(asked: Asked) -> Values:
    broker_id, key = branch_of(asked)
    found, diagnosis = await asyncio.gather(
        read_branch(asked.settings.client, asked.reads, broker_id, key), read_diagnosis(asked.settings, asked.reads)
    )
    case = None if isinstance(diagnosis, Unknown) else diagnosis.of(broker_id, key)
    return {"broker_id": broker_id, "key": key, "found": found, "diagnosis": diagnosis, "case": case}


async def read_diagnosis_page(asked: Asked) -> Values:
    return {"diagnosis": await read_diagnosis(asked.settings, asked.reads), "doctor": asked.settings.doctor}


def branch_of(asked: Asked) -> tuple[int, XaKey]:
    """Return the branch that the URL names. Raises InvalidQuery."""
    broker, text = asked.query.get("broker", ""), asked.query.get("key", "")
    key = parse_branch(text)
    if key is None or not (broker.isascii() and broker.isdigit() and len(broker) < 10):
        raise InvalidQuery("a branch is named by its broker and its key, as `metaq txn list` shows them")
    return int(broker), key


def _history(found: BranchFacts) -> Values:
    """Return history and commands."""
    if found.report is None:
        return {}
    report: dict[str, Any] = dict(found.report)
    if found.finding is not None and not report.get("decision"):
        report["finding"] = found.finding["finding"]
    now_ms = time.time_ns() // 1_000_000
    return {
        "history": [(time_ms, age_s(report, time_ms, now_ms), what) for time_ms, what in history(report)],
        "remedy": [line[MARGIN:] for line in remedy(report, found.key, f"--broker {found.broker_id}", None)],
    }


def _ledger_entry(found: BranchFacts) -> dict[str, Any] | None:
    for report in (found.report, found.finding):
        if report is not None and (report.get("decision") or report.get("finding")):
            return ledger_row({**report, "broker": found.broker_id}, found.key)
    return None


def _coordinators(doubt: InDoubt) -> list[tuple[str, str, int, float | None]]:
    """Return kind, name, number of branches and age of the oldest of everything that decides about some, oldest first;
    of names alone the age is unknown, None."""
    found: dict[tuple[str, str], list[float | None]] = {}
    for one in doubt.prepared:
        found.setdefault((one.owner.value, one.owner_name), []).append(one.age_s)
    for place in doubt.left_out:
        owner, name = owner_of(place)
        found.setdefault((owner.value, name), []).append(None)
    rows = [
        (kind, name, len(ages), max((age for age in ages if age is not None), default=None))
        for (kind, name), ages in found.items()
    ]
    return sorted(rows, key=lambda row: (row[3] is None, -(row[3] or 0.0)))
