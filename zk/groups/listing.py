"""Consumer groups as an operator sees them: members, owners, offsets. Reads only."""

from collections.abc import Mapping
from dataclasses import dataclass

from zk.errors import RefusedNode
from zk.session.session import ZooKeeperSession
from zk.tree.nodes import OffsetNode, Partition, decode_offset_node, decode_topics, string_order
from zk.tree.paths import ConsumerParentKey, PartitionKey, PartitionNode, is_name


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """One partition of one topic for a group: its owner and its stored offset, None if there is none, or if it
    *is_malformed*."""

    topic: str
    partition: Partition
    owner: str | None = None
    stored: OffsetNode | None = None
    is_malformed: bool = False


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One group. Members by consumer id with their topics; progress by topic and partition. *topics*: those of which
    it ever owned a partition, as its members may be gone before they stored an offset."""

    group: str
    members: Mapping[str, frozenset[str]]
    progress: tuple[PartitionProgress, ...]
    topics: frozenset[str] = frozenset()


def read_group_names(session: ZooKeeperSession) -> list[str]:
    """Return all groups that ever consumed, sorted."""
    return sorted(session.children(session.paths.groups))


def list_group(session: ZooKeeperSession, group: str) -> GroupListing:
    """Read one group. Not a snapshot: concurrent changes may be seen in part.

    A malformed node costs what it would tell: a member's topics, a partition's offset. `session.malformed` has it.
    """
    paths = session.paths
    parent = paths.of(ConsumerParentKey(group))
    members = {f"{parent}/{child}": child for child in sorted(_children(session, parent), key=string_order)}
    subscribed = session.malformed.read(session.read_readable, members, decode_topics)
    topics_of = {child: subscribed.get(path, frozenset[str]()) for path, child in members.items()}
    folders = [
        (topic, f"{paths.groups}/{group}/{folder}/{topic}")
        for folder in ("owners", "offsets")
        for topic in _children(session, f"{paths.groups}/{group}/{folder}")
        if is_name(topic)
    ]
    places = {
        (topic, partition)
        for topic, path in folders
        for child in _children(session, path)
        if (partition := Partition.maybe_parse(child)) is not None
    }
    owner_paths = {key: paths.of(PartitionKey(PartitionNode.OWNER, group, *key)) for key in places}
    offset_paths = {key: paths.of(PartitionKey(PartitionNode.OFFSET, group, *key)) for key in places}
    read, reader = session.malformed.read, session.read_readable
    owners = read(reader, owner_paths.values(), lambda _, data: data.decode(errors="replace"))
    offsets = read(reader, offset_paths.values(), decode_offset_node)
    bad = session.malformed.found
    progress = [
        PartitionProgress(
            *key, owners.get(owner_paths[key]), offsets.get(offset_paths[key]), is_malformed=offset_paths[key] in bad
        )
        for key in sorted(places)
    ]
    return GroupListing(group, topics_of, tuple(progress), frozenset(topic for topic, _ in folders))


def list_groups(session: ZooKeeperSession) -> list[GroupListing]:
    """Read every group, each as list_group does."""
    return [list_group(session, group) for group in read_group_names(session) if is_name(group)]


def _children(session: ZooKeeperSession, path: str) -> list[str]:
    try:
        return session.children(path)
    except RefusedNode as error:
        session.malformed.skip(error)
        return []
