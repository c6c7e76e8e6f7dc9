"""`metaq txn`: branches in doubt, their causes and remedies."""

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from journal.records.heuristics import HeuristicDecision
from journal.records.xid import InvalidXid, XaKey, Xid, parse_key
from meta_client.cli.decision_table import init, resolver
from meta_client.cli.decisions import is_decided
from meta_client.cli.doctor import doctor
from meta_client.cli.options import branch_broker, check_any_broker, connected, direct_option
from meta_client.cli.output import confirm, json_option, operator, print_rows, zk_option
from meta_client.operations.branch_text import (
    in_doubt_row,
    key_word,
    ledger_row,
    show_lines,
)
from meta_client.operations.branches import NoBranch, OfflineBranches, OnlineBranches
from meta_client.operations.text import printable, tell

Branches = OnlineBranches | OfflineBranches
INCOMPLETE: Final = 1  # exit status: a broker's branches are missing
QUOTED_MAX: Final = 5

directory_option = click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The data directory of a broker that does not run, instead of a cluster.",
)
broker_option = click.option(
    "--broker",
    "broker_id",
    metavar="ID|HOST:PORT",
    callback=branch_broker,
    help="Take the branch on this broker. HOST:PORT needs no ZooKeeper.",
)
branch_argument = click.argument("branch", metavar="BRANCH")
yes_option = click.option("--yes", is_flag=True, help="Don't ask.")


@contextmanager
def opened_branches(zookeeper: str, directory: Path | None) -> Iterator[Branches]:
    """Open the branches of the cluster behind *zookeeper*, or of *directory*. Raises as connected and
    check_any_broker."""
    if directory is not None:
        yield OfflineBranches(directory)
        return
    with connected(zookeeper) as client:
        check_any_broker(client, zookeeper)
        yield OnlineBranches(client)


@click.group()
def txn() -> None:
    """List branches in doubt (prepared and not finished yet), and end them by hand.

    A branch is given as its xid, the text that psycopg and pgjdbc give PostgreSQL as gid, or as its key on the wire.

    \b
    metaq txn doctor --database postgresql://host/shop
    metaq txn list
    metaq txn show 1_by0x_bXE=
    metaq txn commit 1_by0x_bXE= --why "order o-1 is in the database"
    metaq txn list --dir /var/lib/metaq/0

    Client.transaction keeps its decisions in a table, and a resolver ends what crashes leave:

    
    metaq txn init --database postgresql://host/shop
    metaq txn resolver --database postgresql://host/shop
    """


@txn.command(name="list")
@zk_option
@direct_option
@directory_option
@click.option("--qualifier", metavar="TEXT", help="List branches of producers with this unique qualifier alone.")
@json_option
def list_branches(zk: str, directory: Path | None, qualifier: str | None, as_json: bool) -> None:
    """List prepared branches, and heuristic outcomes, of every broker.

    The SQL beside a branch shows those of the same transaction that a database holds. Exit status 1 if a broker could
    not be asked: then the list lacks its branches, and the missing broker is named on stderr.
    """
    with opened_branches(zk, directory) as branches:
        reports = branches.listed(qualifier)
        failures = branches.failures
    now_ms = time.time_ns() // 1_000_000
    rows = [in_doubt_row(report, _key(report["key"]), now_ms) for report in reports]
    _print_listing(rows, failures, "nothing is in doubt", as_json=as_json)


@txn.command()
@branch_argument
@zk_option
@directory_option
@broker_option
@click.option(
    "--decisions",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Coordinator's log, which tells whether it had decided to commit.",
)
@json_option
def show(
    branch: str, zk: str, directory: Path | None, broker_id: int | None, decisions: Path | None, as_json: bool
) -> None:
    """Show all that is known of BRANCH, and the command that would end it."""
    with opened_branches(zk, directory) as branches:
        key, broker = _find(branches, branch, broker_id)
        report = branches.show(key, broker)
    decided = None if decisions is None else is_decided(decisions, key.xid)
    if as_json:
        click.echo(json.dumps(report | {"xid": str(key.xid), "decided": decided}))
        return
    where, now_ms = _where(directory, broker), time.time_ns() // 1_000_000
    for line in show_lines(report, key, now_ms, where, decided):
        click.echo(line)


_DECISIONS: Final = {
    HeuristicDecision.COMMIT: """Commit BRANCH by hand: its messages are published.

    Its coordinator is told so when it asks (XA_HEURCOM).
    """,
    HeuristicDecision.ROLLBACK: """Roll BRANCH back by hand: its messages are never seen.

    Its coordinator is told so when it asks (XA_HEURRB).
    """,
    HeuristicDecision.COMPLETE: """Take BRANCH away, neither committed nor rolled back.

    For what has been done in another way. Its messages are never seen, and its coordinator is told that nobody vouches
    for the outcome (XA_HEURHAZ).
    """,
}


