"""Offsets of a consumer group, stored in ZooKeeper (spec 6.3, 8.10)."""

from collections.abc import Collection, Mapping

from zk.claims import Claimed, still_ours
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
            for (key, _), refused in zip(writing.items(), refusals, strict=True):
                match refused.operation if refused is not None else None:
                    case Check():
                        stale.append(key)
                    case Write():
                        self._session.ensure_parent(self._path(key))
                        again[key] = False
                    case Create(path=path):  # made meanwhile, or its parent was deleted
                        assert refused is not None
                        if refused.why is Why.MISSING:
                            self._session.ensure_parent(path)
                        again[key] = refused.why is Why.EXISTS
            writing = again
        return stale

    def _plan(self, key: TopicPartition, node: OffsetNode, claimed: Claimed, *, exists: bool) -> Transaction:
        path, data = self._path(key), node.encode()
        fence = still_ours(owner_place(self._session.paths, self._group, key), claimed)
        return (*fence, Write(path, data) if exists else Create(path, data))

    def _path(self, key: TopicPartition) -> str:
        return self._session.paths.of(StoredOffset(self._group, *key))
