"""Offsets of a consumer group, stored in ZooKeeper (spec 6.3, 8.10)."""

from collections.abc import Collection, Mapping

from zk.claims import Claimed, OwnedBy, plan_overrule, still_ours
from zk.nodes import OffsetNode, Partition, decode_offset_node
from zk.ownership import owner_place
from zk.paths import StoredOffset
from zk.session import ZooKeeperSession
from zk.transactions import Check, Create, Transaction, Why, Write

TopicPartition = tuple[str, Partition]


class ZooKeeperOffsets:
    """Loads and commits the offsets of one group. Any thread; raises ZooKeeperUnavailable.

    Which offsets have changed and when to commit them is the caller's business. Nothing here compares: who
    commits a lower offset than stored moves the group back.
    """

    def __init__(self, session: ZooKeeperSession, group: str) -> None:
        self._session = session
        self._group = group

    def load(self, topic: str, partition: Partition) -> OffsetNode | None:
        """The stored offset; None when none was ever stored. Raises MalformedNode."""
        return self.load_many([(topic, partition)]).get((topic, partition))

    def load_many(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, OffsetNode]:
        """Stored offsets of many partitions, those without one left out. Raises MalformedNode."""
        paths = {self._path(key): key for key in wanted}
        return {
            paths[path]: decode_offset_node(path, node.data) for path, node in self._session.read_many(paths).items()
        }

    def commit(self, offsets: Mapping[TopicPartition, OffsetNode]) -> None:
        """Store offsets, whoever owns the partitions, pipelined; durable at ZooKeeper on return. When it raises, any
        subset may be stored: commit them again."""
        self._session.write_many({self._path(key): node.encode() for key, node in offsets.items()})

    def commit_as_owner(self, offsets: Mapping[TopicPartition, tuple[OffsetNode, Claimed]]) -> list[TopicPartition]:
        """As commit, each only if its partition is still owned as claimed. Returns those that are not: nothing was
        stored for them, so that a process which slept through the end of its session moves nobody back."""
        stale: list[TopicPartition] = []
        writing = dict.fromkeys(offsets, True)  # whether the node is thought to be there
        while writing:
            refusals = self._session.transact_many(
                [self._plan(key, *offsets[key], exists=exists) for key, exists in writing.items()]
            )
            again: dict[TopicPartition, bool] = {}
            without_parent = []
            for (key, _), refused in zip(writing.items(), refusals, strict=True):
                match refused.operation if refused is not None else None:
                    case Check():
                        stale.append(key)
                    case Write():
                        again[key] = False
                    case Create(path=path):  # made meanwhile, or its parent is missing
                        assert refused is not None
                        if refused.why is Why.MISSING:
                            without_parent.append(path)
                        again[key] = refused.why is Why.EXISTS
            self._session.ensure_parents(without_parent)
            writing = again
        return stale

    def overrule(self, offsets: Mapping[TopicPartition, OffsetNode]) -> dict[TopicPartition, int | OwnedBy]:
        """As commit, over the heads of the owners, for an operator: in one step with its offset, a partition's epoch
        is raised, so that its owner can store nothing any more. Returns the new epochs.

        OwnedBy: a genuine member has it, whose next commit would undo this; nothing was stored of that one, nor of
        any if there is one at the beginning. Raises MalformedNode; when it raises, any subset may be stored.
        """
        outcomes: dict[TopicPartition, int | OwnedBy] = {}
        places = {key: owner_place(self._session.paths, self._group, key) for key in offsets}
        while pending := [key for key in offsets if key not in outcomes]:
            paths = {key: (places[key].owner, places[key].epoch, self._path(key)) for key in pending}
            nodes = self._session.read_many([path for three in paths.values() for path in three])
            planned: dict[TopicPartition, tuple[Transaction, int]] = {}
            for key, (owner, epoch, path) in paths.items():
                plan = plan_overrule(places[key], nodes.get(owner), nodes.get(epoch))
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
                elif refused.why is Why.MISSING and isinstance(refused.operation, Create):
                    self._session.ensure_parents([refused.operation.path])
        return outcomes

    def _plan(self, key: TopicPartition, node: OffsetNode, claimed: Claimed, *, exists: bool) -> Transaction:
        path, data = self._path(key), node.encode()
        fence = still_ours(owner_place(self._session.paths, self._group, key), claimed)
        return (*fence, Write(path, data) if exists else Create(path, data))

    def _path(self, key: TopicPartition) -> str:
        return self._session.paths.of(StoredOffset(self._group, *key))
