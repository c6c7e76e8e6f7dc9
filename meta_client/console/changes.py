"""Changes to a branch that `--allow-changes` offers: each is confirmed on a page that says what would happen, and is
carried out by the function under the command of the same name.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from journal.records.heuristics import WHY_BYTES_MAX, HeuristicDecision
from journal.records.xid import XaKey
from meta_client.console.diagnosis import apply_certain, put_on_record
from meta_client.console.in_doubt import BranchFacts, branch_facts, branches_at
from meta_client.console.reads import Unknown
from meta_client.console.settings import ConsoleSettings
from meta_client.operations.branch_text import ledger_row
from meta_client.operations.branches import NoBranch
from meta_client.protocol.answers import BranchStatus


@dataclass(frozen=True, slots=True)
class BranchChange:
    """One change. *effect*: dry text of what it does; *needs_why*: the reason goes on record."""

    label: str
    effect: str
    needs_why: bool = False


ACTIONS: Final[Mapping[str, BranchChange]] = {
    "apply": BranchChange(
        "Do what is certain",
        "Every side is asked again. If the verdicts are still these, each certain one is carried out: databases before "
        "brokers, as `metaq txn doctor --apply` does for this transaction alone. Nothing goes on the ledger: it ends "
        "as was decided.",
    ),
    "note": BranchChange(
        "Put on record",
        "Every side is asked again. If the verdict is still this one, it goes on its broker's ledger, where it stays "
        "until it is forgotten. Neither rows nor messages change.",
    ),
    "commit": BranchChange(
        "Commit by hand",
        "Its messages are published. Its coordinator is told XA_HEURCOM when it asks. Nothing undoes it.",
        needs_why=True,
    ),
    "rollback": BranchChange(
        "Roll back by hand",
        "Its messages are never seen. Its coordinator is told XA_HEURRB when it asks. Nothing undoes it.",
        needs_why=True,
    ),
    "complete": BranchChange(
        "Take away",
        "Neither committed nor rolled back, for what was done in another way. Its messages are never seen; its "
        "coordinator is told XA_HEURHAZ: nobody vouches for the outcome. Nothing undoes it.",
        needs_why=True,
    ),
    "forget": BranchChange(
        "Forget",
        "What is on record of it is dropped: the decision by hand, and what the ledger holds. A coordinator that asks "
        "later is told that there is no such branch.",
    ),
}
BY_HAND: Final[Mapping[str, HeuristicDecision]] = {one.name.lower(): one for one in HeuristicDecision}


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a change: lines in words, and the entry on the ledger, if it made one."""

    lines: tuple[str, ...]
    entry: dict[str, Any] | None = None
    is_complete: bool = True


def actions_on(found: BranchFacts) -> list[str]:
    """Return the names of the changes by hand that the branch's state allows."""
    is_on_record = found.finding is not None or bool((found.report or {}).get("decision"))
    if found.status == BranchStatus.PREPARED:
        return [*BY_HAND, *(["forget"] if is_on_record else [])]
    return ["forget"] if is_on_record else []


def fingerprint(found: BranchFacts) -> str:
    """Return the branch's state in one line, by which what was confirmed is compared with what is there later."""
    report = found.report or {}
    said = [found.status, report.get("first_lsn"), report.get("prepared_ms"), report.get("messages")]
    recorded = (report.get("decision"), (found.finding or {}).get("finding"))
    said += [(one or {}).get("time_ms") for one in recorded]
    return " ".join("-" if one is None else str(one) for one in said)


def command_of(settings: ConsoleSettings, name: str, broker_id: int, key: XaKey, why: str = "...") -> str:
    """Return the command that does the same."""
    if name in ("apply", "note"):
        return f"{settings.doctor} --apply"
    more = ("--why", why) if ACTIONS[name].needs_why else ()
    return settings.command("txn", name, str(key), "--broker", str(broker_id), *more)


def planned_entry(settings: ConsoleSettings, name: str, found: BranchFacts) -> dict[str, Any] | None:
    """Return the ledger's entry that a change by hand would make, before its reason is given."""
    if name not in BY_HAND or found.report is None:
        return None
    decision = {"who": settings.who, "why": "the reason you give", "time_ms": time.time_ns() // 1_000_000}
    state = {"commit": "heuristically_committed", "rollback": "heuristically_rolled_back"}
    report = found.report | {"decision": decision, "broker": found.broker_id}
    return ledger_row(report | {"state": state.get(name, "heuristically_completed")}, found.key)


def carry_out(settings: ConsoleSettings, name: str, broker_id: int, key: XaKey, seen: str, why: str) -> Done | Unknown:
    """Carry out a confirmed change; durable on return. Unknown: what was *seen* when it was confirmed is not there any
    more, and nothing was changed. Blocks. Raises MetaError, ZooKeeperError."""
    if name == "apply":
        applied = apply_certain(settings, broker_id, key, seen)
        if isinstance(applied, Unknown):
            return applied
        lines = tuple(f"{one.side.place}: {one.what}" for one in applied)
        return Done(lines, is_complete=all(one.is_over for one in applied))
    if name == "note":
        result = put_on_record(settings, broker_id, key, seen)
        if isinstance(result, Unknown):
            return result
        return Done((result.what,), _entry(branch_facts(settings.client, broker_id, key)))
    found = branch_facts(settings.client, broker_id, key)
    if fingerprint(found) != seen or name not in actions_on(found):
        return Unknown("the branch is not as it was when this was confirmed: look again")
    branches = branches_at(settings.client, broker_id)
    if name == "forget":
        branches.forget(key, broker_id)
        return Done((f"forgotten: {key}",))
    if not why.strip():
        raise NoBranch("a reason is needed: it goes on record")
    if len(why.encode()) > WHY_BYTES_MAX:
        raise NoBranch(f"the reason is longer than {WHY_BYTES_MAX} bytes: shorten it")
    ended = branches.end_heuristically(key, broker_id, BY_HAND[name], settings.who, why)
    entry = ledger_row(ended | {"broker": broker_id}, key)
    return Done((f"{str(ended['state']).replace('_', ' ')}: {key.xid}",), entry)


def _entry(found: BranchFacts) -> dict[str, Any] | None:
    return None if found.finding is None else ledger_row(found.finding, found.key)