def _add_command(decision: HeuristicDecision, text: str) -> None:
    @txn.command(name=decision.name.lower(), help=text)
    @branch_argument
    @zk_option
    @directory_option
    @broker_option
    @click.option("--why", required=True, metavar="TEXT", help="Reason, kept on record.")
    @click.option("--who", metavar="TEXT", help="Operator who answers for it.  [default: user@host]")
    @yes_option
    @json_option
    def end_by_hand(
        branch: str,
        zk: str,
        directory: Path | None,
        broker_id: int | None,
        why: str,
        who: str | None,
        yes: bool,
        as_json: bool,
    ) -> None:
        with opened_branches(zk, directory) as branches:
            key, broker = _find(branches, branch, broker_id)
            if not yes:
                messages = branches.show(key, broker)["messages"]
                what = f"{decision.name.lower()} {key.xid} on broker {broker}, {messages} messages"
                confirm(f"{what}: nothing undoes it. Go on?")
            ended = branches.end_heuristically(key, broker, decision, who or operator(), why)
        if as_json:
            click.echo(json.dumps(ended | {"xid": str(key.xid)}))
            return
        click.echo(f"{ended['state'].replace('_', ' ')}: {key.xid}")
        click.echo(f"once its coordinator has been told: metaq txn forget {key_word(key)} {_where(directory, broker)}")


for _decision, _text in _DECISIONS.items():
    _add_command(_decision, _text)


@txn.command()
@zk_option
@direct_option
@directory_option
@json_option
def ledger(zk: str, directory: Path | None, as_json: bool) -> None:
    """List what is on record of transactions that did not end alike: who, when, why, and the evidence.

    Decisions of operators (commit, rollback, complete), and what resolvers and `metaq txn doctor --apply` found: mixed,
    one side committed and another rolled back; hazard, nobody knows how a side ended. Each stays, through restarts and
    promotions, until `metaq txn forget`. Exit status 1 if a broker could not be asked.
    """
    with opened_branches(zk, directory) as branches:
        reports = [report for report in branches.listed(None) if report.get("decision")]
        reports += branches.findings()
        failures = branches.failures
    rows = [ledger_row(report, _key(report["key"])) for report in reports]
    _print_listing(rows, failures, "nothing is on record", as_json=as_json)


def _print_listing(
    rows: Sequence[Mapping[str, object]], failures: Mapping[int, str], empty: str, *, as_json: bool
) -> None:
    """Print what brokers listed. If some could not be asked: a warning each, and exit with INCOMPLETE."""
    print_rows(rows, as_json=as_json, empty=f"{empty} on the brokers that answered" if failures else empty)
    for failure in failures.values():
        tell(f"warning: the list is incomplete: {failure}")
    if failures:
        sys.exit(INCOMPLETE)


@txn.command()
@branch_argument
@zk_option
@directory_option
@broker_option
@yes_option
def forget(branch: str, zk: str, directory: Path | None, broker_id: int | None, yes: bool) -> None:
    """Drop what is on record of BRANCH: what was decided by hand, and what the ledger holds.

    A coordinator that asks later is told that there is no such branch.
    """
    with opened_branches(zk, directory) as branches:
        findings = {(_key(report["key"]), report["broker"]): report["finding"] for report in branches.findings()}
        key, broker = _find(branches, branch, broker_id, findings)
        report = branches.show(key, broker)
        if (decision := report.get("decision")) is not None:
            said = f"{decision['who']} decided: {decision['decision']}"
        elif (finding := findings.get((key, broker))) is not None:
            said = f"{finding['who']} found: {finding['why']}"
        else:
            raise NoBranch(f"{branch} is {report['state']}: no operator decided it, so there is nothing to forget")
        if not yes:
            confirm(f"forget that {said}?")
        branches.forget(key, broker)
    click.echo(printable(f"forgotten: {key}"))


txn.add_command(doctor)
txn.add_command(init)
txn.add_command(resolver)


def _where(directory: Path | None, broker_id: int) -> str:
    """Return the options that select the branch."""
    return f"--dir {directory}" if directory is not None else f"--broker {broker_id}"


def _find(
    branches: Branches, text: str, broker_id: int | None, others: Iterable[tuple[XaKey, int]] = ()
) -> tuple[XaKey, int]:
    """Return the single branch named *text*, and its broker's id; in doubt, or among *others*."""
    wanted = _parse(text)
    listed = branches.keys(wanted.qualifier if isinstance(wanted, XaKey) else None)
    known = [(key, where) for where, keys in listed.items() for key in keys]
    found = [
        (key, where)
        for key, where in dict.fromkeys((*known, *others))  # one that was begun again appears twice
        if broker_id in (None, where) and wanted in (key, key.xid)
    ]
    if not found and isinstance(wanted, XaKey) and broker_id is not None:
        return wanted, broker_id  # not in doubt, but perhaps active
    if not found:
        asked = "; ".join(branches.failures.values()) or "see metaq txn list"
        raise NoBranch(f"no branch in doubt is called {text}: {asked}")
    if len(found) > 1:
        names = ", ".join(f"{key} on broker {where}" for key, where in found[:QUOTED_MAX])
        raise NoBranch(f"{len(found)} branches are called {text}: name one by its key and --broker, of {names}")
    return found[0]


def _parse(text: str) -> XaKey | Xid:
    try:
        return _key(text) if text.startswith("XID:") else Xid.parse(text)
    except InvalidXid as error:
        raise click.UsageError(f"{error}: give a branch as `metaq txn list` shows it") from error


def _key(text: str) -> XaKey:
    key = parse_key(text)
    assert isinstance(key, XaKey), "local transactions are never in doubt"
    return key
