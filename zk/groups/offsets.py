"""Offsets of a consumer group, stored in ZooKeeper (spec 6.3, 8.10)."""

from collections.abc import Collection, Mapping

from zk.errors import RefusedNode
from zk.groups.ownership import owner_paths
from zk.session.session import ZooKeeperSession
from zk.tree.claims import Claimed, OwnedBy, ownership_check, plan_fencing
from zk.tree.nodes import OffsetNode, Partition, TopicPartition, decode_offset_node
from zk.tree.paths import PartitionKey, PartitionNode
from zk.tree.transactions import Check, Create, NodeTransaction, RefusalReason, Write


class ZooKeeperOffsets:
    """Loads and commits the offsets of one group. Any thread; raises ZooKeeperUnavailable.

    The caller decides which offsets to commit, and when. Committing a lower offset than stored moves the group back.
    """

    def __init__(self, session: ZooKeeperSession, group: str) -> None:
        self._session = session
        self._group = group

    def load(self, topic: str, partition: Partition) -> OffsetNode | None:
        """Return the stored offset, or None if none was ever stored. Raises MalformedNode."""
        return self.load_many([(topic, partition)]).get((topic, partition))

    def load_many(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, OffsetNode]:
        """Return the stored offsets of many partitions. Omits those without one. Raises MalformedNode."""
        paths = {self._path(key): key for key in wanted}
        return {
            paths[path]: decode_offset_node(path, node.data) for path, node in self._session.read_many(paths).items()
        }

    def commit(self, offsets: Mapping[TopicPartition, OffsetNode]) -> None:
        """Store offsets without checking ownership, pipelined; durable in ZooKeeper on return. If it raises, any subset
        may be stored: commit them again."""
        self._session.write_many({self._path(key): node.encode() for key, node in offsets.items()})

    def commit_as_owner(self, offsets: Mapping[TopicPartition, tuple[OffsetNode, Claimed]]) -> list[TopicPartition]:
        """Store each offset only if its partition is still owned as claimed. Returns the partitions that are not, and
        stores nothing for them: a process stopped beyond its session's end cannot move the group back.

        Raises RefusedNode for a node that access rules deny, once the other offsets are stored.
        """
        stale: list[TopicPartition] = []
        denied: RefusedNode | None = None
        writing = dict.fromkeys(offsets, True)  # True: the node is assumed to exist
        while writing:
            refusals = self._session.transact_each(
                [self._plan(key, *offsets[key], exists=exists) for key, exists in writing.items()]
            )
            retries: dict[TopicPartition, bool] = {}
            without_parent = []
            for (key, _), refused in zip(writing.items(), refusals, strict=True):
                if isinstance(refused, RefusedNode):
                    denied = denied or refused
                    continue
                match refused.operation if refused is not None else None:
                    case Check():
                        stale.append(key)
                    case Write():
                        retries[key] = False
                    case Create(path=path):  # made meanwhile, or its parent is missing
                        assert refused is not None
                        if refused.reason is RefusalReason.MISSING:
                            without_parent.append(path)
                        retries[key] = refused.reason is RefusalReason.EXISTS
            self._session.ensure_parents(without_parent)
            writing = retries
        if denied is not None and not stale:
            raise denied
        return stale

    def commit_fencing_owners(
        self, offsets: Mapping[TopicPartition, OffsetNode]
    ) -> dict[TopicPartition, int | OwnedBy]:
        """Store offsets for an operator and fence the owners: each offset in one transaction with a raise of the
        partition's epoch, so that the owner can store nothing more. Returns the new epochs.

        OwnedBy: a genuine member owns the partition, and its next commit would undo this; nothing is stored for it, and
        nothing at all if the first read finds one. Raises MalformedNode; if it raises, any subset may be stored.
        """
        outcomes: dict[TopicPartition, int | OwnedBy] = {}
        places = {key: owner_paths(self._session.paths, self._group, key) for key in offsets}
        while pending := [key for key in offsets if key not in outcomes]:
            paths = {key: (places[key].owner, places[key].epoch, self._path(key)) for key in pending}
            nodes = self._session.read_many([path for three in paths.values() for path in three])
            planned: dict[TopicPartition, tuple[NodeTransaction, int]] = {}
            for key, (owner, epoch, path) in paths.items():
                plan = plan_fencing(places[key], nodes.get(owner), nodes.get(epoch))
                if isinstance(plan, OwnedBy):
                    outcomes[key] = plan
                    continue
                operations, number = plan
                data = offsets[key].encode()
                planned[key] = (*operations, Write(path, data) if path in nodes else Create(path, data)), number
            if outcomes and len(pending) == len(offsets):
                return outcomes
            refusals = self._session.transact_many([transaction for transaction, _ in planned.values()])
            for (key, (_, number)), refused in zip(planned.items(), refusals, strict=True):
                if refused is None:
                    outcomes[key] = number
                elif refused.reason is RefusalReason.MISSING and isinstance(refused.operation, Create):
                    self._session.ensure_parents([refused.operation.path])
        return outcomes

    def _plan(self, key: TopicPartition, node: OffsetNode, claimed: Claimed, *, exists: bool) -> NodeTransaction:
        path, data = self._path(key), node.encode()
        fence = ownership_check(owner_paths(self._session.paths, self._group, key), claimed)
        return (*fence, Write(path, data) if exists else Create(path, data))

    def _path(self, key: TopicPartition) -> str:
        return self._session.paths.of(PartitionKey(PartitionNode.OFFSET, self._group, *key))
