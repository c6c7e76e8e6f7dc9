"""Owner nodes: which consumer of a group reads a partition, one at a time (spec 9.3, 9.8)."""

from collections.abc import Collection
from dataclasses import dataclass

from zk.ephemerals import claim
from zk.nodes import Partition
from zk.paths import Owner
from zk.session import ZooKeeperSession


@dataclass(frozen=True, slots=True)
class Claimed:
    """The partition is ours. *epoch* rises with every new owner of the partition, across crashes and restarts:
    a broker that has seen a higher one can refuse a stale owner."""

    epoch: int


@dataclass(frozen=True, slots=True)
class OwnedBy:
    """Another consumer has not let go yet. Release what you hold, wait, and try again."""

    consumer_id: str


class Ownership:
    """The owner nodes of one consumer. One thread; raises ZooKeeperUnavailable.

    After LOST every node is gone: forget what was owned, do not release it.
    """

    def __init__(self, session: ZooKeeperSession, group: str, consumer_id: str) -> None:
        self._session = session
        self._group = group
        self._consumer_id = consumer_id

    def claim(self, topic: str, partition: Partition) -> Claimed | OwnedBy:
        """Become the owner of a partition, or learn who is. Claiming again what we own is fine."""
        path = self._path(topic, partition)
        data = self._consumer_id.encode()
        while True:
            while (holder := claim(self._session, path, data)) is not None:
                if holder.data != data:
                    return OwnedBy(holder.data.decode(errors="replace"))
                # Our id, another session: what our process left when it crashed. It would vanish under us when
                # that session expires, so it is made anew. (The id node proves that nobody else has our id.)
                self._session.delete(path)
            node = self._session.read(path)
            if node is not None and node.session_id == self._session.session_id:
                # The transaction that created the node: ZooKeeper numbers them for the whole tree, rising.
                return Claimed(node.created)

    def release(self, topic: str, partition: Partition) -> bool:
        """Let a partition go; False when it was not ours."""
        path = self._path(topic, partition)
        node = self._session.read(path)
        ours = node is not None and node.data == self._consumer_id.encode()
        return ours and self._session.delete(path)

    def owners(self, topic: str, partitions: Collection[Partition]) -> dict[Partition, str]:
        """Who owns which of these partitions now; unowned ones are left out."""
        wanted = {self._path(topic, partition): partition for partition in partitions}
        return {
            wanted[path]: node.data.decode(errors="replace") for path, node in self._session.read_many(wanted).items()
        }

    def _path(self, topic: str, partition: Partition) -> str:
        return self._session.paths.of(Owner(self._group, topic, partition))
