"""A broker's own nodes below `/meta/metaq`, written by compare-and-set. Block on ZooKeeper."""

from meta_broker.replication.fencing import check_epoch
from zk.brokers.journal_position import JournalPosition, read_position, write_position
from zk.brokers.replication import ReplicationNode, read_replication, write_replication
from zk.errors import ZooKeeperError
from zk.session.session import ZooKeeperSession


class OwnNodes:
    """The replication node and the journal node of a master, and what it last knew of them. One thread."""

    def __init__(self, session: ZooKeeperSession, broker_id: int) -> None:
        self._session = session
        self._broker_id = broker_id
        self._node: ReplicationNode | None = None
        self._position: JournalPosition | None = None

    def replication(self) -> ReplicationNode | None:
        """Read the replication node, by which the master starts. Raises MalformedNode, ZooKeeperUnavailable."""
        self._node = read_replication(self._session, self._broker_id).node
        return self._node

    def update_replication(self, epoch: int, node: ReplicationNode) -> None:
        """Write *node*, so that an epoch claimed above *epoch* in between fences this broker. Raises Superseded,
        ZooKeeperError."""
        found = read_replication(self._session, self._broker_id)
        check_epoch(epoch, found.node, self._broker_id)
        if found.node != node and write_replication(self._session, self._broker_id, node, found.version) is None:
            raise ZooKeeperError(f"the replication node of broker {self._broker_id} has changed: reading it again")
        self._node = node

    def advance_position(self, position: JournalPosition) -> None:
        """Write *position* unless the node is further already: it never goes back by itself. Raises ZooKeeperError."""
        found = read_position(self._session, self._broker_id)
        is_behind = found.node is None or found.node.order < position.order
        if is_behind and write_position(self._session, self._broker_id, position, found.version) is None:
            raise ZooKeeperError(f"the journal node of broker {self._broker_id} has changed: reading it again")
        self._position = position

    def write_again(self, epoch: int) -> None:
        """Write both as they were last known: a ZooKeeper that was emptied, or restored from a back-up, would name no
        slave in sync, or others, and take an older copy of the journal for the newest. Raises as the two above."""
        if self._node is not None:
            self.update_replication(epoch, self._node)
        if self._position is not None:
            self.advance_position(self._position)
