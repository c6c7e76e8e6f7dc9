"""A master whose place was taken must not serve. Pure."""

from meta_broker.errors import BrokerError
from zk.replication import ReplicationNode


class Superseded(BrokerError):
    """Another copy of this broker's journal was promoted: this one must not write any more. Let it follow.

    *epoch* is the journal's own, *node* what ZooKeeper says.
    """

    def __init__(self, broker_id: int, epoch: int, node: ReplicationNode) -> None:
        who = f"its master is {node.master}" if node.master else f"{node.claimed_by or 'somebody'} claimed it"
        super().__init__(
            f"broker {broker_id} has epoch {node.epoch} in ZooKeeper, and this one's journal has epoch {epoch}: {who}; "
            f"start this one as a slave"
        )
        self.epoch = epoch
        self.node = node


def check_epoch(epoch: int, node: ReplicationNode | None, broker_id: int) -> None:
    """Raises Superseded if the journal's *epoch* is not the highest any more."""
    if node is not None and node.epoch > epoch:
        raise Superseded(broker_id, epoch, node)


def epoch_for(recovered: int, node: ReplicationNode | None, broker_id: int) -> int:
    """The epoch that a master writes with which found *recovered* in its journal, 0 where it is new.

    Raises Superseded.
    """
    epoch = max(recovered, 1)
    check_epoch(epoch, node, broker_id)
    return epoch
