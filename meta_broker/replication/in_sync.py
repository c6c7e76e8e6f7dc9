"""Which slaves are in sync, and how far everything is replicated. Pure: time is passed in, in seconds.

The set is acted upon as ZooKeeper has it. A slave leaves it there before anything is acknowledged without it, and is
waited for from the moment at which it may stand there: so whoever is named there has everything that was acknowledged.
"""

from dataclasses import dataclass

from journal.fence import LSN_MAX
from journal.frame import Lsn
from meta_broker.replication.errors import LinkRefused
from meta_broker.replication.section import ReplicationSection
from zk.replication import ReplicationNode

NOTHING = Lsn(0)
SLAVES_MAX = 100  # that are remembered: each is a name that somebody gave


@dataclass(slots=True)
class SlaveView:
    """What is known of one slave."""

    heard: float  # when it last said something, or might have
    caught_up: float  # when it last had all that there was
    reported: Lsn | None = None  # below it, everything is fsynced there; None: it has not said, in this master's life
    is_linked: bool = False
    mark: tuple[Lsn, float] | None = None  # an end of the master's, and when: it has caught up with that once it has it


class InSync:
    """The in-sync set of one master. Until `recovered`, nothing counts as replicated."""

    def __init__(self, section: ReplicationSection, epoch: int, master: str, now: float) -> None:
        self.slaves: dict[int, SlaveView] = {}
        self.node: ReplicationNode | None = None  # as it stands in ZooKeeper, as far as we know
        self.writing: ReplicationNode | None = None  # it may stand there already
        self._section = section
        self._epoch = epoch
        self._master = master
        self._looked = now
        self._is_recovered = False
        # One of these slaves must have said what it has before anybody leaves the set, and before anything is
        # acknowledged: this master may have lost some of that.
        self.unheard: frozenset[int] = frozenset()
        self.wants_flush = False
        self._well = section.in_sync_min  # of the members, as of the last look

    def recovered(self, node: ReplicationNode | None, now: float, *, is_whole: bool = True) -> None:
        """What stood in ZooKeeper when this master began: whoever is named there has what the last one acknowledged.

        *is_whole*: so has this one.
        """
        self.node = node
        if not is_whole and node is not None and node.mode == "sync":
            self.unheard = frozenset(node.in_sync)
        self._is_recovered = True
        self._looked = now
        for slave_id in node.in_sync if node is not None else ():
            self.slaves.setdefault(slave_id, SlaveView(heard=now, caught_up=now))

    def doubt(self, slave_id: int) -> None:
        """That slave has what this master has not."""
        self.unheard |= {slave_id, *self.members}

    def confirmed(self, slave_id: int) -> bool:
        """That slave has no more than this master. Was it one of those that had to say so?"""
        if slave_id not in self.unheard:
            return False
        self.unheard = frozenset()
        return True

    # -- what slaves do ---------------------------------------------------------------------------------------

    def linked(self, slave_id: int, end: Lsn, now: float, *, begins_anew: bool = False) -> None:
        """A slave was let in. It has caught up once it has what there is now, up to *end*.

        *begins_anew*: it has nothing of that. Raises LinkRefused: there are too many.
        """
        if slave_id not in self.slaves and len(self.slaves) >= SLAVES_MAX:
            self._forget_one()
        view = self.slaves.setdefault(slave_id, SlaveView(heard=now, caught_up=now))
        if view.reported is None and slave_id not in self.members:
            view.caught_up = now - self._section.lag_ms / 1000  # nobody knows when it had everything
        if begins_anew and slave_id in self.members:
            view.reported = NOTHING
        view.heard, view.is_linked, view.mark = now, True, (end, now)

    def heard(self, slave_id: int, reported: Lsn, end: Lsn, now: float) -> None:
        """A slave has everything below *reported*; the master's journal goes up to *end*."""
        view = self.slaves[slave_id]
        view.heard, view.reported = now, reported
        if view.mark is not None and reported >= view.mark[0]:
            view.caught_up = view.mark[1]
            view.mark = None
        if reported >= end:
            view.caught_up = now
        elif view.mark is None:
            view.mark = (end, now)

    def lost(self, slave_id: int) -> None:
        """Its link is gone. It stays in sync until it was silent for too long."""
        self.slaves[slave_id].is_linked = False

    # -- what follows -----------------------------------------------------------------------------------------

    @property
    def members(self) -> tuple[int, ...]:
        """Who is in sync, as ZooKeeper has it."""
        return self.node.in_sync if self.node is not None else ()

    @property
    def replicated(self) -> Lsn:
        """Below it, everybody who must have it has it; LSN_MAX in mode async."""
        if self._section.mode == "async":
            return LSN_MAX
        if not self._is_recovered or self.unheard:
            return NOTHING
        if self._section.without_slaves == "refuse" and len(self.members) < self._section.in_sync_min:
            return NOTHING
        return min((self.slaves[slave_id].reported or NOTHING for slave_id in self._acting), default=LSN_MAX)

    @property
    def _acting(self) -> set[int]:
        """Who must have it: who is in sync, and who may be by now."""
        return {*self.members, *(self.writing.in_sync if self.writing is not None else ())}

    @property
    def is_short(self) -> bool:
        """Whether fewer slaves are in sync than should be, or those do not talk."""
        return min(len(self.members), self._well) < self._section.in_sync_min

    @property
    def is_refusing(self) -> bool:
        """Whether nothing is acknowledged because too few slaves are in sync."""
        return self._section.mode == "sync" and self._section.without_slaves == "refuse" and self.is_short

    def lag_s(self, slave_id: int, now: float) -> float:
        """How long ago a slave had all that there was."""
        return max(now - self.slaves[slave_id].caught_up, 0.0)

    def why_not(self, slave_id: int, now: float) -> str:
        """Why a slave is not in sync, or will not be for long; blank: it is."""
        view, section = self.slaves[slave_id], self._section
        if now - view.heard > section.silence_ms / 1000:
            return "silent"
        if not view.is_linked and slave_id not in self.members:
            return "not-connected"
        if view.reported is None:
            return "" if slave_id in self.members else "begins"
        if self.lag_s(slave_id, now) >= section.lag_ms / 1000:
            return "behind"
        return ""

    def look(self, fence: Lsn, now: float, flushed: Lsn = LSN_MAX) -> ReplicationNode | None:
        """Due each heart-beat: the node to write to ZooKeeper, then call `written`; None: it is right, or being
        written. *fence*: everything below it is acknowledged; *flushed*: and below that, fsynced here.

        Nobody leaves with what is acknowledged and not fsynced here: `wants_flush` says that this is waited for.
        """
        self.wants_flush = False
        self._forgive_pause(now)
        self._well = sum(not self.why_not(slave_id, now) for slave_id in self.members)
        if self.writing is not None or not self._is_recovered:
            return None
        wanted = self._wanted(fence, now)
        if self.node is None and self._section.mode == "async" and not wanted.in_sync:
            return None  # a broker that never had a slave leaves no trace
        if wanted == self.node:
            return None
        if flushed < fence and not set(self.members) <= set(wanted.in_sync):
            self.wants_flush = True
            return None
        self.writing = wanted
        return wanted

    def written(self, node: ReplicationNode) -> None:
        """What `look` gave stands in ZooKeeper."""
        assert node is self.writing
        self._well += len(set(node.in_sync) - set(self.members))  # who joins is well
        self.node, self.writing = node, None

    def _wanted(self, fence: Lsn, now: float) -> ReplicationNode:
        in_sync = []
        lacking = self._lacking(fence)
        for slave_id, view in sorted(self.slaves.items()):
            has_all = view.reported is not None and view.reported >= fence
            is_member = slave_id in self.members and slave_id not in lacking
            if not self.why_not(slave_id, now) and (is_member or (view.is_linked and has_all)):
                in_sync.append(slave_id)
        section = self._section
        if section.mode == "sync" and section.without_slaves == "refuse" and len(in_sync) < section.in_sync_min:
            # Nothing is acknowledged without those who left, so that they have everything still, and may be promoted.
            in_sync = sorted({*self.members, *in_sync} - lacking)
        if self.unheard:
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

    def _lacking(self, fence: Lsn) -> set[int]:
        """Who lacks what was acknowledged, and was in sync or not: a slave whose directory was emptied begins anew."""
        if self._section.mode == "async":
            return set()
        return {number for number, view in self.slaves.items() if view.reported is not None and view.reported < fence}

    def _forget_one(self) -> None:
        kept = self._acting
        for slave_id, view in self.slaves.items():
            if not view.is_linked and slave_id not in kept:
                del self.slaves[slave_id]
                return
        raise LinkRefused(f"{SLAVES_MAX} slaves follow this master already, no more than that can")

    def _forgive_pause(self, now: float) -> None:
        """Time in which this process did not run, stopped or starved, says nothing about slaves."""
        pause = now - self._looked - 2 * self._section.heartbeat_ms / 1000
        self._looked = now
        if pause > 0:
            for view in self.slaves.values():
                view.heard = min(view.heard + pause, now)
                view.caught_up = min(view.caught_up + pause, now)


def changed(before: ReplicationNode | None, after: ReplicationNode) -> str:
    """What a change of the node says of the set, for the log."""
    old, new = set(before.in_sync) if before is not None else set(), set(after.in_sync)
    return f"joined={_ids(new - old)} left={_ids(old - new)} in_sync={_ids(new)}"


def _ids(ids: set[int]) -> str:
    return ",".join(map(str, sorted(ids))) or "none"
