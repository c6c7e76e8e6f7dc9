"""Checks whether a slave may take its master's place, and what would be lost. Pure.

A copy can lack acknowledged data unless the master counted on it: in mode sync every in-sync slave has everything that
was acknowledged. Everything else is a risk that an operator has to accept explicitly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final

from journal.records.epoch_history import WriterEpoch
from journal.repair.tail import Tail
from meta_broker.replication.replica.slave_file import SlaveFacts
from zk.brokers.journal_position import JournalPosition
from zk.brokers.replication import ReplicationNode

_CLAIMANT: Final = "slave "


class Severity(StrEnum):
    NOTE = "note"
    RISK = "risk"  # something acknowledged may be lost: only if that is accepted
    STOP = "stop"  # not while this is so


@dataclass(frozen=True, slots=True)
class CheckFinding:
    severity: Severity
    text: str


note: Final = partial(CheckFinding, Severity.NOTE)
risk: Final = partial(CheckFinding, Severity.RISK)
stop: Final = partial(CheckFinding, Severity.STOP)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """ZooKeeper's view of one broker id: the registered URLs, the replication node and the journal node."""

    node: ReplicationNode | None = None
    master: str | None = None
    slaves: Mapping[int, str] = field(default_factory=dict)
    connect: str = ""  # ZooKeeper's connect string
    position: JournalPosition | None = None  # how far the master's journal was


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Content of the slave's directory: LSNs [start, end); branch keys as `metaq txn` shows them."""

    facts: SlaveFacts
    start: int
    end: int
    epoch: int
    in_doubt: Sequence[str]
    active: int
    epoch_history: Sequence[WriterEpoch] = ()  # writer epochs, oldest first

    @property
    def followed(self) -> int:
        """Epoch of the last master it has records of: slave.json is written some time later."""
        return max(self.facts.epoch, self.epoch)


@dataclass(frozen=True, slots=True)
class FormerMaster:
    """The former master's own directory, which ends at LSN *end*. *lost*: what it has and the slave does not; None:
    they share nothing."""

    epoch: int
    lost: Tail | None
    end: int = 0

    def is_before(self, position: JournalPosition) -> bool:
        """Return True if this is an older copy: it ends before *position*."""
        return (self.epoch, self.end) < (position.epoch, position.end)


def check_promotion(
    status: ReplicaStatus, cluster: ClusterView | None, former: FormerMaster | None = None
) -> list[CheckFinding]:
    """Return findings for and against a promotion. *cluster* None: there is no ZooKeeper.

    *former*: the former master's directory, if it could be read; it is better evidence than what the slave received.
    """
    facts = status.facts
    if former is not None:
        found = [_check_compared(status, former)]
    elif cluster is not None and _is_promoted(status, cluster.node):
        found = []  # it need not have heard a master since
    else:
        found = [_check_behind(status)]
    if status.active:
        found.append(note(f"{status.active} transactions were active, not prepared: they are rolled back"))
    if cluster is None:
        text = (
            "without ZooKeeper it is unknown whether the master is gone and whether this slave has everything: "
            "make sure that it is stopped for good"
        )
        return [*found, risk(text)]
    if cluster.master is not None:
        found.append(
            stop(
                f"a master of broker {facts.broker_id} is registered at {cluster.master}: stop it, or wait until its "
                f"ZooKeeper session is over"
            )
        )
    is_known = former is not None and former.epoch >= newest_epoch(status, cluster.node)
    position = cluster.position
    if is_known and former is not None and position is not None and former.is_before(position):
        is_known = False
        text = f"the former master's directory ends at LSN {former.end}, and {_acknowledged(position)}: an older copy"
        found.append(note(text))
    return found if is_known else [*found, _check_in_sync(status, cluster.node, cluster.position)]


def _check_behind(status: ReplicaStatus) -> CheckFinding:
    """Return what the master's last heartbeat proves."""
    facts, end = status.facts, status.end
    if not facts.heard_ms:
        return risk("this slave has never received a heartbeat of a master: it may lack anything")
    if end < facts.high_watermark:
        return risk(
            f"the journal ends at LSN {end}, and the master had acknowledged everything up to LSN "
            f"{facts.high_watermark} when it was last heard: {facts.high_watermark - end} bytes of that are not here"
        )
    if end < facts.end:
        return note(
            f"{facts.end - end} unacknowledged bytes of the master's journal, LSN {end} to {facts.end}, are not here"
        )
    return note("everything that the master had when it was last heard is here")


