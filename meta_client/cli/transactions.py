"""`metaq txn`: what is in doubt."""

import sys

import click

from journal.xid import Xid
from meta_client.cli.options import connected
from meta_client.cli.output import json_option, print_rows, zk_option
from meta_client.xa_verbs import XaVerbs

NAME = "metaq-cli"
INCOMPLETE = 1  # exit status: the list lacks what a broker did not tell


@click.group()
def txn() -> None:
    """What is in doubt: prepared branches that nobody has finished yet.

    \b
    metaq txn list
    metaq txn list --qualifier metaq-demo --json
    """


@txn.command(name="list")
@zk_option
@click.option("--qualifier", metavar="TEXT", help="Only branches of producers with this unique qualifier.")
@json_option
def list_branches(zk: str, qualifier: str | None, as_json: bool) -> None:
    """List prepared branches, and heuristic outcomes, of every broker.

    The xid is the text that psycopg and pgjdbc give PostgreSQL as gid; the SQL beside it shows the branches of the
    same transaction that a database holds. Exit status 1 if a broker could not be asked: then the list lacks its
    branches, and the missing broker is named on stderr.
    """
    with connected(zk) as client:
        listing = XaVerbs(client.topology, client.connections, NAME, NAME).list_prepared(qualifier)
    rows = [
        {
            "xid": str(key.xid),
            "broker": broker_id,
            "qualifier": key.qualifier,
            "key": str(key),
            "sql": _branches_in_postgres(key.xid),
        }
        for broker_id, keys in sorted(listing.keys.items())
        for key in keys
    ]
    columns = ("xid", "broker", "qualifier", "key", "sql")
    print_rows(columns, rows, as_json=as_json, empty="nothing is in doubt")
    for failure in listing.failures.values():
        click.echo(f"warning: the list is incomplete: {failure}", err=True)
    if listing.failures:
        sys.exit(INCOMPLETE)


def _branches_in_postgres(xid: Xid) -> str:
    """A query to paste: the branches of one global transaction differ in the part after the last underscore."""
    transaction = str(xid).rpartition("_")[0]
    columns = "gid, database, prepared"
    return f"SELECT {columns} FROM pg_prepared_xacts WHERE gid ^@ '{transaction}_'"  # noqa: S608 - for a person to paste; base64 holds no quote
