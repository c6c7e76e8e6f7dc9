"""Plans the transactions that claim, release and fence a partition (spec 9.3, 9.8). Pure.

The owner node is ephemeral and holds exactly the consumer's id. It does not stop a former owner: a process that was
suspended for a minute still believes that it owns the partition. So each claim also raises the partition's epoch, a
persistent counter, in the same transaction, and whatever an owner does later (storing an offset, releasing) is done
together with a check that neither node has changed. Genuine members see an owner node like their own, and raise no
epoch: metaq's owner nodes are at version 1 or higher, theirs at 0, which tells the two apart.
"""

import re
from dataclasses import dataclass
from typing import Final

from zk.errors import MalformedNode, ZooKeeperError
from zk.tree.nodes import INT64_MAX, Node
from zk.tree.transactions import Check, Create, NodeTransaction, Operation, Remove, Write

_EPOCH: Final = re.compile(rb"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Claimed:
    """An owned partition. *epoch* rises with every metaq claim, across crashes and restarts, so that a stale owner can
    be refused. The versions are those of both nodes after this claim."""

    epoch: int
    owner_version: int
    epoch_version: int


@dataclass(frozen=True, slots=True)
class OwnedBy:
    """Another consumer still owns the partition. Release your partitions that must move, wait, and retry."""

    consumer_id: str


@dataclass(frozen=True, slots=True)
class Unclaimable:
    """A node of the partition can't be read or written; an operator must correct or delete it. Retry later."""

    error: ZooKeeperError


@dataclass(frozen=True, slots=True)
class OwnerPaths:
    """Paths of a group's two nodes for a partition."""

    owner: str
    epoch: str


def plan_claim(
    place: OwnerPaths, consumer_id: str, session_id: int, owner: Node | None, epoch: Node | None, epoch_min: int = 0
) -> tuple[NodeTransaction, Claimed] | OwnedBy:
    """Plan a claim, or a repeated claim, given both nodes as they were read.

    The new epoch is *epoch_min* at least. If ZooKeeper refuses the transaction, a node changed: read and plan again,
    and make the parents if one was missing. Raises MalformedNode.
    """
    ours = consumer_id.encode()
    operations: list[Operation] = []
    if owner is not None and owner.data != ours:
        return OwnedBy(owner.data.decode(errors="replace"))
    if owner is not None and owner.session_id == session_id:
        owner_version = owner.version + 1
        operations.append(Write(place.owner, ours, owner.version))
    else:
        if owner is not None:
            # This id in another session: left by a crash of this process. The node goes when that session expires, so
            # it is replaced. (The id node proves that no other consumer has this id.)
            operations.append(Remove(place.owner, owner.version))
        owner_version = 1
        operations += [Create(place.owner, ours, ephemeral=True), Write(place.owner, ours, 0)]
    number = max(1 + (0 if epoch is None else decode_epoch(place.epoch, epoch.data)), epoch_min)
    data = b"%d" % number
    if epoch is None:
        operations.append(Create(place.epoch, data))
        return tuple(operations), Claimed(number, owner_version, 0)
    operations.append(Write(place.epoch, data, epoch.version))
    return tuple(operations), Claimed(number, owner_version, epoch.version + 1)


def ownership_check(place: OwnerPaths, claimed: Claimed) -> NodeTransaction:
    """Return the checks that begin every transaction only the owner may do."""
    return Check(place.owner, claimed.owner_version), Check(place.epoch, claimed.epoch_version)


def plan_release(place: OwnerPaths, claimed: Claimed) -> NodeTransaction:
    """Plan a release; refused if the partition has another owner by now."""
    return Check(place.epoch, claimed.epoch_version), Remove(place.owner, claimed.owner_version)


def plan_fencing(place: OwnerPaths, owner: Node | None, epoch: Node | None) -> tuple[NodeTransaction, int] | OwnedBy:
    """Plan a raise of the epoch, which fences the partition's owner, for an operator. Returns the new epoch too.

    OwnedBy: a genuine member owns it, which ignores epochs and cannot be fenced. Refused if a new owner comes
    meanwhile. Raises MalformedNode.
    """
    fence: NodeTransaction = Create(place.owner, b"", ephemeral=True), Remove(place.owner, 0)  # there is no owner
    if owner is not None:
        if owner.version == 0:
            return OwnedBy(owner.data.decode(errors="replace"))
        fence = (Check(place.owner, owner.version),)
    if epoch is None:
        return (*fence, Create(place.epoch, b"1")), 1
    number = 1 + decode_epoch(place.epoch, epoch.data)
    return (*fence, Write(place.epoch, b"%d" % number, epoch.version)), number


def decode_epoch(path: str, data: bytes) -> int:
    """Read an epoch node. Raises MalformedNode."""
    if not _EPOCH.fullmatch(data) or not 0 <= (number := int(data)) < INT64_MAX:
        raise MalformedNode(path, data, "a decimal number")
    return number
