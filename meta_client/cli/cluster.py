"""`metaq groups`: progress and owners of consumer groups, and resetting them. Also registers `metaq topics`."""

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import click

from meta_client.cli.dead_letters import dead_letters
from meta_client.cli.group_reset import reset
from meta_client.cli.options import connected
from meta_client.cli.output import json_option, print_rows, zk_option
from meta_client.cli.positions import Positions
from meta_client.cli.stores import opened_store, store_option
from meta_client.cli.topics import topics
from meta_client.client import Client
from zk.brokers.cluster import read_topic, subscribable_partitions
from zk.groups.listing import GroupListing, PartitionProgress, list_group, list_groups
from zk.tree.nodes import OffsetNode, TopicPartition
from zk.tree.paths import TopicKind

__all__ = ["groups", "topics"]

UNKNOWN: Final = 1  # exit status: there is no such group


class _Ends(NamedTuple):
    """Brokers' answers: the ends of partitions, and the put time of the first unconsumed message (milliseconds)."""

    ends: Mapping[TopicPartition, int]
    put_ms: Mapping[tuple[str, TopicPartition], int]
    now_ms: int


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

    lag is in bytes of message frames, as offsets are, over all partitions; seconds is the age of the oldest message
    that is not consumed. Both leave out partitions of which the group has stored no offset in ZooKeeper.

    \b
      metaq groups list
      metaq groups list --json | jq 'select(.lag > 0)'
    """
    _list(zk, as_json=as_json)


@groups.command()
@click.argument("group")
@click.option("--topic", "more", multiple=True, metavar="TOPIC", help="This one too, if ZooKeeper knows nothing of it.")
@store_option
@zk_option
@json_option
def describe(group: str, more: tuple[str, ...], store: str | None, zk: str, as_json: bool) -> None:
    """Show GROUP: per partition its owner, the group's offset, the end, and how far it is behind.

    Offset, end and lag are in bytes of message frames; seconds is the age of the first message that is not
    consumed. They are missing where the group has stored nothing, or keeps its offsets elsewhere, where the broker
    does not answer, and seconds where it is no metaq broker, whose message ids tell no time. --store looks at offsets
    that are kept elsewhere, as in `metaq groups reset`. Exit status 1: there is no such group.

    \b
      metaq groups describe billing
      metaq groups describe billing --json | jq 'select(.owner == null)'
      metaq groups describe ledger --store postgresql+psycopg:///shop --topic orders
    """
    with connected(zk) as client:
        listing = list_group(client.session, group)
        if not listing.members and not listing.progress and not more:
            click.echo(f"error: there is no group {group}: see `metaq groups`", err=True)
            click.get_current_context().exit(UNKNOWN)
        listing = _with_all_partitions(client, listing, more)
        if store is not None:
            listing = _stored_elsewhere(client, listing, store)
        ends = _ask(client, [listing])
    columns = ("group", "topic", "partition", "offset", "end", "lag", "seconds", "owner")
    rows = [_partition_row(listing, progress, ends) for progress in listing.progress]
    print_rows(columns, rows, as_json=as_json, empty="its topics have no partitions: start a broker that offers them")


groups.add_command(reset)
groups.add_command(dead_letters)


def _list(zk: str, *, as_json: bool) -> None:
    with connected(zk) as client:
        listings = [_with_all_partitions(client, listing) for listing in list_groups(client.session)]
        ends = _ask(client, listings)
    columns = ("group", "members", "topics", "partitions", "unowned", "lag", "seconds")
    rows = [_group_row(listing, ends) for listing in listings]
    print_rows(columns, rows, as_json=as_json, empty="no consumer group has read anything yet")


def _with_all_partitions(client: Client, listing: GroupListing, more: Collection[str] = ()) -> GroupListing:
    """Add the partitions of its topics, and of *more*, that have no owner and no stored offset."""
    known = {(progress.topic, progress.partition): progress for progress in listing.progress}
    for topic in sorted({topic for topic, _ in known}.union(more, *listing.members.values())):
        for partition in subscribable_partitions(read_topic(client.session, TopicKind.SUB, topic)):
            known.setdefault((topic, partition), PartitionProgress(topic, partition, None, None))
    return GroupListing(listing.group, listing.members, tuple(known[key] for key in sorted(known)))


def _stored_elsewhere(client: Client, listing: GroupListing, store: str) -> GroupListing:
    """Replace the offsets by those of *store*. Raises OffsetStoreErrors."""
    progress = []
    with opened_store(client, listing.group, store, is_for_reading=True) as offsets:
        for it in listing.progress:
            offset = offsets.load(it.topic, it.partition)
            progress.append(replace(it, stored=None if offset is None else OffsetNode(offset)))
    return replace(listing, progress=tuple(progress))


def _ask(client: Client, listings: list[GroupListing]) -> _Ends:
    """Ask the running brokers about everything in *listings*. Brokers that do not answer are named on stderr."""
    positions = Positions(client)
    keys = {(p.topic, p.partition) for listing in listings for p in listing.progress}
    ends = {key: found.end for key, found in positions.ranges(keys).items()}
    put_ms: dict[tuple[str, TopicPartition], int] = {}
    for listing in listings:
        behind = {
            key: p.stored.offset
            for p in listing.progress
            if p.stored is not None and p.stored.offset < ends.get(key := (p.topic, p.partition), 0)
        }
        put_ms |= {(listing.group, key): at for key, at in positions.put_times(behind).items()}
    return _Ends(ends, put_ms, time.time_ns() // 1_000_000)


def _partition_row(listing: GroupListing, progress: PartitionProgress, ends: _Ends) -> dict[str, object]:
    key = progress.topic, progress.partition
    lag, seconds = _behind(listing.group, progress, ends)
    return {
        "group": listing.group,
        "topic": progress.topic,
        "partition": str(progress.partition),
        "offset": None if progress.stored is None else progress.stored.offset,
        "end": ends.ends.get(key),
        "lag": lag,
        "seconds": seconds,
        "owner": progress.owner,
    }


def _group_row(listing: GroupListing, ends: _Ends) -> dict[str, object]:
    behind = [_behind(listing.group, progress, ends) for progress in listing.progress]
    lags = [lag for lag, _ in behind if lag is not None]
    ages = [seconds for _, seconds in behind if seconds is not None]
    return {
        "group": listing.group,
        "members": len(listing.members),
        "topics": ",".join(sorted({progress.topic for progress in listing.progress})),
        "partitions": len(listing.progress),
        "unowned": sum(progress.owner is None for progress in listing.progress),
        "lag": sum(lags) if lags else None,
        "seconds": max(ages) if ages else None,
    }


def _behind(group: str, progress: PartitionProgress, ends: _Ends) -> tuple[int | None, float | None]:
    """Return the lag in bytes, and the age of the first unconsumed message in seconds. None: unknown."""
    key = progress.topic, progress.partition
    end = ends.ends.get(key)
    if end is None or progress.stored is None:
        return None, None
    lag = max(0, end - progress.stored.offset)
    if not lag:
        return 0, 0.0
    put_ms = ends.put_ms.get((group, key))
    return lag, None if put_ms is None else max(0.0, round((ends.now_ms - put_ms) / 1000, 1))
