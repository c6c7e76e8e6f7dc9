"""`metaq groups reset`: sets a group's offsets while no member can continue from the old ones."""

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Final, Literal

import click

from meta_client.cli.listed import read_listed
from meta_client.cli.options import connected
from meta_client.cli.output import json_option, print_rows, zk_option
from meta_client.cli.positions import Positions
from meta_client.cli.reset_options import MemberRule, OtherGroup, PlaceName, ResetTarget, SavedIn, Target
from meta_client.cli.reset_plan import Move, ResetRefused, plan_reset
from meta_client.cli.stores import opened_store, store_option
from meta_client.client import Client
from meta_client.consumer.config import check_group
from meta_client.consumer.offsets import OffsetEntry, OffsetStore
from meta_client.net.identity import host_name
from zk.brokers.cluster import read_topic, subscribable_partitions
from zk.errors import MalformedNode
from zk.groups.listing import GroupListing, list_group
from zk.groups.offsets import ZooKeeperOffsets
from zk.groups.ownership import Ownership
from zk.tree.claims import Claimed, OwnedBy, Unclaimable
from zk.tree.nodes import NO_MESSAGE_ID, OffsetNode, Partition, TopicPartition
from zk.tree.paths import TopicKind

POLL_S: Final = 0.3


@click.command()
@click.argument("group")
@click.argument("places", nargs=-1, type=PlaceName(), metavar="[TOPIC[/B-P]]...")
@click.option("--to", "targets", multiple=True, type=ResetTarget(), metavar="TARGET", help="Where to: see above.")
@store_option
@click.option(
    "--members",
    type=MemberRule(),
    metavar="RULE",
    default="refuse",
    show_default=True,
    help="If members are alive: refuse; wait:S, up to S seconds for them to leave; or force, unless they are genuine.",
)
@click.option("--yes", is_flag=True, help="Do it. Without, nothing is changed, only shown.")
@zk_option
@json_option
def reset(
    group: str,
    places: tuple[tuple[str | None, Partition | None], ...],
    targets: tuple[Target, ...],
    store: str | None,
    members: float | Literal["force"],
    yes: bool,
    zk: str,
    as_json: bool,
) -> None:
    """Set GROUP to other offsets, and show them before and after, per partition.

    Of all its topics and partitions, unless TOPIC, TOPIC/B-P, or /B-P for that partition of each topic, name some.
    Without --yes nothing is changed. TARGET is one of

    \b
      earliest          the first message that is left
      latest            the end: what is there now is passed over
      4096              an offset, of one partition
      +100, -100        so many messages on, or back, from where the group is
      2010-12-05T10:00  what was put at this time or later; ISO 8601, local time
      group:NAME        where group NAME is, as far as it has stored that
      file:FILE         what a reset, or describe, printed into FILE with --json

    Refused while a member of the group that reads these topics is alive: it would go on where it is, and store that.
    Stop the members, or give them time to leave with --members wait:SECONDS. While it works, the partitions belong to
    this command: members that start wait for it. Nothing is ever set outside of what a partition holds, or inside of
    a message.

    With --members force they may be alive: in one step with its offset each partition is taken from its member, which
    can't store the old one any more, notices, and goes on from the new one. What it is working on at that moment is
    not undone. A genuine member can't be overruled, and is named.

    --store names where a group keeps its offsets that does so elsewhere than in ZooKeeper: an SQLAlchemy URL, with
    # and the table's name behind it if that is another one, or the directory of a LocalOffsetStore.

    \b
      metaq groups reset billing --to 2010-12-05T10:00
      metaq groups reset billing orders --to earliest --yes
      metaq groups reset billing orders/0-3 --to 4096 --yes
      metaq groups reset billing --to -100 --members wait:30 --yes
      metaq groups reset billing-test --to group:billing --yes
      metaq groups reset billing --to latest --yes --json > before.jsonl
      metaq groups reset billing --to file:before.jsonl --yes
      metaq groups reset ledger --store postgresql+psycopg:///shop --to latest --yes
    """
    check_group(group)
    if len(targets) != 1:
        raise click.UsageError("name one target, such as --to earliest, --to 2010-12-05T10:00 or --to group:NAME")
    (target,) = targets
    is_forced = members == "force"
    if is_forced and store is not None:
        raise click.UsageError("--members force is for offsets in ZooKeeper: a database can't overrule members")
    with connected(zk) as client, opened_store(client, group, store, is_for_reading=not yes) as offsets:
        listing = list_group(client.session, group)
        keys = partitions_of(client, listing, places)
        if isinstance(target, int) and len(keys) != 1:
            raise click.UsageError(f"--to {target}, an offset, is for one partition: name it, like orders/0-3")
        if not (yes or is_forced) and (alive := alive_members(listing, keys)):
            click.echo(f"warning: {_members_text(group, alive)}", err=True)
        moves = run_reset(client, offsets, group, keys, target, members if yes else None)
    rows = [move_row(group, move, is_done=yes) for move in moves]
    print_rows(("group", "topic", "partition", "before", "after", "change", "done"), rows, as_json=as_json, empty="")
    if not yes:
        click.echo("nothing was changed: say --yes to do it", err=True)


