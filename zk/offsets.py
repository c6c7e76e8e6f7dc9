"""Offsets of a consumer group, stored in ZooKeeper (spec 6.3, 8.10)."""

from collections.abc import Collection, Mapping

from zk.nodes import OffsetNode, Partition, decode_offset_node
from zk.paths import StoredOffset
from zk.session import ZooKeeperSession

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
        """Store offsets, pipelined; durable at ZooKeeper on return. When it raises, any subset may be stored:
        commit them again."""
        self._session.write_many({self._path(key): node.encode() for key, node in offsets.items()})

    def _path(self, key: TopicPartition) -> str:
        return self._session.paths.of(StoredOffset(self._group, *key))
