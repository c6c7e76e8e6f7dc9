"""Options of `metaq txn`'s commands, and the branch that a word names."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from journal.records.xid import InvalidXid, XaKey, Xid
from meta_client.cli.options import branch_broker, check_any_broker, connected
from meta_client.cli.output import existing_directory
from meta_client.operations.branch_input import parse_branch
from meta_client.operations.branches import Branches, NoBranch, OfflineBranches, OnlineBranches

QUOTED_MAX: Final = 5

directory_option = click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=existing_directory,
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


def where_of(directory: Path | None, broker_id: int) -> str:
    """Return the options that select the branch."""
    return f"--dir {directory}" if directory is not None else f"--broker {broker_id}"


def find_branch(
    branches: Branches, text: str, broker_id: int | None, others: Iterable[tuple[XaKey, int]] = ()
) -> tuple[XaKey, int]:
    """Return the single branch named *text*, and its broker's id; in doubt, or among *others*."""
    wanted = parse_word(text)
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


def parse_word(text: str) -> XaKey | Xid:
    """Parse the word that names a branch. Raises UsageError."""
    try:
        return parse_branch(text)
    except InvalidXid as error:
        raise click.UsageError(f"{error}: give a branch as `metaq txn list` shows it") from error
