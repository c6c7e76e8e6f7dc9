"""`metaq txn`: branches in doubt, their causes and remedies."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from meta_client.cli.branch_ends import end_command
from meta_client.cli.branch_options import (
    branch_argument,
    broker_option,
    directory_option,
    find_branch,
    opened_branches,
    where_of,
)
from meta_client.cli.decision_table import init, resolver
from meta_client.cli.decisions import is_decided
from meta_client.cli.doctor import doctor
from meta_client.cli.options import direct_option
from meta_client.cli.output import existing_directory, json_option, print_rows, zk_option
from meta_client.operations.branch_text import in_doubt_row, ledger_row, show_lines
from meta_client.operations.many_ends import ManyVerb
from meta_client.operations.report_parsing import key_of
from meta_client.operations.text import tell

INCOMPLETE: Final = 1  # exit status: a broker's branches are missing


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
    rows = [in_doubt_row(report, key_of(report), now_ms) for report in reports]
    _print_listing(rows, failures, "nothing is in doubt", as_json=as_json)


@txn.command()
@branch_argument
@zk_option
@directory_option
@broker_option
@click.option(
    "--decisions",
    metavar="DIR",
    type=existing_directory,
    help="Coordinator's log, which tells whether it had decided to commit.",
)
@json_option
def show(
    branch: str, zk: str, directory: Path | None, broker_id: int | None, decisions: Path | None, as_json: bool
) -> None:
    """Show all that is known of BRANCH, and the command that would end it."""
    with opened_branches(zk, directory) as branches:
        key, broker = find_branch(branches, branch, broker_id)
        report = branches.show(key, broker)
    decided = None if decisions is None else is_decided(decisions, key.xid)
    if as_json:
        click.echo(json.dumps(report | {"xid": str(key.xid), "decided": decided}))
        return
    where, now_ms = where_of(directory, broker), time.time_ns() // 1_000_000
    for line in show_lines(report, key, now_ms, where, decided):
        click.echo(line)


for _verb in ManyVerb:
    txn.add_command(end_command(_verb))


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
    rows = [ledger_row(report, key_of(report)) for report in reports]
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


txn.add_command(doctor)
txn.add_command(init)
txn.add_command(resolver)
