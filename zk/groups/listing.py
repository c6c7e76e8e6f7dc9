"""Consumer groups as an operator sees them: members, owners, offsets. Reads only."""

from collections.abc import Mapping
from dataclasses import dataclass

from zk.session.session import ZooKeeperSession
from zk.tree.nodes import OffsetNode, Partition, decode_offset_node, decode_topics, string_order
from zk.tree.paths import ConsumerKey, ConsumerParentKey, OwnerKey, StoredOffsetKey, check_name


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """One partition of one topic for a group: its owner and its stored offset, None if there is none."""

    topic: str
    partition: Partition
    owner: str | None
    stored: OffsetNode | None


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One group. Members by consumer id with their topics; progress by topic and partition."""

    group: str
    members: Mapping[str, frozenset[str]]
    progress: tuple[PartitionProgress, ...]


def read_group_names(session: ZooKeeperSession) -> list[str]:
    """Return all groups that ever consumed, sorted."""
    return sorted(session.children(session.paths.groups))


def list_group(session: ZooKeeperSession, group: str) -> GroupListing:
    """Read one group. Not a snapshot: concurrent changes may be seen in part. Raises MalformedNode."""
    paths = session.paths
    ids = session.children(paths.of(ConsumerParentKey(group)))
    members = {paths.of(ConsumerKey(group, child)): child for child in sorted(ids, key=string_order)}
    topics_of = {members[path]: decode_topics(path, node.data) for path, node in session.read_many(members).items()}
    places = {
        (topic, partition)
        for folder in ("owners", "offsets")
        for topic in session.children(f"{paths.groups}/{check_name(group)}/{folder}")
        for child in session.children(f"{paths.groups}/{group}/{folder}/{topic}")
        if (partition := Partition.maybe_parse(child)) is not None
    }
    owner_paths = {key: paths.of(OwnerKey(group, *key)) for key in places}
    offset_paths = {key: paths.of(StoredOffsetKey(group, *key)) for key in places}
    nodes = session.read_many([*owner_paths.values(), *offset_paths.values()])
    progress = []
    for key in sorted(places):
        owner, stored = nodes.get(owner_paths[key]), nodes.get(offset_paths[key])
        progress.append(
            PartitionProgress(
                *key,
                owner=None if owner is None else owner.data.decode(errors="replace"),
                stored=None if stored is None else decode_offset_node(offset_paths[key], stored.data),
            )
        )
    return GroupListing(group, topics_of, tuple(progress))


def list_groups(session: ZooKeeperSession) -> list[GroupListing]:
    """Read every group, each as list_group does."""
    return [list_group(session, group) for group in read_group_names(session)]
