"""The replication node of one broker: its master's epoch and its in-sync slaves, the candidates for promotion.

The node is persistent and written by compare-and-set only, which fences a former master: a promotion claims its epoch
here before it touches a directory. From then on the former master cannot remove a slave from the in-sync set, which it
must do before it acknowledges anything without that slave.
"""

from typing import Annotated, Literal, NamedTuple

import msgspec

from zk.errors import MalformedNode, ZooKeeperError
from zk.session.session import ZooKeeperSession
from zk.tree.paths import ReplicationKey

SLAVES_MAX = 1024
EPOCH_MAX = 2**31 - 1
_TEXT_MAX = 1024
_BYTES_MAX = 64 * 1024

Slave = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Text = Annotated[str, msgspec.Meta(max_length=_TEXT_MAX)]


class ReplicationNode(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas of one broker, written by the holder of *epoch*.

    *in_sync*: ids of the slaves that must have a record before mode sync acknowledges it; *in_sync_min*: their least
    number. *master*: URL of the epoch's holder, blank until it serves. *claimed_by*: the broker promoted to the epoch.
    """

    epoch: Annotated[int, msgspec.Meta(ge=1, le=EPOCH_MAX)]
    mode: Literal["async", "sync"] = "async"
    in_sync: Annotated[tuple[Slave, ...], msgspec.Meta(max_length=SLAVES_MAX)] = ()
    in_sync_min: Annotated[int, msgspec.Meta(ge=0, le=SLAVES_MAX)] = 0
    master: Text = ""
    claimed_by: Text = ""


_DECODER = msgspec.json.Decoder(ReplicationNode)


class VersionedReplication(NamedTuple):
    """A replication node and its version; both None if it does not exist."""

    node: ReplicationNode | None
    version: int | None


class EpochTaken(ZooKeeperError):
    """Another process claimed an epoch of this broker meanwhile. Look up its present master."""


def read_replication(session: ZooKeeperSession, broker_id: int) -> VersionedReplication:
    """Read the node of a broker. Raises MalformedNode, ZooKeeperUnavailable."""
    path = session.paths.of(ReplicationKey(broker_id))
    if (found := session.read(path)) is None:
        return VersionedReplication(None, None)
    return VersionedReplication(decode_replication(path, found.data), found.version)


def decode_replication(path: str, data: bytes) -> ReplicationNode:
    """Read a replication node. Raises MalformedNode."""
    try:
        if len(data) > _BYTES_MAX:
            raise ValueError(f"{len(data)} bytes")
        return _DECODER.decode(data)
    except (ValueError, RecursionError) as error:  # msgspec's errors, and those of UTF-8, are ValueErrors
        raise MalformedNode(path, data, "what a metaq broker writes about its replication") from error


def write_replication(
    session: ZooKeeperSession, broker_id: int, node: ReplicationNode, version: int | None
) -> int | None:
    """Write *node* if the stored one is still at *version* (None: does not exist). Returns the new version, or None
    without a change if another process wrote since: read again. After ZooKeeperUnavailable it may be written."""
    return session.exchange(session.paths.of(ReplicationKey(broker_id)), msgspec.json.encode(node), version)


def claim_epoch(
    session: ZooKeeperSession, broker_id: int, found: VersionedReplication, journal_epoch: int, who: str
) -> int:
    """Claim the next epoch of this broker, above *journal_epoch* and that of *found*. Durable on return: from then on
    no former master acknowledges anything that an in-sync slave lacks.

    Raises EpochTaken if the node changed since it was read; ZooKeeperUnavailable, after which the epoch may be claimed
    and a repeated call claims a higher one.
    """
    former = found.node or ReplicationNode(epoch=1)
    epoch = max(former.epoch, journal_epoch) + 1
    if epoch > EPOCH_MAX:
        raise ZooKeeperError(f"broker {broker_id} has epoch {epoch - 1}, the highest there is: correct its node")
    # The in-sync set stays until the new master serves: if this promotion fails here, those slaves remain candidates.
    node = msgspec.structs.replace(former, epoch=epoch, master="", claimed_by=who[:_TEXT_MAX])
    if write_replication(session, broker_id, node, found.version) is None:
        raise EpochTaken(
            f"another process wrote {session.paths.of(ReplicationKey(broker_id))} in the meantime: look up the master "
            f"of broker {broker_id} now, then try again"
        )
    return epoch
