"""Tracks the in-sync slaves and how far everything is replicated. Pure: time is passed in, in seconds.

ZooKeeper's copy of the set is the one that counts. A slave is removed there before anything is acknowledged without
it, and waited for from the moment it may be listed there: every slave listed has everything that was acknowledged.
"""

from dataclasses import dataclass

from journal.records.header import Lsn
from journal.wal.high_watermark import LSN_MAX
from meta_broker.config.sections import ReplicationSection
from meta_broker.replication.link_protocol import LinkRefused
from meta_broker.replication.master.loss_check import LossCheck
from zk.brokers.replication import ReplicationNode

NOTHING = Lsn(0)
SLAVES_MAX = 100  # remembered; ids are chosen by the slaves, so they need a limit


@dataclass(slots=True)
class InSyncState:
    """State of one slave."""

    last_heard: float  # time of its last frame, with pauses of this process forgiven
    caught_up_at: float  # when it last had everything
    reported: Lsn | None = None  # everything below is fsynced there; None: unknown in this master's epoch
    is_linked: bool = False
    # An end of the journal, and when it was that: the slave has caught up to that time once it has it.
    catch_up_target: tuple[Lsn, float] | None = None


class InSyncReplicas:
    """The in-sync set of one master. Until `load`, nothing counts as replicated.

    No slave leaves the set, and nothing is acknowledged, while *loss* has it that acknowledged data may be missing.
    """

    def __init__(self, section: ReplicationSection, epoch: int, master: str, now: float, loss: LossCheck) -> None:
        self.slaves: dict[int, InSyncState] = {}
        self.node: ReplicationNode | None = None  # the last one known to be in ZooKeeper
        self.writing: ReplicationNode | None = None  # being written: ZooKeeper may have it already
        self._section = section
        self._epoch = epoch
        self._master = master
        self._planned_at = now
        self._is_recovered = False
        self._loss = loss
        self.wants_flush = False
        self.pause_s = 0.0  # in which this process did not run, before the last plan()
        self._healthy = section.in_sync_min  # members, as of the last plan()

    def load(self, node: ReplicationNode | None, now: float) -> None:
        """Start from the *node* ZooKeeper had: the slaves listed have everything the previous master acknowledged."""
        self.node = node
        self._is_recovered = True
        self._planned_at = now
        for slave_id in node.in_sync if node is not None else ():
            self.slaves.setdefault(slave_id, InSyncState(last_heard=now, caught_up_at=now))

    # -- events -----------------------------------------------------------------------------------------------

    def on_connected(self, slave_id: int, end: Lsn, now: float, *, is_empty: bool = False) -> None:
        """Record an accepted slave. It has caught up once it has everything up to *end*, the journal's present end.

        *is_empty*: it has none of that. Raises LinkRefused if there are too many slaves.
        """
        if slave_id not in self.slaves and len(self.slaves) >= SLAVES_MAX:
            self._evict_one()
        replica = self.slaves.setdefault(slave_id, InSyncState(last_heard=now, caught_up_at=now))
        if replica.reported is None and slave_id not in self.members:
            replica.caught_up_at = now - self._section.lag_ms / 1000  # unknown: count it as lagging
        if is_empty and slave_id in self.members:
            replica.reported = NOTHING
        replica.last_heard, replica.is_linked, replica.catch_up_target = now, True, (end, now)

    def on_ack(self, slave_id: int, reported: Lsn, end: Lsn, now: float) -> None:
        """Record that a slave has everything below *reported*; *end* is the end of the master's journal."""
        replica = self.slaves[slave_id]
        replica.last_heard, replica.reported = now, reported
        if replica.catch_up_target is not None and reported >= replica.catch_up_target[0]:
            replica.caught_up_at = replica.catch_up_target[1]
            replica.catch_up_target = None
        if reported >= end:
            replica.caught_up_at = now
        elif replica.catch_up_target is None:
            replica.catch_up_target = (end, now)

    def on_disconnected(self, slave_id: int) -> None:
        """Record that the link is gone. The slave stays in sync until it has been silent for too long."""
        self.slaves[slave_id].is_linked = False

    # -- decisions --------------------------------------------------------------------------------------------

    @property
    def members(self) -> tuple[int, ...]:
        """Ids of the slaves in sync, as ZooKeeper lists them."""
        return self.node.in_sync if self.node is not None else ()

    @property
    def replicated(self) -> Lsn:
        """LSN below which every required slave has everything; LSN_MAX in mode async, once ZooKeeper says so: until
        then a promotion believes that the slaves named there have all."""
        if self._section.mode == "async":
            return NOTHING if self.node is not None and self.node.mode == "sync" and self.members else LSN_MAX
        if not self._is_recovered or self._loss.unconfirmed:
            return NOTHING
        if self._section.without_slaves == "refuse" and len(self.members) < self._section.in_sync_min:
            return NOTHING
        return min((self.slaves[slave_id].reported or NOTHING for slave_id in self._required), default=LSN_MAX)

    @property
    def _required(self) -> set[int]:
        """Slaves that must have everything: those in sync, and those about to be."""
        return {*self.members, *(self.writing.in_sync if self.writing is not None else ())}

    @property
    def is_under_min(self) -> bool:
        """True if fewer slaves are in sync, or healthy, than required."""
        return min(len(self.members), self._healthy) < self._section.in_sync_min

    @property
    def is_refusing(self) -> bool:
        """True if nothing is acknowledged because too few slaves are in sync."""
        return self._section.mode == "sync" and self._section.without_slaves == "refuse" and self.is_under_min

    def why_refusing(self) -> str:
        """Return why nothing is acknowledged; blank unless `is_refusing`."""
        if not self.is_refusing:
            return ""
        there = ",".join(map(str, self.members)) or "none"
        return f"slaves in sync: {there}, not all of them there: {self._section.in_sync_min} must be"

    def lag_s(self, slave_id: int, now: float) -> float:
        """Return how long ago the slave had everything, in seconds."""
        return max(now - self.slaves[slave_id].caught_up_at, 0.0)

    def why_not(self, slave_id: int, now: float) -> str:
        """Return why a slave is not in sync, or soon will not be; blank: it is."""
        replica, section = self.slaves[slave_id], self._section
        if now - replica.last_heard > section.silence_ms / 1000:
            return "silent"
        if not replica.is_linked and slave_id not in self.members:
            return "not-connected"
        if replica.reported is None:
            return "" if slave_id in self.members else "begins"
        if self.lag_s(slave_id, now) >= section.lag_ms / 1000:
            return "behind"
        return ""

    def plan(self, high_watermark: Lsn, now: float, flushed: Lsn = LSN_MAX) -> ReplicationNode | None:
        """Return the node to write to ZooKeeper, then call `on_written`; None: it is up to date, or being written.

        Call it every heartbeat. Everything below *high_watermark* is acknowledged; below *flushed* too, it is fsynced
        here. No slave leaves the set while acknowledged data is not fsynced here: `wants_flush` says that a flush is
        needed.
        """
        self.wants_flush = False
        self._forgive_pause(now)
        self._healthy = sum(not self.why_not(slave_id, now) for slave_id in self.members)
        if self.writing is not None or not self._is_recovered:
            return None
        wanted = self._wanted(high_watermark, now)
        if self.node is None and self._section.mode == "async" and not wanted.in_sync:
            return None  # a broker without slaves needs no node
        if wanted == self.node:
            return None
        if flushed < high_watermark and not set(self.members) <= set(wanted.in_sync):
            self.wants_flush = True
            return None
        self.writing = wanted
        return wanted

    def on_written(self, node: ReplicationNode) -> None:
        """Record that ZooKeeper has the node `plan` returned."""
        assert node is self.writing
        self._healthy += len(set(node.in_sync) - set(self.members))  # those that join are healthy
        self.node, self.writing = node, None

    def _wanted(self, high_watermark: Lsn, now: float) -> ReplicationNode:
        in_sync = []
        missing = self._lacking(high_watermark)
        for slave_id, replica in sorted(self.slaves.items()):
            has_all = replica.reported is not None and replica.reported >= high_watermark
            is_member = slave_id in self.members and slave_id not in missing
            if not self.why_not(slave_id, now) and (is_member or (replica.is_linked and has_all)):
                in_sync.append(slave_id)
        section = self._section
        if section.mode == "sync" and section.without_slaves == "refuse" and len(in_sync) < section.in_sync_min:
            # Nothing is acknowledged without the slaves that left: they still have everything and may be promoted.
            in_sync = sorted({*self.members, *in_sync} - missing)
        if self._loss.unconfirmed:
            in_sync = list(self.members)
        minimum = section.in_sync_min if section.mode == "sync" else 0
        claimed_by = self.node.claimed_by if self.node is not None and self.node.epoch == self._epoch else ""
        return ReplicationNode(
            epoch=self._epoch,
            mode=section.mode,
            in_sync=tuple(in_sync),
            in_sync_min=minimum,
            master=self._master,
            claimed_by=claimed_by,
        )

    def _lacking(self, high_watermark: Lsn) -> set[int]:
        """Slaves that lack acknowledged data, in sync or not: one whose directory was emptied starts from nothing."""
        if self._section.mode == "async":
            return set()
        return {
            number
            for number, replica in self.slaves.items()
            if replica.reported is not None and replica.reported < high_watermark
        }

    def _evict_one(self) -> None:
        kept = self._required
        for slave_id, replica in self.slaves.items():
            if not replica.is_linked and slave_id not in kept:
                del self.slaves[slave_id]
                return
        raise LinkRefused(f"{SLAVES_MAX} slaves follow this master already, no more than that can")

    def _forgive_pause(self, now: float) -> None:
        """Do not count time in which this process did not run against the slaves."""
        self.pause_s = max(now - self._planned_at - 2 * self._section.heartbeat_ms / 1000, 0.0)
        self._planned_at = now
        for replica in self.slaves.values():
            replica.last_heard = min(replica.last_heard + self.pause_s, now)
            replica.caught_up_at = min(replica.caught_up_at + self.pause_s, now)


def changed(before: ReplicationNode | None, after: ReplicationNode) -> tuple[str, str, str]:
    """Return the slaves that joined the in-sync set, that left it, and that are in it, for the log."""
    old, new = set(before.in_sync) if before is not None else set(), set(after.in_sync)
    return _ids(new - old), _ids(old - new), _ids(new)


def _ids(ids: set[int]) -> str:
    return ",".join(map(str, sorted(ids))) or "none"
