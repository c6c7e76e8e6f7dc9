"""Writes of a broker's own nodes below `/meta/metaq`, by compare-and-set. Block on ZooKeeper."""

from meta_broker.replication.fencing import check_epoch
from zk.brokers.journal_position import JournalPosition, read_position, write_position
from zk.brokers.replication import ReplicationNode, read_replication, write_replication
from zk.errors import ZooKeeperError
from zk.session.session import ZooKeeperSession


def update_replication(session: ZooKeeperSession, broker_id: int, epoch: int, node: ReplicationNode) -> None:
    """Write *node*, so that an epoch claimed above *epoch* in between fences this broker. Raises Superseded,
    ZooKeeperError."""
    found = read_replication(session, broker_id)
    check_epoch(epoch, found.node, broker_id)
    if found.node != node and write_replication(session, broker_id, node, found.version) is None:
        raise ZooKeeperError(f"the replication node of broker {broker_id} has changed: reading it again")


def advance_position(session: ZooKeeperSession, broker_id: int, position: JournalPosition) -> None:
    """Write *position* unless the node is further already: it never goes back by itself. Raises ZooKeeperError."""
    found = read_position(session, broker_id)
    if found.node is not None and found.node.order >= position.order:
        return
    if write_position(session, broker_id, position, found.version) is None:
        raise ZooKeeperError(f"the journal node of broker {broker_id} has changed: reading it again")
