"""Owning a partition, as what is to be done to the tree (spec 9.3, 9.8). Pure.

An owner node says who reads a partition now: ephemeral, its data exactly the consumer's id. It can't say who reads it
*no longer*: a process that was stopped for a minute still believes that it does. So each claim also raises the
partition's epoch, a counter that outlives all owners, in the same transaction; and what an owner does later (storing
an offset, letting go) is done together with a check that neither node has changed since. Genuine members see an
owner node like their own, and raise no epoch: ours stand at version 1 or higher, theirs at 0, so that a partition which
one of them took is told from one that is still ours.
"""

import re
from dataclasses import dataclass
from typing import Final

from zk.errors import MalformedNode
from zk.nodes import INT64_MAX, Node
from zk.transactions import Check, Create, Operation, Remove, Transaction, Write

_EPOCH: Final = re.compile(rb"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Claimed:
    """The partition is ours. *epoch* rises with every claim by one of us, across crashes and restarts: who has seen a
    higher one can refuse a stale owner. The versions are those of both nodes since this claim."""

    epoch: int
    owner_version: int
    epoch_version: int


@dataclass(frozen=True, slots=True)
class OwnedBy:
    """Another consumer has not let go yet. Release what you hold, wait, and try again."""

    consumer_id: str


@dataclass(frozen=True, slots=True)
class OwnerPlace:
    """The two nodes of a partition of a group."""

    owner: str
    epoch: str


def plan_claim(
    place: OwnerPlace, consumer_id: str, session_id: int, owner: Node | None, epoch: Node | None, epoch_min: int = 0
) -> tuple[Transaction, Claimed] | OwnedBy:
    """How to become the owner, or to claim again what is ours, given both nodes as they were read.

    The new epoch is *epoch_min* at least. If the transaction is refused, something changed: read and plan again, with
    the parents made where one was missing. Raises MalformedNode.
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
            # Our id, another session: what our process left when it crashed. It would vanish under us when that
            # session expires, so it is made anew. (The id node proves that nobody else has our id.)
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


def still_ours(place: OwnerPlace, claimed: Claimed) -> Transaction:
    """What stands in front of everything that only the owner may do."""
    return Check(place.owner, claimed.owner_version), Check(place.epoch, claimed.epoch_version)


def plan_release(place: OwnerPlace, claimed: Claimed) -> Transaction:
    """How to let go; refused if it is not ours any more."""
    return Check(place.epoch, claimed.epoch_version), Remove(place.owner, claimed.owner_version)


def plan_overrule(place: OwnerPlace, owner: Node | None, epoch: Node | None) -> tuple[Transaction, int] | OwnedBy:
    """How to raise a partition's epoch over its owner's head, and to what: whatever that one does as the owner is
    refused from then on. For an operator.

    OwnedBy: a genuine member, which knows of no epochs, so that nothing can be taken from it. Refused if another owner
    comes meanwhile. Raises MalformedNode.
    """
    fence: Transaction = Create(place.owner, b"", ephemeral=True), Remove(place.owner, 0)  # that there is none
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
