"""The cluster's id: a random name that its first broker writes once below `/meta/metaq`, and that never changes.

Every broker's directory keeps it, so that one that is started with another cluster's ZooKeeper notices.
"""

import uuid
from typing import Annotated, Final

import msgspec

from zk.brokers.json_node import JsonNode
from zk.session.session import ZooKeeperSession
from zk.tree.paths import ClusterKey

# Of a lower-case UUID.
CLUSTER_ID_PATTERN: Final = r"\A[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z"


class ClusterNode(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the node."""

    id: Annotated[str, msgspec.Meta(pattern=CLUSTER_ID_PATTERN)]


_NODES: Final = JsonNode[None, ClusterNode](
    ClusterNode, lambda _: ClusterKey(), 1024, 'the cluster\'s id, as {"id":"..."}'
)
decode_cluster = _NODES.decode


def read_cluster_id(session: ZooKeeperSession) -> str | None:
    """Return the cluster's id; None: no broker that knows of it has registered there. Raises MalformedNode,
    RefusedNode, ZooKeeperUnavailable."""
    node = _NODES.read(session, None).node
    return None if node is None else node.id


def name_cluster(session: ZooKeeperSession, cluster_id: str) -> str:
    """Write *cluster_id* unless the cluster has an id; return the one that it has then. Of several brokers at once, one
    wins. Raises as `read_cluster_id`."""
    while (found := read_cluster_id(session)) is None:
        if _NODES.write(session, None, ClusterNode(id=cluster_id), None) is not None:
            return cluster_id
    return found


def new_cluster_id() -> str:
    """Return a random id."""
    return str(uuid.uuid4())
