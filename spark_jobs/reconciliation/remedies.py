"""Remedies: for a transaction that came apart, the commands that mend it; or that none does, and what is left. Pure.

Commands take the database from DATABASE_URL and ZooKeeper from METAQ_ZK, so that no password stands in them.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from psycopg import sql

from meta_client.transactions.names import TableName
from spark_jobs.certificate.database import Marker
from spark_jobs.reconciliation.apart import Apart, BranchSide, MarkerSide


@dataclass(frozen=True, slots=True)
class Remedy:
    """Judgement of one transaction. *commands*: in order; *dead_end*: what no command brings back; empty: nothing.
    *needs_person*: nothing ends it by itself."""

    reason: str
    commands: tuple[str, ...] = ()
    dead_end: str = ""
    needs_person: bool = True


def remedy_for(one: Apart, table: TableName, *, has_markers: bool, is_newest: bool) -> Remedy:
    """Return the remedy. *has_markers*: a row of the database names every transaction. *is_newest*: the database is
    known not to have been restored."""
    match one.kind:
        case "in doubt":
            return _in_doubt(one, table, has_markers=has_markers, is_newest=is_newest)
        case "missing":
            return _missing(one)
        case "orphan":
            return _orphan(one)
        case "mixed":
            return _mixed(one)
    return Remedy(
        "a row names it twice, or a broker has published it twice",
        (*_rows(one), *_messages(one.branches)),
        "messages that were published twice are not taken back: have consumers skip one of them",
    )


def _in_doubt(one: Apart, table: TableName, *, has_markers: bool, is_newest: bool) -> Remedy:
    branches = one.at("in doubt")
    if one.decision == "commit":
        return Remedy("its decision row says commit", (_RESOLVE,), needs_person=False)
    if one.rows:
        return Remedy(
            "the database has its rows, and its decision row is gone: it was committed",
            tuple(_end_commands(one, branches, table, "commit", "its rows are in the database")),
        )
    if one.at("committed"):
        return Remedy(
            "another broker has published its part, and the database has neither decision nor rows: it was committed",
            tuple(_end_commands(one, branches, table, "commit", "its other branch is committed")),
            "its rows are lost: see the messages, and make the rows again",
        )
    if one.decision == "rollback" or (is_newest and not any(branch.is_of_earlier_epoch for branch in branches)):
        return Remedy("nothing was decided: a resolver rolls it back", (_RESOLVE,), needs_person=False)
    commands = tuple(_end_commands(one, branches, table, "rollback", "the database has no rows of it"))
    if not has_markers:
        return Remedy("no decision row is left, and without --marker nothing tells of other rows: look there", commands)
    if is_newest:
        return Remedy("the database has neither decision nor rows: it was not committed", commands)
    return Remedy(
        "the database has neither decision nor rows, and may have had both before it was restored",
        commands,
        "its rows, if it had any. A commit instead publishes its messages without them, as its caller may expect",
    )


def _missing(one: Apart) -> Remedy:
    absent = " and ".join(f"broker {number}" for number in one.absent) or "every journal that was read"
    return Remedy(
        f"the database has committed it, and its messages are gone from {absent}",
        (*_rows(one), *_messages(one.branches)),
        "their payload, topics and keys are in no journal that was read: send them again from the rows, in a new "
        "transaction, and put that one's gtrid or message ids into the rows",
    )


def _orphan(one: Apart) -> Remedy:
    return Remedy(
        "its messages are published, and the database has no row of it",
        tuple(_messages(one.branches)),
        "consumers may have read them, and nothing takes them back: make the rows again from the messages, or "
        "compensate with new messages",
    )


def _mixed(one: Apart) -> Remedy:
    wants_commit = bool(one.rows) or one.decision == "commit"
    reason = "one side has committed and another has rolled back"
    left = "what a broker has rolled back is not published any more: send it again from the rows"
    if not wants_commit:
        left = "what is published is not taken back: make the rows again from the messages, or compensate"
    return Remedy(reason, (*_rows(one), *_messages(one.branches)), left)


_RESOLVE = 'metaq txn resolver --once --database "$DATABASE_URL"'


def _end_commands(one: Apart, branches: list[BranchSide], table: TableName, verb: str, why: str) -> Iterator[str]:
    for branch in branches:
        key = shlex.quote(str(table.key(one.name, branch.broker)))
        yield f"metaq txn {verb} {key} --broker {branch.broker} --why {shlex.quote(why)}"
        yield f"metaq txn forget {key} --broker {branch.broker}"


def _rows(one: Apart) -> Iterator[str]:
    for side in one.rows:
        yield f'psql "$DATABASE_URL" -c {shlex.quote(_query(side))}'


def _query(side: MarkerSide) -> str:
    marker = Marker.parse(side.column)
    value = int(side.value) if side.is_message_id else side.value
    column = sql.Identifier(marker.column)
    query = sql.SQL("SELECT * FROM {} WHERE {} = {}").format(marker.place, column, sql.Literal(value))
    return query.as_string(None)


def _messages(branches: tuple[BranchSide, ...]) -> Iterator[str]:
    for branch in branches:
        for content in branch.contents:
            if content.offset is not None:
                yield (
                    f"metaq consume {shlex.quote(content.topic)} --partition {branch.broker}-{content.partition} "
                    f"--from {content.offset} --count {content.messages} --json"
                )
