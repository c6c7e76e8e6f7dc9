"""What ZooKeeper holds about the copies of one broker: the epoch of its master, and who may take its place.

The node outlives everybody. It is written by compare-and-set alone, and that is what fences a master: a promotion
claims its epoch here before it touches a directory, and from then on the former master, cut off or paused, can't take a
slave out of the in-sync set any more, which it must do before it acknowledges anything without it.
"""

from typing import Annotated, Literal, NamedTuple

import msgspec

from zk.errors import MalformedNode, ZooKeeperError
from zk.paths import Replication
from zk.session import ZooKeeperSession

SLAVES_MAX = 1024
EPOCH_MAX = 2**31 - 1
_TEXT_MAX = 1024
_BYTES_MAX = 64 * 1024

Slave = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Text = Annotated[str, msgspec.Meta(max_length=_TEXT_MAX)]


class ReplicationNode(msgspec.Struct, frozen=True, kw_only=True):
    """The copies of one broker, as the holder of *epoch* says.

    *in_sync*: ids of the slaves without which nothing is acknowledged in mode sync; of them, *in_sync_min* must have
    it. *master*: URL of who holds the epoch, blank while nobody serves yet. *claimed_by*: who was promoted to it.
    """

    epoch: Annotated[int, msgspec.Meta(ge=1, le=EPOCH_MAX)]
    mode: Literal["async", "sync"] = "async"
    in_sync: Annotated[tuple[Slave, ...], msgspec.Meta(max_length=SLAVES_MAX)] = ()
    in_sync_min: Annotated[int, msgspec.Meta(ge=0, le=SLAVES_MAX)] = 0
    master: Text = ""
    claimed_by: Text = ""


_DECODER = msgspec.json.Decoder(ReplicationNode)


class Found(NamedTuple):
    """The node as it was read. Both None: there is none."""

    node: ReplicationNode | None
    version: int | None


class EpochTaken(ZooKeeperError):
    """Somebody else claimed an epoch of this broker in the meantime. Look at who is its master now."""


def read_replication(session: ZooKeeperSession, broker_id: int) -> Found:
    """Raises MalformedNode, ZooKeeperUnavailable."""
    path = session.paths.of(Replication(broker_id))
    if (found := session.read(path)) is None:
        return Found(None, None)
    try:
        if len(found.data) > _BYTES_MAX:
            raise ValueError(f"{len(found.data)} bytes")
        return Found(_DECODER.decode(found.data), found.version)
    except (ValueError, RecursionError) as error:  # msgspec's errors, and those of UTF-8, are ValueErrors
        raise MalformedNode(path, found.data, "what a metaq broker writes about its replication") from error


def write_replication(
    session: ZooKeeperSession, broker_id: int, node: ReplicationNode, version: int | None
) -> int | None:
    """Write *node* over what was read at *version* (None: nothing). Returns the new version; None, and nothing is
    changed, when somebody else wrote since: read again. Raises ZooKeeperUnavailable; it may have been written then."""
    return session.exchange(session.paths.of(Replication(broker_id)), msgspec.json.encode(node), version)


def claim_epoch(session: ZooKeeperSession, broker_id: int, found: Found, journal_epoch: int, who: str) -> int:
    """Take the next epoch of this broker, above *journal_epoch* and above what *found* says. Durable on return: from
    here on no former master acknowledges anything that a slave in sync does not have.

    Raises EpochTaken when the node is not what *found* says any more, ZooKeeperUnavailable: it may be claimed then,
    and claiming again takes a higher one.
    """
    former = found.node or ReplicationNode(epoch=1)
    epoch = max(former.epoch, journal_epoch) + 1
    if epoch > EPOCH_MAX:
        raise ZooKeeperError(f"broker {broker_id} has epoch {epoch - 1}, the highest there is: correct its node")
    # Who was in sync stays on record until the new master serves: should this promotion end here, they may be promoted.
    node = msgspec.structs.replace(former, epoch=epoch, master="", claimed_by=who[:_TEXT_MAX])
    if write_replication(session, broker_id, node, found.version) is None:
        raise EpochTaken(
            f"somebody else wrote {session.paths.of(Replication(broker_id))} in the meantime: see who is the master of "
            f"broker {broker_id} now, then try again"
        )
    return epoch
