"""Output of `metaq txn list`, `ledger` and `show` for a branch. Pure."""

import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from journal.records.xid import XaKey, Xid
from meta_client.batches.names import QUALIFIER, BatchName
from meta_client.operations.text import age_text, printable, time_text
from meta_client.protocol.answers import BranchStatus
from meta_client.protocol.branch_report import Report
from meta_client.protocol.integers import INT64_MAX
from meta_client.transactions.names import table_of


def sql_of(xid: Xid) -> str:
    """Return a query for the decision's row, if the branch has one; nothing for Spark's; otherwise for the branches of
    the same global transaction, which differ in the part after the last underscore."""
    if BatchName.of(xid) is not None:
        return ""  # a node in ZooKeeper decides
    if table_of(xid) is not None:
        return f"SELECT outcome FROM metaq_decision WHERE gtrid = '{xid.gtrid.decode()}'"  # noqa: S608 - no quote in it
    transaction = str(xid).rpartition("_")[0]
    columns = "gid, database, prepared"
    return f"SELECT {columns} FROM pg_prepared_xacts WHERE gid ^@ '{transaction}_'"  # noqa: S608 - for a person to paste; base64 holds no quote


def since_ms(report: Report) -> int:
    """Return the time since which it waits: prepared, decided by hand, or found."""
    decision = report.get("decision") or report.get("finding")
    return int(decision["time_ms"] if decision else report.get("prepared_ms") or report.get("began_ms") or 0)


def age_s(report: Report, since: int, now_ms: int) -> float | None:
    """Return the seconds from *since*, in the report, until its broker made it: by the broker's own clock, or until
    *now_ms* where the report doesn't tell that. None: unknown."""
    if not 0 < since <= INT64_MAX:
        return None
    return max(0, int(report.get("now_ms") or now_ms) - since) / 1000


def in_doubt_row(report: Report, key: XaKey, now_ms: int) -> dict[str, Any]:
    """Return the row of *key* in the listing of branches in doubt."""
    waited_s = age_s(report, since_ms(report), now_ms)
    row = {"xid": str(key.xid), "state": report["state"], "age_s": None if waited_s is None else round(waited_s)}
    row["messages"] = report.get("messages")
    return row | {"broker": report["broker"], "qualifier": key.qualifier, "key": str(key), "sql": sql_of(key.xid)}


def ledger_row(report: Report, key: XaKey) -> dict[str, Any]:
    """Return the row of *key*, which an operator or a resolver has put on record."""
    said = report.get("finding") or report["decision"]
    seen = f"{report['messages']} messages of {report['bytes']} bytes, prepared"
    row = {"xid": str(key.xid), "outcome": report["state"], "since": time_text(said["time_ms"])}
    row |= {"who": said["who"], "broker": report["broker"], "why": said["why"]}
    return row | {"evidence": said.get("evidence", seen), "key": str(key)}


def show_lines(report: Report, key: XaKey, now_ms: int, where: str, decided: bool | None) -> Iterator[str]:
    """Yield the report's lines. *where*: the options that select the branch; *decided*: True if its coordinator's log
    holds a decision to commit, None if the log was not read."""
    waited_s = age_s(report, since_ms(report), now_ms)
    rows = [
        ("xid", str(key.xid)),
        ("state", f"{report['state'].replace('_', ' ')}{'' if waited_s is None else f' for {age_text(waited_s)}'}"),
        ("broker", str(report["broker"])),
        ("qualifier", key.qualifier),
        ("key", str(key)),
    ]
    if "origin" in report:
        rows.append(("origin", report["origin"] or "not known: the broker has been restarted since"))
    rows.append(("holds", f"{report['messages']:,} messages, {report['bytes']:,} bytes"))
    for what, text in rows:
        yield printable(f"{what:<10} {text}")
    for part in report.get("partitions", ()):
        place = f"{part['topic']}-{part['partition']}"
        yield printable(f"           {place}: {part['messages']:,} messages, {part['bytes']:,} bytes")
    if (hidden := report.get("partitions_total", 0) - len(report.get("partitions", ()))) > 0:
        yield f"           and {hidden:,} more partitions"
    for number, message in enumerate(report.get("first_messages", ())):
        yield printable(f"{'' if number else 'begins':<10} {_message_text(message)}")
    if report.get("unreadable"):
        yield printable(f"unreadable {report['unreadable']}")
    for number, (time_ms, what) in enumerate(history(report)):
        yield printable(f"{'' if number else 'history':<10} {time_text(time_ms)} {what}")
    yield from remedy(report, key, where, decided)


