"""The replication node of one broker: its master's epoch and its in-sync slaves, the candidates for promotion.

The node is persistent and written by compare-and-set only, which fences a former master: a promotion claims its epoch
here before it touches a directory. From then on the former master cannot remove a slave from the in-sync set, which it
must do before it acknowledges anything without that slave.
"""

from functools import partial
from typing import Annotated, Literal

import msgspec

from zk.brokers.json_node import JsonNode, Versioned
from zk.errors import ZooKeeperError
from zk.session.session import ZooKeeperSession
from zk.tree.paths import BrokerKey, BrokerNode

SLAVES_MAX = 1024
EPOCH_MAX = 2**31 - 1
_TEXT_MAX = 1024

Slave = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Text = Annotated[str, msgspec.Meta(max_length=_TEXT_MAX)]


class ReplicationNode(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas of one broker, written by the holder of *epoch*.

    *in_sync*: ids of the slaves that must have a record before mode sync acknowledges it; *in_sync_min*: their least
    number. *master*: URL of the epoch's holder, blank until it serves. *claimed_by*: the broker promoted to the epoch.
    """

    epoch: Annotated[int, msgspec.Meta(ge=1, le=EPOCH_MAX)]
    mode: Literal["async", "sync"] = "async"
    in_sync: Annotated[tuple[Slave, ...], msgspec.Meta(max_length=SLAVES_MAX)] = ()
    in_sync_min: Annotated[int, msgspec.Meta(ge=0, le=SLAVES_MAX)] = 0
    master: _Text = ""
    claimed_by: _Text = ""


VersionedReplication = Versioned[ReplicationNode]
_KEY = partial(BrokerKey, BrokerNode.REPLICATION)
_NODES = JsonNode(ReplicationNode, _KEY, 64 * 1024, "what a metaq broker writes about its replication")
read_replication, decode_replication, write_replication = _NODES.read, _NODES.decode, _NODES.write


class EpochTaken(ZooKeeperError):
    """Another process claimed an epoch of this broker meanwhile. Look up its present master."""


def next_epoch(found: VersionedReplication, journal_epoch: int) -> int:
    """Return the epoch that `claim_epoch` claims."""
    return max(1 if found.node is None else found.node.epoch, journal_epoch) + 1


def claim_epoch(
    session: ZooKeeperSession, broker_id: int, found: VersionedReplication, journal_epoch: int, who: str
) -> int:
    """Claim the next epoch of this broker, above *journal_epoch* and that of *found*. Durable on return: from then on
    no former master acknowledges anything that an in-sync slave lacks.

    Raises EpochTaken if the node changed since it was read; ZooKeeperUnavailable, after which the epoch may be claimed
    and a repeated call claims a higher one.
    """
    former, epoch = found.node or ReplicationNode(epoch=1), next_epoch(found, journal_epoch)
    if epoch > EPOCH_MAX:
        raise ZooKeeperError(f"broker {broker_id} has epoch {epoch - 1}, the highest there is: correct its node")
    # The in-sync set stays until the new master serves: if this promotion fails here, those slaves remain candidates.
    node = msgspec.structs.replace(former, epoch=epoch, master="", claimed_by=who[:_TEXT_MAX])
    if write_replication(session, broker_id, node, found.version) is None:
        raise EpochTaken(
            f"another process wrote {session.paths.of(_KEY(broker_id))} in the meantime: look up the master "
            f"of broker {broker_id} now, then try again"
        )
    return epoch
