"""Stops a superseded master from serving. Pure."""

from meta_broker.errors import BrokerError
from zk.brokers.replication import ReplicationNode


class Superseded(BrokerError):
    """Another copy of this broker's journal was promoted: this one must not write any more. Start it as a slave.

    *epoch* is the journal's own, *node* the one in ZooKeeper.
    """

    def __init__(self, broker_id: int, epoch: int, node: ReplicationNode) -> None:
        who = f"its master is {node.master}" if node.master else f"{node.claimed_by or 'another slave'} claimed it"
        super().__init__(
            f"broker {broker_id} has epoch {node.epoch} in ZooKeeper, and this one's journal has epoch {epoch}: {who}; "
            f"start this one as a slave"
        )
        self.epoch = epoch
        self.node = node


def check_epoch(epoch: int, node: ReplicationNode | None, broker_id: int) -> None:
    """Raise Superseded if ZooKeeper knows a higher epoch than the journal's *epoch*."""
    if node is not None and node.epoch > epoch:
        raise Superseded(broker_id, epoch, node)