def verbs_in(commands: Iterable[str]) -> tuple[str, ...]:
    """Return the verbs by which *commands* end a branch by hand."""
    wanted = [command.removeprefix("metaq txn ").partition(" ")[0] for command in commands]
    return tuple(verb for verb in ("commit", "rollback", "complete", "forget") if verb in wanted)


def key_word(key: XaKey) -> str:
    """Return *key* as one word of a command: its qualifier is anybody's who may begin a branch."""
    return shlex.quote(printable(str(key)))


def _message_text(message: dict[str, Any]) -> str:
    attribute = "" if message["attribute"] is None else f" attribute {message['attribute']!r}"
    unknown = "hidden, you may not consume it" if message.get("is_hidden") else "compressed"
    payload = unknown if message["payload"] is None else repr(message["payload"])
    place = f"{message['topic']}-{message['partition']}"
    return f"{place} id {message['id']}{attribute}, {message['bytes']:,} bytes: {payload}"


def history(report: Report) -> Iterator[tuple[int, str]]:
    """Yield what happened to a branch, each with its time in Unix milliseconds."""
    if report.get("began_ms"):
        yield report["began_ms"], f"began, at LSN {report.get('first_lsn')}"
    if parts := report.get("partitions"):
        yield max(part["last_ms"] for part in parts), "last put"
    if report.get("prepared_ms"):
        yield report["prepared_ms"], "prepared: since then it is in doubt"
    if decision := report.get("decision"):
        yield decision["time_ms"], f"{decision['decision']} decided by {decision['who']}: {decision['why']}"
    if finding := report.get("finding"):
        yield finding["time_ms"], f"found by {finding['who']}: {finding['why']} ({finding['evidence']})"


def remedy(report: Report, key: XaKey, where: str, decided: bool | None) -> Iterator[str]:
    """Yield the lines on ending a branch, after a margin of eleven characters."""
    if report.get("decision") or report.get("finding"):
        when = "its coordinator has been told" if report.get("decision") else "rows and messages have been mended"
        yield f"resolve    when {when}:"
        yield f"           metaq txn forget {key_word(key)} {where}"
        return
    if report["state"] != BranchStatus.PREPARED:
        yield "resolve    nothing to do: it is not prepared, and ends with its producer, or its timeout"
        return
    commit, rollback = (f"metaq txn {verb} {key_word(key)} {where} --why '...'" for verb in ("commit", "rollback"))
    if decided is not None:
        found = "decided to commit" if decided else "holds no decision, which means: roll back"
        yield f"resolve    the coordinator's log {found}"
        yield f"           {commit if decided else rollback}"
        return
    if (table := table_of(key.xid)) is not None:
        yield f"resolve    decision table {table} decides: where its database is,"
        yield "           metaq txn resolver --once --database URL"
        yield "           Is that gone for good? See whether the transaction's rows are anywhere, and end it so:"
        yield f"           {commit}"
        yield f"           {rollback}"
        return
    if key.qualifier == QUALIFIER and (batch := BatchName.of(key.xid)) is not None:
        over = "its query is never started again" if batch.is_repeatable else "its program has ended"
        yield f"resolve    Spark's sink decides: metaq txn doctor tells how. It has not decided, and {over}:"
        yield f"           {rollback}"
        return
    yield "resolve    a coordinator that runs recover() finishes it. Without one, ask the database:"
    yield f"           {sql_of(key.xid)}"
    yield "           it shows the other branch as prepared: end both the same way. The data is there: the transaction"
    yield "           committed. Else it was rolled back."
    yield f"           {commit}"
    yield f"           {rollback}"