def run_reset(
    client: Client,
    offsets: OffsetStore,
    group: str,
    keys: list[TopicPartition],
    target: Target,
    members: float | Literal["force"] | None,
) -> list[Move]:
    """Plan the reset of *keys* to *target*, and carry it out unless *members*, the rule about those alive, is None.

    Raises ResetRefused."""
    is_forced = members == "force"
    is_held = members is not None and not is_forced
    if is_held:
        assert not isinstance(members, str)
        assert members is not None
        _wait_for_members(client, group, keys, members)
    with contextlib.ExitStack() as held:
        claims = held.enter_context(_claimed(client, group, keys)) if is_held else {}
        before = {key: _stored(offsets, key) for key in keys}
        positions = Positions(client)
        moves = plan_reset(client, positions, target, before, _listed(client, target, keys))
        if is_held:
            offsets.commit(_entries(moves, claims))
        elif is_forced:
            _overrule(client, positions, group, moves)
    return moves


def _stored(offsets: OffsetStore, key: TopicPartition) -> int | None:
    """Return the stored offset; None for a node that can't be read, which the reset replaces."""
    try:
        return offsets.load(*key)
    except MalformedNode as error:
        click.echo(f"warning: {error}", err=True)
        return None


def partitions_of(
    client: Client, listing: GroupListing, places: Collection[tuple[str | None, Partition | None]]
) -> list[TopicPartition]:
    """Return the selected partitions. Raises ResetRefused for missing ones."""
    known = {(progress.topic, progress.partition) for progress in listing.progress}
    names = {topic for topic, _ in places if topic is not None}
    if len(names) < len(places) or not places:
        names |= {topic for topic, _ in known}.union(*listing.members.values())
    if not names:
        raise ResetRefused(f"group {listing.group} has read nothing yet: name topics behind it, or correct its name")
    keys = {key for key in known if key[0] in names}
    for topic in names:
        offered = subscribable_partitions(read_topic(client.session, TopicKind.SUB, topic))
        if not offered:
            hint = f", or write /{topic} for that partition" if Partition.maybe_parse(topic) else ""
            raise ResetRefused(f"no broker offers topic {topic}: see `metaq topics`{hint}")
        keys |= {(topic, partition) for partition in offered}
    chosen = set()
    for topic_name, partition_name in places or [(None, None)]:
        found = {key for key in keys if topic_name in (None, key[0]) and partition_name in (None, key[1])}
        if not found:
            topics = topic_name or ", ".join(sorted(names))
            raise ResetRefused(f"{topics} has no partition {partition_name}: see `metaq offsets`")
        chosen |= found
    return sorted(chosen)


def alive_members(listing: GroupListing, keys: list[TopicPartition]) -> list[str]:
    """Return the members that read any of these topics."""
    topics = {topic for topic, _ in keys}
    return [member for member, subscribed in listing.members.items() if subscribed & topics]


def _members_text(group: str, alive: list[str]) -> str:
    return f"group {group} has members alive, which would go on where they are: {', '.join(alive)}"


def _wait_for_members(client: Client, group: str, keys: list[TopicPartition], wait_s: float) -> None:
    """Return once no member reads these topics. Raises ResetRefused."""
    deadline = time.monotonic() + wait_s
    is_told = False
    while alive := alive_members(list_group(client.session, group), keys):
        text = _members_text(group, alive)
        if time.monotonic() >= deadline:
            raise ResetRefused(
                f"{text}: stop them, or say --members wait:SECONDS or --members force; nothing was changed"
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
        for outcome in outcomes.values():
            if isinstance(outcome, Unclaimable):
                raise ResetRefused(f"{outcome.error}; nothing was changed: see `metaq doctor zookeeper`")
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


def _listed(client: Client, target: Target, keys: list[TopicPartition]) -> Mapping[TopicPartition, int | None]:
    """Return the offsets of a file, or of another group in ZooKeeper. Raises ResetRefused if it has none of these."""
    match target:
        case SavedIn(path):
            return read_listed(path)
        case OtherGroup(name):
            progress = list_group(client.session, check_group(name)).progress
        case _:
            return {}
    stored = {(it.topic, it.partition): it.stored.offset for it in progress if it.stored is not None}
    if not stored.keys() & set(keys):
        raise ResetRefused(f"group {name} has stored nothing of these partitions: see `metaq groups describe {name}`")
    return {key: stored.get(key) for key in keys}


def _entries(moves: list[Move], claims: Mapping[TopicPartition, Claimed]) -> list[OffsetEntry]:
    return [
        OffsetEntry(*move.key, move.after, NO_MESSAGE_ID, claims[move.key], is_reset=True)
        for move in moves
        if move.after is not None and move.after != move.before
    ]


def move_row(group: str, move: Move, *, is_done: bool) -> dict[str, object]:
    """Return the row of one partition."""
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
