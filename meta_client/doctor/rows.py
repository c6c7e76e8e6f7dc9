"""Output of `metaq txn doctor`: one row per branch for scripts, and blocks for people. Pure."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from meta_client.doctor.advice import Advice
from meta_client.doctor.applier import Applied
from meta_client.doctor.cases import Case, Side
from meta_client.doctor.verdicts import CERTAIN, FOR_A_PERSON, Verdict
from meta_client.operations.branch_text import age_s, since_ms, verbs_in
from meta_client.operations.text import age_text, printable, time_text

IN_TABLE: Final = ("transaction", "place", "state", "age_s", "messages", "verdict")
_BRANCH: Final = ("since", "decided_by", "owner", "xid", "key", "broker", "database", "origin", "bytes", "topics")
_SAYS: Final = ("decision", "by", "others", "role", "locks", "waiting", "vacuum_age", "purge")
_TO_DO: Final = ("certain", "needs_person", "reason", "commands", "verbs", "risk", "done")
COLUMNS: Final = (*IN_TABLE, *_BRANCH, *_SAYS, *_TO_DO)
JsonRow = dict[str, Any]


def row_of(case: Case, side: Side, advice: Advice, now_ms: int) -> JsonRow:
    """Return everything known of one branch."""
    report, xact = side.report or {}, side.xact
    topics: Counter[str] = Counter()
    for part in report.get("partitions", ()):
        topics[part["topic"]] += part["messages"]
    known: JsonRow = {
        "transaction": case.name,
        "place": side.place,
        "state": side.answer.said.value,
        "age_s": None,
        "messages": report.get("messages"),
        "verdict": side.verdict.value,
        "decided_by": case.owner.value,
        "owner": case.owner_name,
        "xid": str(side.at[1].xid if side.at else xact.xid if xact else case.xid),
        "key": str(side.at[1]) if side.at else None,
        "broker": side.at[0] if side.at else None,
        "origin": report.get("origin"),
        "bytes": report.get("bytes"),
        "topics": dict(topics),
        "decision": case.decision.said.value,
        "by": case.decision.by,
        "others": {other.place: other.answer.said.value for other in case.sides if other is not side},
        "certain": side.verdict in CERTAIN,
        "needs_person": side.verdict in FOR_A_PERSON,
        "reason": advice.reason,
        "commands": list(advice.commands),
        "verbs": list(verbs_in(advice.commands)),
        "risk": advice.risk or None,
    }
    if xact is not None:
        held = {"locks": list(xact.locks), "waiting": xact.waiting, "vacuum_age": xact.vacuum_age}
        known |= held | {"database": xact.database or None, "role": xact.owner or None}
    if (database := side.database or case.decision.table) is not None:
        known["purge"] = database.purge or None
    if xact is not None and xact.age_s is not None:
        known |= {"age_s": max(0, round(xact.age_s)), "since": time_text(now_ms - round(xact.age_s * 1000))}
    elif (waited_s := age_s(report, since_ms(report), now_ms)) is not None:
        known |= {"age_s": round(waited_s), "since": time_text(since_ms(report))}
    return dict.fromkeys(COLUMNS) | known


def tell(row: JsonRow, one: Applied) -> None:
    """Add to a branch's row what was done about it."""
    if one.is_at_work:
        row |= {"verdict": Verdict.WAIT.value, "certain": False, "needs_person": False, "reason": one.what}
    else:
        row |= {"done": one.what, "needs_person": not one.is_over}
    if one.is_over or one.is_at_work:
        row |= {"commands": [], "verbs": []}


def problem_row(place: str, reason: str) -> JsonRow:
    """Return the row of a side that could not be asked."""
    known = {"place": place, "state": "unknown", "verdict": Verdict.UNKNOWN.value, "reason": reason}
    return dict.fromkeys(COLUMNS) | known | {"certain": False, "needs_person": True, "commands": [], "verbs": []}


def block(row: JsonRow) -> Iterator[str]:
    """Yield one branch's lines for people, never shortened, because any of it may be pasted."""
    rows = [("", f"{row['transaction'] or ''} {row['place']}".strip())]
    if row["transaction"] is not None:
        since = f" for {age_text(row['age_s'])}, since {row['since']}" if row["since"] else ""
        rows.append(("state", f"{row['state']}{since}{_holds(row)}"))
        others = "".join(f"; {place}: {said}" for place, said in row["others"].items())
        rows.append(("says", f"{row['by']}: {row['decision']}{others}"))
    if row["locks"] is not None:
        if row["role"] is not None:
            rows.append(("role", row["role"]))
        rows += [("locks" if not number else "", lock) for number, lock in enumerate(row["locks"])]
        vacuum = "" if row["vacuum_age"] is None else f", and VACUUM by {row['vacuum_age']} transactions"
        rows.append(("holds up", f"{'unknown' if row['waiting'] is None else row['waiting']} sessions{vacuum}"))
    if row["purge"] is not None:
        rows.append(("purge", row["purge"]))
    rows.append(("verdict", f"{row['verdict']}: {row['reason']}"))
    rows += [("do" if not number else "", command) for number, command in enumerate(row["commands"])]
    if row["risk"]:
        rows.append(("risk", row["risk"]))
    if row["done"]:
        rows.append(("done", row["done"]))
    for number, (what, text) in enumerate(rows):
        yield printable(text if not number else f"  {what:<9} {text}")


def _holds(row: JsonRow) -> str:
    if row["messages"] is None:
        return ""
    topics = ", ".join(f"{topic} {count}" for topic, count in row["topics"].items())
    origin = f", from {row['origin']}" if row["origin"] else ""
    return f", {row['messages']} messages{f' ({topics})' if topics else ''}{origin}"
