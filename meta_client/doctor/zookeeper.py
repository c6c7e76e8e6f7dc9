"""Examines the cluster's tree in ZooKeeper: every node that metaq skips, and the repair of those that are its own.

Only owner epochs are repaired, below `/meta/metaq/epochs`: metaq alone writes them, and a partition whose epoch is
gone gets one above what its broker has seen with its next claims. Every other node is a broker's, a consumer's, or an
operator's to correct, and may be a genuine client's.
"""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from meta_client.batches.decision import decode_decision
from zk.brokers.cluster_id import decode_cluster
from zk.brokers.journal_position import decode_position
from zk.brokers.replication import decode_replication
from zk.decisions.generation import decode_generation
from zk.errors import MalformedNode, RefusedNode
from zk.session.session import ZooKeeperSession
from zk.tree.claims import decode_epoch
from zk.tree.nodes import Node, decode_broker_url, decode_offset_node, decode_topic_node, decode_topics
from zk.tree.paths import (
    BrokerKey,
    BrokerNode,
    ClusterKey,
    ConsumerKey,
    ConsumerParentKey,
    DecisionTableKey,
    NodeKey,
    PartitionKey,
    PartitionNode,
    PresenceKey,
    QueryKey,
    ResetKey,
    TopicBrokerKey,
    TopicKind,
    TopicParentKey,
)


@dataclass(frozen=True, slots=True)
class MalformedTreeNode:
    """A node that metaq skips. *version*: of what was read; None: it could not be. *is_ours*: deleting it repairs it.
    *advice*: what an operator does about any other."""

    path: str
    problem: str
    version: int | None
    is_ours: bool
    advice: str


def examine(session: ZooKeeperSession) -> Iterator[MalformedTreeNode]:
    """Yield every malformed node of the tree, and every node that access rules deny. Reads only."""
    paths = session.paths
    roots = [
        paths.brokers,
        *(paths.topics(kind) for kind in TopicKind),
        paths.groups,
        f"{paths.root}/metaq",
    ]
    for root in roots:
        yield from _examine_below(session, root)


def _examine_below(session: ZooKeeperSession, parent: str) -> Iterator[MalformedTreeNode]:
    try:
        children = [f"{parent}/{child}" for child in sorted(session.children(parent))]
    except RefusedNode as error:
        yield _denied(error)
        return
    keys = {path: session.paths.maybe_parse(path) for path in children}
    nodes, refused = session.read_readable([path for path, key in keys.items() if key is not None])
    for path, key in keys.items():
        if (denied := refused.get(path)) is not None:
            yield _denied(denied)
        elif key is not None and (node := nodes.get(path)) is not None:
            yield from _examine_node(path, key, node)
        if _is_folder(key) and path not in refused:
            yield from _examine_below(session, path)


def _examine_node(path: str, key: NodeKey, node: Node) -> Iterator[MalformedTreeNode]:
    try:
        _decode(path, key, node)
    except MalformedNode as error:
        yield MalformedTreeNode(path, error.problem, node.version, _is_ours(key), _advice(key))


def _is_folder(key: NodeKey | None) -> bool:
    match key:
        case None | BrokerKey(BrokerNode.ADDRESS) | TopicParentKey() | ConsumerParentKey():
            return True
    return False


def _is_ours(key: NodeKey) -> bool:
    return isinstance(key, PartitionKey) and key.kind is PartitionNode.OWNER_EPOCH


def _decode(path: str, key: NodeKey, node: Node) -> None:
    """Read a node as metaq does. Raises MalformedNode."""
    match key:
        case BrokerKey(BrokerNode.ADDRESS) | PresenceKey():
            decode_broker_url(path, node.data)
        case TopicBrokerKey(TopicKind.PUB | TopicKind.SUB, _, name):
            decode_topic_node(path, node.data, name)
        case ConsumerKey():
            decode_topics(path, node.data)
        case PartitionKey(PartitionNode.OFFSET):
            decode_offset_node(path, node.data)
        case PartitionKey(PartitionNode.OWNER) | ResetKey() if not node.session_id:
            raise MalformedNode(path, node.data, "an ephemeral node, which ends with its owner")
        case ClusterKey():
            decode_cluster(path, node.data)
        case BrokerKey(BrokerNode.REPLICATION):
            decode_replication(path, node.data)
        case BrokerKey(BrokerNode.JOURNAL):
            decode_position(path, node.data)
        case DecisionTableKey():
            decode_generation(path, node.data)
        case QueryKey():
            decode_decision(path, node.data)
        case PartitionKey(PartitionNode.OWNER_EPOCH):
            decode_epoch(path, node.data)


def _advice(key: NodeKey) -> str:
    match key:
        case PartitionKey(PartitionNode.OWNER_EPOCH):
            return "--apply deletes it: the next claim makes it again"
        case PartitionKey(PartitionNode.OFFSET, group, topic, partition):
            what = shlex.join([group, f"{topic}/{partition}"])
            return f"metaq groups reset {what} --to earliest, or another place"
        case BrokerKey(BrokerNode.REPLICATION, broker_id):
            return (
                f"it decides which slaves may be promoted: stop broker {broker_id} and its slaves before you delete it"
            )
        case BrokerKey(BrokerNode.JOURNAL, broker_id):
            return (
                f"an older copy of broker {broker_id}'s directory is told by it: make sure that its directory is the "
                f"newest, then delete it, and the next start writes it"
            )
        case ClusterKey():
            return (
                "no broker starts until it can be read: write the id that each broker's directory has in `cluster-id`, "
                'as {"id":"..."}'
            )
        case DecisionTableKey():
            return (
                "a database that was restored to an earlier time is told by it, and until it can be read nothing is "
                "rolled back for want of a row: make sure that none was restored, then delete it"
            )
        case QueryKey(query):
            return f"it decides about the newest batch of Spark query {query}: end its branches by hand, then delete it"
        case PartitionKey(PartitionNode.OWNER) | ResetKey():
            return "no consumer made it: delete it"
    return "end the process that wrote it, or delete it"


def _denied(error: RefusedNode) -> MalformedTreeNode:
    return MalformedTreeNode(error.path, "can't be read: access rules deny it", None, False, "correct its access rules")


def open_nodes(session: ZooKeeperSession) -> Iterator[str]:
    """Yield every node of the tree that anybody may change or delete. Reads only."""
    paths = [session.paths.root]
    while paths:
        path = paths.pop()
        try:
            children = [f"{path}/{child}" for child in sorted(session.children(path))]
            is_open = session.is_open(path)
        except RefusedNode:  # nobody else may look
            continue
        if is_open:
            yield path
        paths += reversed(children)


def repair(session: ZooKeeperSession, found: Iterable[MalformedTreeNode]) -> set[str]:
    """Delete the nodes of *found* that are metaq's own, unless they changed since; returns the paths that are gone."""
    return {it.path for it in found if it.is_ours and it.version is not None and session.delete(it.path, it.version)}
