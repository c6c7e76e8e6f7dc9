"""`metaq groups`: progress and owners of consumer groups, and resetting them. Also registers `metaq topics`."""

from dataclasses import replace
from typing import Final

import click

from meta_client.cli.dead_letters import dead_letters
from meta_client.cli.group_exporter import exporter
from meta_client.cli.group_reset import reset
from meta_client.cli.options import connected
from meta_client.cli.output import json_option, print_rows, refuse_away, zk_option
from meta_client.cli.stores import opened_store, store_option
from meta_client.cli.topics import topics
from meta_client.client import Client
from meta_client.operations.group_ends import ask_ends, with_all_partitions
from meta_client.operations.group_lag import FAULTS, Ends, faults, group_row, lag_of, partition_row
from meta_client.operations.placement import away_brokers
from meta_client.operations.text import tell
from zk.groups.listing import GroupListing, list_group, list_groups
from zk.tree.nodes import OffsetNode

__all__ = ["groups", "topics"]

UNKNOWN: Final = 1  # exit status: there is no such group
FAULTY: Final = 1  # exit status: a lag is unknown, or a node in ZooKeeper was skipped


@click.group(invoke_without_command=True)
@zk_option
@json_option
@click.pass_context
def groups(context: click.Context, zk: str, as_json: bool) -> None:
    """List consumer groups, look into one, or set it to other offsets.

    Without a command, as `metaq groups list`.

    \b
      metaq groups
      metaq groups describe billing
      metaq groups reset billing orders --to 2010-12-05T10:00
    """
    if context.invoked_subcommand is None:
        _list(zk, as_json=as_json)


@groups.command(name="list")
@zk_option
@json_option
def list_(zk: str, as_json: bool) -> None:
    """List the groups that ever consumed: members, partitions, those without an owner, and how far they are behind.

    lag is in bytes of message frames, as offsets are, over all partitions; messages is how many these are, missing
    where a broker can't count them; seconds is the age of the oldest message that is not consumed. A partition without
    an offset in ZooKeeper counts with all that it holds, and in no_offset; one whose lag nobody can tell (its broker
    does not answer, its offset is beyond the end or can't be read) only in unknown, and then the exit status is 1,
    as it is while a known broker is away.

    \b
      metaq groups list
      metaq groups list --json | jq 'select(.lag > 0)'
    """
    _list(zk, as_json=as_json)


@groups.command()
@click.argument("group")
@click.option(
    "--topic", "more", multiple=True, metavar="TOPIC", help="Add a topic that ZooKeeper does not list for GROUP."
)
@store_option
@zk_option
@json_option
def describe(group: str, more: tuple[str, ...], store: str | None, zk: str, as_json: bool) -> None:
    """Show GROUP: per partition its owner, the group's offset, the end, and how far it is behind.

    Offset, end and lag are in bytes of message frames; messages is how many are not consumed, seconds the age of the
    first one; both are missing where it is no metaq broker's. --store looks at offsets that are kept
    elsewhere, as in `metaq groups reset`. state says what the lag is:

    \b
      stored        from the group's offset to the end
      no-offset     the group has stored none: all that the partition holds
      below-start   retention deleted messages not consumed yet: all that is left
      no-partition  the broker has none, as after its topic was deleted
      beyond-end    unknown: the offset is beyond the end, which is a fault
      malformed     unknown: the offset node can't be read, which is a fault
      unknown       unknown: the broker does not answer

    Exit status 1: there is no such group, a lag is unknown, or a known broker is away, whose partitions may be missing.

    \b
      metaq groups describe billing
      metaq groups describe billing --json | jq 'select(.owner == null)'
      metaq groups describe ledger --store postgresql+psycopg:///shop --topic orders
    """
    with connected(zk) as client:
        listing = list_group(client.session, group)
        if not listing.members and not listing.topics and not more:
            click.echo(f"error: there is no group {group}: see `metaq groups`", err=True)
            click.get_current_context().exit(UNKNOWN)
        (listing,) = with_all_partitions(client, [listing], more)
        if store is not None:
            listing = _stored_elsewhere(client, listing, store)
        ends = ask_ends(client, [listing])
        rows = [partition_row(listing, progress, ends) for progress in listing.progress]
        empty = "its topics have no partitions: start a broker that offers them"
        print_rows(rows, as_json=as_json, empty=empty)
        _tell_faults(client, [listing], ends)


groups.add_command(reset)
groups.add_command(dead_letters)
groups.add_command(exporter)


def _list(zk: str, *, as_json: bool) -> None:
    with connected(zk) as client:
        listings = with_all_partitions(client, list_groups(client.session))
        ends = ask_ends(client, listings)
        rows = [group_row(listing, ends) for listing in listings]
        print_rows(rows, as_json=as_json, empty="ZooKeeper knows no consumer group")
        _tell_faults(client, listings, ends)


def _stored_elsewhere(client: Client, listing: GroupListing, store: str) -> GroupListing:
    """Replace the offsets by those of *store*. Raises OffsetStoreErrors."""
    progress = []
    with opened_store(client, listing.group, store, is_for_reading=True) as offsets:
        for it in listing.progress:
            offset = offsets.load(it.topic, it.partition)
            progress.append(replace(it, stored=None if offset is None else OffsetNode(offset), is_malformed=False))
    return replace(listing, progress=tuple(progress))


def _tell_faults(client: Client, listings: list[GroupListing], ends: Ends) -> None:
    """Name what is wrong on stderr; ends the command with exit status 1 if the numbers are not the whole truth."""
    for line in faults(listings, ends):
        tell(f"error: {line}")
    if listings:
        refuse_away(away_brokers(client))  # of a topic it may have partitions that these groups have not met
    if client.session.malformed.found or any(
        lag_of(progress, ends).state in FAULTS for listing in listings for progress in listing.progress
    ):
        click.get_current_context().exit(FAULTY)
