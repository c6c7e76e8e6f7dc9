"""`metaq groups reset`: sets a group's offsets while no member can continue from the old ones."""

import contextlib
import datetime
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import click

from meta_client.cli.listed import read_listed
from meta_client.cli.options import connected
from meta_client.cli.output import json_option, print_rows, zk_option
from meta_client.cli.places import Moment, PartitionName
from meta_client.cli.positions import Positions
from meta_client.cli.reset_plan import SHIFT_MAX, Move, ResetRefused, Target, plan_reset
from meta_client.cli.stores import opened_store, store_option
from meta_client.client import Client
from meta_client.consumer.config import check_group
from meta_client.consumer.offsets import OffsetEntry
from meta_client.consumer.plan import TopicPartition
from meta_client.consumer.position import milliseconds
from meta_client.net.identity import host_name
from zk.brokers.cluster import read_topic, subscribable_partitions
from zk.groups.listing import GroupListing, list_group
from zk.groups.offsets import ZooKeeperOffsets
from zk.groups.ownership import Ownership
from zk.tree.claims import Claimed, OwnedBy
from zk.tree.nodes import NO_MESSAGE_ID, OffsetNode, Partition
from zk.tree.paths import TopicKind

POLL_S: Final = 0.3


@click.command()
@click.argument("group")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; may be given again.")
@click.option("--partition", "partitions", multiple=True, type=PartitionName(), metavar="B-P", help="Only this one.")
@click.option("--to-earliest", is_flag=True, help="To the first message that is left.")
@click.option("--to-latest", is_flag=True, help="To the end: what is there now is passed over.")
@click.option("--to-offset", type=click.IntRange(0), metavar="N", help="To this offset, of one partition.")
@click.option("--to-time", type=Moment(), help="To what was put at this time or later. ISO 8601; local time.")
@click.option("--shift-by", type=click.IntRange(-SHIFT_MAX, SHIFT_MAX), metavar="N", help="N messages on; -N: back.")
@click.option("--to-group", metavar="NAME", help="To where group NAME is, as far as it has stored that.")
@click.option(
    "--to-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Back to where FILE says: what a reset, or describe, printed with --json.",
)
@store_option
@click.option("--wait", "wait_s", type=click.FloatRange(0), default=0, metavar="S", help="For members to leave.")
@click.option("--force", is_flag=True, help="Also if members are alive, unless they are genuine ones.")
@click.option("--yes", is_flag=True, help="Do it. Without, nothing is changed.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done, whatever else is said.")
@zk_option
@json_option
def reset(
    group: str,
    topics: tuple[str, ...],
    partitions: tuple[Partition, ...],
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_time: datetime.datetime | None,
    shift_by: int | None,
    to_group: str | None,
    to_file: Path | None,
    store: str | None,
    wait_s: float,
    force: bool,
    yes: bool,
    dry_run: bool,
    zk: str,
    as_json: bool,
) -> None:
    """Set GROUP to other offsets, and show them before and after, per partition.

    Of all its topics and partitions, unless --topic or --partition name some. Without --yes nothing is changed.
    Refused while a member of the group that reads these topics is alive: it would go on where it is, and store that.
    Stop the members, or give them --wait seconds to leave. While it works, the partitions belong to this command:
    members that start wait for it. Nothing is ever set outside of what a partition holds, or inside of a message.

    With --force members may be alive: in one step with its offset each partition is taken from its member, which
    can't store the old one any more, notices, and goes on from the new one. What it is working on at that moment is
    not undone. A genuine member can't be overruled, and is named.

    --store names where a group keeps its offsets that does so elsewhere than in ZooKeeper: an SQLAlchemy URL, with
    # and the table's name behind it if that is another one, or the directory of a LocalOffsetStore.

    \b
      metaq groups reset billing --to-time 2010-12-05T10:00
      metaq groups reset billing --topic orders --to-earliest --yes
      metaq groups reset billing --topic orders --partition 0-3 --to-offset 4096 --yes
      metaq groups reset billing --shift-by -100 --wait 30 --yes
      metaq groups reset billing-test --to-group billing --yes
      metaq groups reset billing --to-latest --yes --json > before.jsonl
      metaq groups reset billing --to-file before.jsonl --yes
      metaq groups reset ledger --store postgresql+psycopg:///shop --to-latest --yes
    """
    check_group(group)
    chosen = [it is not None for it in (to_offset, to_time, shift_by, to_group, to_file)] + [to_earliest, to_latest]
    if sum(chosen) != 1:
        raise click.UsageError("name one target, such as --to-earliest, --to-time or --to-offset")
    time_ms = None if to_time is None else milliseconds(to_time)
    is_listed = to_group is not None or to_file is not None
    target = Target(to_offset, time_ms, shift_by, is_listed, to_earliest, to_latest)
    if force and store is not None:
        raise click.UsageError("--force is for offsets in ZooKeeper: a database can't tell whose is the last word")
    acts = yes and not dry_run
    with connected(zk) as client, opened_store(client, group, store, is_for_reading=not acts) as offsets:
        listing = list_group(client.session, group)
        keys = _partitions_of(client, listing, topics, partitions)
        if to_offset is not None and len(keys) != 1:
            raise click.UsageError("--to-offset is for one partition: name it with --topic and --partition")
        is_held = acts and not force
        if is_held:
            _wait_for_members(client, group, keys, wait_s)
        elif not force and (alive := _alive(listing, keys)):
            click.echo(f"warning: {_members_text(group, alive)}", err=True)
        with contextlib.ExitStack() as held:
            claims = held.enter_context(_claimed(client, group, keys)) if is_held else {}
            before = {key: offsets.load(*key) for key in keys}
            listed = read_listed(to_file) if to_file is not None else _others(client, to_group, keys)
            positions = Positions(client)
            moves = plan_reset(client, positions, target, before, listed)
            if is_held:
                offsets.commit(_entries(moves, claims))
            elif acts:
                _overrule(client, positions, group, moves)
    rows = [_row(group, move, is_done=acts) for move in moves]
    print_rows(("group", "topic", "partition", "before", "after", "change", "done"), rows, as_json=as_json, empty="")
    if not acts:
        click.echo("nothing was changed" + ("" if dry_run else ": say --yes to do it"), err=True)


