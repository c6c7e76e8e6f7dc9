"""Resets a group's offsets while no member can continue from the old ones."""

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, Literal

from meta_client.client import Client
from meta_client.consumer.config import check_group
from meta_client.consumer.offsets import OffsetEntry, OffsetStore
from meta_client.net.identity import host_name
from meta_client.operations.listed_offsets import read_listed
from meta_client.operations.positions import Positions
from meta_client.operations.reset_options import OtherGroup, SavedIn, Target
from meta_client.operations.reset_plan import Move, ResetRefused, plan_reset
from meta_client.operations.text import tell
from zk.brokers.cluster import read_topic, subscribable_partitions
from zk.errors import MalformedNode
from zk.groups.listing import GroupListing, list_group
from zk.groups.offsets import ZooKeeperOffsets
from zk.groups.ownership import Ownership
from zk.session.ephemerals import NodeHolder, claim_waiting, release
from zk.tree.claims import Claimed, OwnedBy, Unclaimable
from zk.tree.nodes import NO_MESSAGE_ID, OffsetNode, Partition, TopicPartition
from zk.tree.paths import ResetKey, TopicKind

POLL_S: Final = 0.3


def run_reset(
    client: Client,
    offsets: OffsetStore,
    group: str,
    keys: list[TopicPartition],
    target: Target,
    members: float | Literal["force"] | None,
    on_step: Callable[[list[Move], bool | None], object] = lambda moves, is_done: None,
) -> list[Move]:
    """Plan the reset of *keys* to *target*, and carry it out unless *members*, the rule about those alive, is None.

    Calls *on_step* with the moves and whether they are done. None comes first: what ends the reset from then on leaves
    that unknown. The last call comes before the partitions are released, which may be interrupted. Raises
    ResetRefused."""
    is_forced = members == "force"
    is_held = members is not None and not is_forced
    if is_held:
        assert not isinstance(members, str)
        assert members is not None
        _wait_for_members(client, group, keys, members)
    with contextlib.ExitStack() as held:
        if members is not None:
            held.enter_context(_alone(client, group))
        claims = held.enter_context(claimed(client, group, keys)) if is_held else {}
        before = {key: _stored(offsets, key) for key in keys}
        positions = Positions(client)
        moves = plan_reset(positions, target, before, _listed(client, target, keys))
        if members is not None:  # before it is done: without a line it is not
            told = {it.key: (it.before, it.after) for it in moves if it.after is not None and it.after != it.before}
            positions.tell_reset(group, told)
            on_step(moves, None)
        if is_held:
            offsets.commit(_entries(moves, claims))
        elif is_forced:
            owners, count = _overrule(client, positions, group, moves)
            if owners:
                if not count:
                    on_step(moves, False)
                done = f"{count} partitions were set before it came" if count else "nothing was changed"
                raise ResetRefused(f"{', '.join(owners)} is a genuine member and can't be overruled: stop it; {done}")
        on_step(moves, members is not None)
    return moves


def _stored(offsets: OffsetStore, key: TopicPartition) -> int | None:
    """Return the stored offset; None for a node that can't be read, which the reset replaces."""
    try:
        return offsets.load(*key)
    except MalformedNode as error:
        tell(f"warning: {error}")
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


def members_text(group: str, alive: list[str]) -> str:
    return f"group {group} has members alive, which would go on where they are: {', '.join(alive)}"


def _wait_for_members(client: Client, group: str, keys: list[TopicPartition], wait_s: float) -> None:
    """Return once no member reads these topics. Raises ResetRefused."""
    deadline = time.monotonic() + wait_s
    is_told = False
    while alive := alive_members(list_group(client.session, group), keys):
        text = members_text(group, alive)
        if time.monotonic() >= deadline:
            raise ResetRefused(
                f"{text}: stop them, or say --members wait:SECONDS or --members force; nothing was changed"
            )
        if not is_told:
            tell(f"waiting up to {wait_s:g} s: {text}")
            is_told = True
        time.sleep(POLL_S)


@contextlib.contextmanager
def _alone(client: Client, group: str) -> Iterator[None]:
    """Make any other reset of *group* wait: two at once would leave a mixture. Raises ResetRefused."""
    session, path = client.session, client.session.paths.of(ResetKey(group))

    def on_wait(holder: NodeHolder, wait_s: float) -> None:
        tell(f"waiting up to {wait_s:.0f} s: {holder.data.decode(errors='replace')} resets group {group}")

    holder = claim_waiting(session, path, _own_name().encode(), progress=on_wait, cancelled=threading.Event())
    if holder is not None:
        raise ResetRefused(
            f"{holder.data.decode(errors='replace')} resets group {group}: wait for it to end; nothing was changed"
        )
    try:
        yield
    finally:
        release(session, path)


def _own_name() -> str:
    """Return a unique name: containers share host name and process id, and one's claim would be the other's."""
    return f"metaq-reset-{host_name()}-{os.getpid()}-{secrets.token_hex(8)}"


@contextlib.contextmanager
def claimed(client: Client, group: str, keys: list[TopicPartition]) -> Iterator[Mapping[TopicPartition, Claimed]]:
    """Own the partitions: new members read no offset before it is set, and paused members store no old one afterwards.
    Raises ResetRefused."""
    ownership = Ownership(client.session, group, f"{group}_{_own_name()}")
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


def _overrule(client: Client, positions: Positions, group: str, moves: list[Move]) -> tuple[list[str], int]:
    """Set the offsets regardless of ownership. Return the genuine owners that prevented it, and how many were set."""
    nodes = {move.key: OffsetNode(move.after) for move in moves if move.after is not None}
    outcomes = ZooKeeperOffsets(client.session, group).commit_fencing_owners(nodes)
    epochs = {key: outcome for key, outcome in outcomes.items() if isinstance(outcome, int)}
    positions.tell_epochs(group, epochs)
    owners = {outcome.consumer_id for outcome in outcomes.values() if isinstance(outcome, OwnedBy)}
    return sorted(owners), len(epochs)


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


def move_row(group: str, move: Move, *, is_done: bool | None) -> dict[str, object]:
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