def _check_compared(status: ReplicaStatus, former: FormerMaster) -> CheckFinding:
    """Return what comparing the two directories proves."""
    if former.lost is None:
        return risk("the two journals share no epoch: they may not be copies of each other")
    lost = former.lost
    if lost.is_silent:
        text = f"everything in the former master's journal is here, up to LSN {lost.start}"
        if lost.reapplied.count:
            text += (
                f"; {lost.reapplied.count} branches are ended once more, as an operator's decision that is here says"
            )
        return note(text)
    said = [
        f"{lost.messages} messages",
        f"{lost.prepared.count} branches in doubt",
        f"{lost.committed.count} commits",
        f"{lost.rolled_back.count} rollbacks",
    ]
    if lost.decided.count or lost.forgotten.count:
        said.append(f"{lost.decided.count} decisions of operators, {lost.forgotten.count} forgotten")
    said += [f"{count} {kind}" for kind, count in sorted(lost.others.items())]
    return risk(
        f"the former master's journal goes on here, LSN {lost.start} to {lost.end}: {', '.join(said)}; what of it was "
        f"acknowledged would be lost{_again(lost)}"
    )


def _again(lost: Tail) -> str:
    """Return a note about branches that are in doubt again."""
    count = sum(branches.count for branches in lost.reopened.values())
    return f"; {count} branches that were ended there are in doubt again here" if count else ""


def _is_mine(facts: SlaveFacts, node: ReplicationNode) -> bool:
    """Return whether an earlier promotion of this slave claimed ZooKeeper's epoch and got no further."""
    return not node.master and node.claimed_by == claimant(facts)


def _is_promoted(status: ReplicaStatus, node: ReplicationNode | None) -> bool:
    """Return whether an earlier promotion has made this directory the newest, and no master has been heard since."""
    return node is not None and _is_mine(status.facts, node) and status.facts.epoch < node.epoch == status.epoch


def newest_epoch(status: ReplicaStatus, node: ReplicationNode | None) -> int:
    """Return the newest epoch a master may have served."""
    return status.followed if node is None or _is_mine(status.facts, node) else node.epoch


def _check_in_sync(
    status: ReplicaStatus, node: ReplicationNode | None, position: JournalPosition | None
) -> CheckFinding:
    """Return what the in-sync set proves. It names a slave, not a directory: an older one may have the same number."""
    facts, followed = status.facts, status.followed
    me = facts.slave_id
    if node is None:
        return risk(
            f"ZooKeeper has no in-sync set of broker {facts.broker_id}: what its master acknowledged since it "
            f"was last heard may not be here"
        )
    if newest_epoch(status, node) > followed:
        who = f"{node.master} is or was its master" if node.master else f"{node.claimed_by} claimed it and never served"
        return risk(
            f"ZooKeeper knows epoch {node.epoch} and this slave has followed epoch {followed}: {who}; what was "
            f"acknowledged under it is not here"
        )
    if position is not None and position.epoch == followed and position.end > status.end:
        return risk(
            f"the journal ends at LSN {status.end}, and {_acknowledged(position)}: {position.end - status.end} bytes "
            f"of that are not here; if slave {me} is in sync, then with another directory: promote that one"
        )
    if node.mode == "async":
        return risk(
            "the master replicated asynchronously: what it acknowledged last, after it was last heard, may not be here"
        )
    if me in node.in_sync:
        return note("in sync: everything that was ever acknowledged is here")
    if node.in_sync:
        others = ", ".join(map(str, node.in_sync))
        return risk(f"not in sync, and slave {others} is: promote that one, which has everything")
    if _is_promoted(status, node):
        return note("promoted before, and no master has served since: nothing is lost that was not lost then")
    return risk("no slave was in sync when the master went: what it acknowledged alone may not be here")


def _acknowledged(position: JournalPosition) -> str:
    return f"ZooKeeper knows that the master had acknowledged everything up to LSN {position.end}"


def claimant(facts: SlaveFacts) -> str:
    """Return the name under which a slave claims an epoch in ZooKeeper."""
    return f"{_CLAIMANT}{facts.slave_id}"


def claimed_slave(claimed_by: str) -> int | None:
    """Return the slave id in a name made by `claimant`; None for any other text."""
    number = claimed_by.removeprefix(_CLAIMANT)
    return int(number) if number != claimed_by and number.isascii() and number.isdigit() and len(number) <= 9 else None