def _partitions_of(
    client: Client, listing: GroupListing, topics: tuple[str, ...], partitions: tuple[Partition, ...]
) -> list[TopicPartition]:
    """Return the selected partitions. Raises ResetRefused for missing ones."""
    known = {(progress.topic, progress.partition) for progress in listing.progress}
    names = set(topics) or {topic for topic, _ in known}.union(*listing.members.values())
    if not names:
        raise ResetRefused(f"group {listing.group} has read nothing yet: name topics with --topic, or correct its name")
    keys = {key for key in known if key[0] in names}
    for topic in names:
        offered = subscribable_partitions(read_topic(client.session, TopicKind.SUB, topic))
        if not offered:
            raise ResetRefused(f"no broker offers topic {topic}: see `metaq topics`")
        keys |= {(topic, partition) for partition in offered}
    if not partitions:
        return sorted(keys)
    if absent := [str(partition) for partition in partitions if partition not in {p for _, p in keys}]:
        raise ResetRefused(f"{', '.join(sorted(names))} has no partition {', '.join(absent)}: see `metaq offsets`")
    return sorted(key for key in keys if key[1] in partitions)


def _alive(listing: GroupListing, keys: list[TopicPartition]) -> list[str]:
    """Return the members that read any of these topics."""
    topics = {topic for topic, _ in keys}
    return [member for member, subscribed in listing.members.items() if subscribed & topics]


def _members_text(group: str, alive: list[str]) -> str:
    return f"group {group} has members alive, which would go on where they are: {', '.join(alive)}"


def _wait_for_members(client: Client, group: str, keys: list[TopicPartition], wait_s: float) -> None:
    """Return once no member reads these topics. Raises ResetRefused."""
    deadline = time.monotonic() + wait_s
    is_told = False
    while alive := _alive(list_group(client.session, group), keys):
        text = _members_text(group, alive)
        if time.monotonic() >= deadline:
            raise ResetRefused(
                f"{text}: stop them first, give them time with --wait SECONDS, or say --force; nothing was changed"
            )
        if not is_told:
            click.echo(f"waiting up to {wait_s:g} s: {text}", err=True)
            is_told = True
        time.sleep(POLL_S)


@contextlib.contextmanager
def _claimed(client: Client, group: str, keys: list[TopicPartition]) -> Iterator[Mapping[TopicPartition, Claimed]]:
    """Own the partitions: new members read no offset before it is set, and paused members store no old one afterwards.
    Raises ResetRefused."""
    ownership = Ownership(client.session, group, f"{group}_metaq-reset-{host_name()}-{os.getpid()}")
    try:
        outcomes = ownership.claim_many(keys)
        owned = {key: claimed for key, claimed in outcomes.items() if isinstance(claimed, Claimed)}
        if others := {outcome.consumer_id for outcome in outcomes.values() if isinstance(outcome, OwnedBy)}:
            raise ResetRefused(
                f"partitions still belong to {', '.join(sorted(others))}: it has just come, or is gone without a word; "
                "stop it, or wait for its session to end; nothing was changed"
            )
        yield owned
    finally:
        ownership.abandon_many(keys)


def _overrule(client: Client, positions: Positions, group: str, moves: list[Move]) -> None:
    """Set the offsets regardless of ownership. Raises ResetRefused."""
    nodes = {move.key: OffsetNode(move.after) for move in moves if move.after is not None}
    outcomes = ZooKeeperOffsets(client.session, group).commit_fencing_owners(nodes)
    epochs = {key: outcome for key, outcome in outcomes.items() if isinstance(outcome, int)}
    positions.tell_epochs(group, epochs)
    if owners := {outcome.consumer_id for outcome in outcomes.values() if isinstance(outcome, OwnedBy)}:
        done = f"{len(epochs)} partitions were set before it came" if epochs else "nothing was changed"
        raise ResetRefused(f"{', '.join(sorted(owners))} is a genuine member and can't be overruled: stop it; {done}")


def _others(client: Client, group: str | None, keys: list[TopicPartition]) -> dict[TopicPartition, int | None]:
    """Return another group's offsets in ZooKeeper. Raises ResetRefused if it has none of these partitions."""
    if group is None:
        return {}
    stored = {
        (progress.topic, progress.partition): progress.stored.offset
        for progress in list_group(client.session, check_group(group)).progress
        if progress.stored is not None
    }
    if not stored.keys() & set(keys):
        raise ResetRefused(f"group {group} has stored nothing of these partitions: see `metaq groups describe {group}`")
    return {key: stored.get(key) for key in keys}


def _entries(moves: list[Move], claims: Mapping[TopicPartition, Claimed]) -> list[OffsetEntry]:
    return [
        OffsetEntry(*move.key, move.after, NO_MESSAGE_ID, claims[move.key], is_reset=True)
        for move in moves
        if move.after is not None and move.after != move.before
    ]


def _row(group: str, move: Move, *, is_done: bool) -> dict[str, object]:
    topic, partition = move.key
    return {
        "group": group,
        "topic": topic,
        "partition": str(partition),
        "before": move.before,
        "after": move.after,
        "change": None if move.before is None or move.after is None else move.after - move.before,
        "done": is_done,
    }
