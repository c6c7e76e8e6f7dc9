"""May this slave take its master's place, and what would be lost? Pure: from what was read to what is said.

A copy can lack what the master acknowledged unless the master counted on it: in mode sync every slave of the in-sync
set has everything that anybody was told. All else is a risk, which somebody has to accept by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from journal.lives import Life
from journal.tail import Tail
from meta_broker.replication.slave_file import SlaveFacts
from zk.replication import ReplicationNode

_CLAIMANT: Final = "slave "


class Weight(StrEnum):
    NOTE = "note"
    RISK = "risk"  # something acknowledged may be lost: only if that is accepted
    STOP = "stop"  # not until that is otherwise


@dataclass(frozen=True, slots=True)
class Finding:
    weight: Weight
    text: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """What ZooKeeper says of one broker id: who is registered, by URL, and the node that slaves are promoted by."""

    node: ReplicationNode | None = None
    master: str | None = None
    slaves: Mapping[int, str] = field(default_factory=dict)
    connect: str = ""  # where it was asked


@dataclass(frozen=True, slots=True)
class Standing:
    """What the slave's directory holds. LSNs [start, end); keys of branches as `metaq txn` shows them."""

    facts: SlaveFacts
    start: int
    end: int
    epoch: int
    in_doubt: Sequence[str]
    active: int
    lives: Sequence[Life] = ()  # who wrote it, oldest first

    @property
    def followed(self) -> int:
        """The epoch of the last master that it had records of: slave.json is written some time after."""
        return max(self.facts.epoch, self.epoch)


@dataclass(frozen=True, slots=True)
class Former:
    """The master's own directory. *lost*: what it has and the slave does not; None: they share nothing."""

    epoch: int
    lost: Tail | None


def judge(standing: Standing, cluster: Cluster | None, former: Former | None = None) -> list[Finding]:
    """What speaks against a promotion, and for it. *cluster* None: there is no ZooKeeper to ask; *former*: if the
    master's directory could be read, that is better than all that was heard of it."""
    facts = standing.facts
    found = [_behind(standing) if former is None else _compared(standing, former)]
    if standing.active:
        found.append(
            Finding(Weight.NOTE, f"{standing.active} transactions were active, not prepared: they are rolled back")
        )
    if cluster is None:
        text = (
            "without ZooKeeper nobody can tell whether the master is gone and whether this slave has everything: "
            "make sure that it is stopped for good"
        )
        return [*found, Finding(Weight.RISK, text)]
    if cluster.master is not None:
        found.append(
            Finding(
                Weight.STOP,
                f"a master of broker {facts.broker_id} is registered at {cluster.master}: stop it, or wait until its "
                f"ZooKeeper session is over",
            )
        )
    is_known = former is not None and former.epoch >= newest_epoch(standing, cluster.node)
    return found if is_known else [*found, _in_sync(standing, cluster.node)]


def _behind(standing: Standing) -> Finding:
    """What the last word of the master proves."""
    facts, end = standing.facts, standing.end
    if not facts.heard_ms:
        return Finding(Weight.RISK, "this slave has never heard from a master: it may lack anything")
    if end < facts.fence:
        return Finding(
            Weight.RISK,
            f"the journal ends at LSN {end}, and the master had acknowledged everything up to LSN {facts.fence} when "
            f"it was last heard: {facts.fence - end} bytes of that are not here",
        )
    if end < facts.end:
        return Finding(
            Weight.NOTE,
            f"{facts.end - end} bytes of the master's journal that nobody was told of, LSN {end} to {facts.end}, are "
            f"not here",
        )
    return Finding(Weight.NOTE, "everything that the master had when it was last heard is here")


def _compared(standing: Standing, former: Former) -> Finding:
    """What the two directories say."""
    if former.lost is None:
        return Finding(Weight.RISK, "the two journals share no life: nothing tells that one is a copy of the other")
    lost = former.lost
    if lost.is_silent:
        text = f"everything in the former master's journal is here, up to LSN {lost.start}"
        if lost.redone.count:
            text += f"; {lost.redone.count} branches are ended once more, as an operator's decision that is here says"
        return Finding(Weight.NOTE, text)
    said = [
        f"{lost.messages} messages",
        f"{lost.prepared.count} branches in doubt",
        f"{lost.committed.count} commits",
        f"{lost.rolled_back.count} rollbacks",
    ]
    if lost.decided.count or lost.forgotten.count:
        said.append(f"{lost.decided.count} decisions of operators, {lost.forgotten.count} forgotten")
    said += [f"{count} {kind}" for kind, count in sorted(lost.others.items())]
    return Finding(
        Weight.RISK,
        f"the former master's journal goes on here, LSN {lost.start} to {lost.end}: {', '.join(said)}; what of it was "
        f"acknowledged would be lost{_again(lost)}",
    )


def _again(lost: Tail) -> str:
    """What an operator has to look after."""
    count = sum(branches.count for branches in lost.again.values())
    return f"; {count} branches that were ended there are in doubt again here" if count else ""


def _is_mine(facts: SlaveFacts, node: ReplicationNode) -> bool:
    """Did an earlier promotion of this very slave claim the epoch that ZooKeeper knows, and did no more come of it?"""
    return not node.master and node.claimed_by == claimant(facts)


def newest_epoch(standing: Standing, node: ReplicationNode | None) -> int:
    """Of a master that may have served."""
    return standing.followed if node is None or _is_mine(standing.facts, node) else node.epoch


def _in_sync(standing: Standing, node: ReplicationNode | None) -> Finding:
    """What the in-sync set proves."""
    facts, followed = standing.facts, standing.followed
    me = facts.slave_id
    if node is None:
        return Finding(
            Weight.RISK,
            f"no master of broker {facts.broker_id} has told ZooKeeper who is in sync: what it acknowledged since it "
            f"was last heard may not be here",
        )
    if newest_epoch(standing, node) > followed:
        who = f"{node.master} is or was its master" if node.master else f"{node.claimed_by} claimed it and never served"
        return Finding(
            Weight.RISK,
            f"ZooKeeper knows epoch {node.epoch} and this slave has followed epoch {followed}: {who}; what was "
            f"acknowledged under it is not here",
        )
    if node.mode == "async":
        return Finding(
            Weight.RISK,
            "the master replicated asynchronously: what it acknowledged last, after it was last heard, may not be here",
        )
    if me in node.in_sync:
        return Finding(Weight.NOTE, "in sync: everything that was ever acknowledged is here")
    if node.in_sync:
        others = ", ".join(map(str, node.in_sync))
        return Finding(Weight.RISK, f"not in sync, and slave {others} is: promote that one, which has everything")
    return Finding(Weight.RISK, "no slave was in sync when the master went: what it acknowledged alone may not be here")


def claimant(facts: SlaveFacts) -> str:
    """How ZooKeeper names who was promoted."""
    return f"{_CLAIMANT}{facts.slave_id}"


def claimed_slave(claimed_by: str) -> int | None:
    """The id of the slave that *claimant* named so; None for anything else."""
    number = claimed_by.removeprefix(_CLAIMANT)
    return int(number) if number != claimed_by and number.isascii() and number.isdigit() and len(number) <= 9 else None
