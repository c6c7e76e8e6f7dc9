"""Consumer groups as an operator sees them: members, owners, offsets. Reads only."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

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
    it ever owned a partition, as its members may be gone before they stored an offset. *is_whole* False: access rules
    deny a folder of it, so that there may be more."""

    group: str
    members: Mapping[str, frozenset[str]]
    progress: tuple[PartitionProgress, ...]
    topics: frozenset[str] = frozenset()
    is_whole: bool = True


def read_group_names(session: ZooKeeperSession) -> list[str]:
    """Return all groups that ever consumed, sorted."""
    return sorted(session.children(session.paths.groups))


def list_group(session: ZooKeeperSession, group: str) -> GroupListing:
    """Read one group, as list_groups does."""
    (listing,) = list_groups(session, [group])
    return listing


def list_groups(session: ZooKeeperSession, groups: Collection[str] | None = None) -> list[GroupListing]:
    """Read groups, None: all, pipelined. Not a snapshot: concurrent changes may be seen in part.

    A malformed node costs what it would tell: a member's topics, a partition's offset. `session.malformed` has it.
    """
    if groups is None:
        groups = list(filter(is_name, read_group_names(session)))
    paths = session.paths
    ids = {paths.of(ConsumerParentKey(group)): group for group in groups}
    folders = {f"{paths.groups}/{group}/{name}": group for group in groups for name in ("owners", "offsets")}
    below = session.malformed.children(session.children_readable, [*ids, *folders])
    topics = {
        f"{path}/{topic}": (group, topic)
        for path, group in folders.items()
        for topic in below.get(path, ())
        if is_name(topic)
    }
    found = session.malformed.children(session.children_readable, topics)
    places = {
        (*topics[path], partition)
        for path, children in found.items()
        for child in children
        if (partition := Partition.maybe_parse(child)) is not None
    }
    members = {
        f"{path}/{child}": (group, child)
        for path, group in ids.items()
        for child in sorted(below.get(path, ()), key=string_order)
    }
    owner_paths = {place: paths.of(PartitionKey(PartitionNode.OWNER, *place)) for place in places}
    offset_paths = {place: paths.of(PartitionKey(PartitionNode.OFFSET, *place)) for place in places}
    read, reader = session.malformed.read, session.read_readable
    subscribed = read(reader, members, decode_topics)
    owners = read(reader, owner_paths.values(), lambda _, data: data.decode(errors="replace"))
    offsets = read(reader, offset_paths.values(), decode_offset_node)
    bad = session.malformed.found

    topics_of: dict[str, dict[str, frozenset[str]]] = {group: {} for group in groups}
    for path, (group, child) in members.items():
        topics_of[group][child] = subscribed.get(path, frozenset())
    progress: dict[str, list[PartitionProgress]] = {group: [] for group in groups}
    for place in sorted(places):
        owner, stored = owners.get(owner_paths[place]), offsets.get(offset_paths[place])
        progress[place[0]].append(PartitionProgress(*place[1:], owner, stored, offset_paths[place] in bad))
    met: dict[str, set[str]] = {group: set() for group in groups}
    for group, topic in topics.values():
        met[group].add(topic)
    denied = {group for path, group in (ids | folders).items() if path in bad}
    denied |= {group for path, (group, _) in topics.items() if path in bad}
    return [
        GroupListing(group, topics_of[group], tuple(progress[group]), frozenset(met[group]), group not in denied)
        for group in groups
    ]
