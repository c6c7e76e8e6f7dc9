"""Owner nodes in ZooKeeper: at most one consumer of a group owns a partition (spec 9.3, 9.8)."""

from collections.abc import Collection, Mapping

from zk.errors import MalformedNode, RefusedNode
from zk.session.session import ZooKeeperSession
from zk.tree.claims import Claimed, OwnedBy, OwnerPaths, Unclaimable, plan_claim, plan_release
from zk.tree.nodes import Partition, TopicPartition
from zk.tree.paths import PartitionKey, PartitionNode, Paths
from zk.tree.transactions import Create, NodeTransaction, RefusalReason, Remove

ClaimOutcome = Claimed | OwnedBy | Unclaimable


class Ownership:
    """The owner nodes of one consumer. One thread; raises ZooKeeperUnavailable.

    After LOST every node is gone: forget what was owned, do not release it.
    """

    def __init__(self, session: ZooKeeperSession, group: str, consumer_id: str) -> None:
        self._session = session
        self._group = group
        self._consumer_id = consumer_id

    def claim_many(
        self, keys: Collection[TopicPartition], epochs_min: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, ClaimOutcome]:
        """Claim partitions, in three round trips. Returns a Claimed, the present owner, or an Unclaimable for each.

        Every claim, a repeated one too, raises the partition's epoch, to *epochs_min* at least. If it raises an error,
        any of them may be claimed: claim them again, or release them.
        """
        places = {key: self._place(key) for key in keys}
        outcomes: dict[TopicPartition, ClaimOutcome] = {}
        while pending := [key for key in places if key not in outcomes]:
            nodes, denied = self._session.read_readable(
                [path for key in pending for path in (places[key].owner, places[key].epoch)]
            )
            session_id = self._session.session_id
            planned: list[tuple[TopicPartition, NodeTransaction, Claimed]] = []
            for key in pending:
                place, epoch_min = places[key], (epochs_min or {}).get(key, 0)
                if (error := denied.get(place.owner) or denied.get(place.epoch)) is not None:
                    outcomes[key] = self._unclaimable(error)
                    continue
                try:
                    plan = plan_claim(
                        place, self._consumer_id, session_id, nodes.get(place.owner), nodes.get(place.epoch), epoch_min
                    )
                except MalformedNode as malformed:
                    outcomes[key] = self._unclaimable(malformed)
                    continue
                if isinstance(plan, OwnedBy):
                    outcomes[key] = plan
                else:
                    planned.append((key, *plan))
            refusals = self._session.transact_each([transaction for _, transaction, _ in planned])
            without_parent = []
            for (key, _, claimed), refused in zip(planned, refusals, strict=True):
                if refused is None:
                    outcomes[key] = claimed
                elif isinstance(refused, RefusedNode):
                    outcomes[key] = self._unclaimable(refused)
                elif refused.reason is RefusalReason.MISSING and isinstance(refused.operation, Create):
                    without_parent.append(refused.operation.path)
            self._session.ensure_parents(without_parent)
        return outcomes

    def _unclaimable(self, error: MalformedNode | RefusedNode) -> Unclaimable:
        self._session.malformed.skip(error)
        return Unclaimable(error)

    def release_many(self, claims: Mapping[TopicPartition, Claimed]) -> dict[TopicPartition, bool]:
        """Release partitions, pipelined. Returns False for each that this consumer did not own any more. If it raises,
        any of them may be released: release them again."""
        refusals = self._session.transact_many([plan_release(self._place(key), c) for key, c in claims.items()])
        return {key: refused is None for key, refused in zip(claims, refusals, strict=True)}

    def abandon_many(self, keys: Collection[TopicPartition]) -> None:
        """Release those of *keys* that this consumer owns. For claims whose reply was lost, and lost partitions."""
        places = [self._place(key) for key in keys]
        nodes = self._session.read_many([place.owner for place in places])
        ours = self._session.session_id, self._consumer_id.encode()
        removals: list[NodeTransaction] = [
            (Remove(path, node.version),) for path, node in nodes.items() if (node.session_id, node.data) == ours
        ]
        self._session.transact_many(removals)  # a refused one has a new owner

    def _place(self, key: TopicPartition) -> OwnerPaths:
        return owner_paths(self._session.paths, self._group, key)


def owner_paths(paths: Paths, group: str, key: TopicPartition) -> OwnerPaths:
    """Return the paths of a partition's owner and epoch nodes."""
    return OwnerPaths(
        paths.of(PartitionKey(PartitionNode.OWNER, group, *key)),
        paths.of(PartitionKey(PartitionNode.OWNER_EPOCH, group, *key)),
    )


def read_owned(session: ZooKeeperSession, group: str, topic: str) -> frozenset[Partition]:
    """Return the partitions of a topic that have an owner; one request. Raises ZooKeeperUnavailable."""
    children = session.children(session.paths.owners(group, topic))
    return frozenset(partition for name in children if (partition := Partition.maybe_parse(name)) is not None)
