"""Tracks whether this master has lost what was acknowledged, and who can tell: one table, one walker. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

from journal.records.epoch_history import WriterEpoch
from journal.records.header import Lsn
from journal.records.state_table import IdentityEnum, walk
from journal.wal.segments import JournalIdentity
from meta_broker.replication.link_protocol import Handshake, LinkRefused
from meta_broker.replication.master.handshake import (
    MasterJournal,
    SendProgress,
    StartFetch,
    StartResync,
    StartStream,
    decide_start,
    would_truncate,
)
from zk.brokers.journal_position import JournalPosition
from zk.brokers.replication import ReplicationNode


class LossState(IdentityEnum):
    """State of a master's knowledge of its own loss."""

    WHOLE = "nothing says that acknowledged data is missing"
    UNCONFIRMED = "acknowledged data may be missing: nothing is acknowledged before one of `unconfirmed` reports"
    FETCHED = "what is missing was fetched: this master ends, and starts again with it"


class LossEvent(IdentityEnum):
    """Event that may change the state."""

    SUSPECTED = "this master was not whole at its start, or a slave has more than it"
    CONFIRMED = "a slave that must have everything acknowledged has no more than this master"
    FETCHED = "the tail is here"


S = LossState
E = LossEvent

NEXT: Final[Mapping[S, Mapping[E, S]]] = {
    S.WHOLE: {E.SUSPECTED: S.UNCONFIRMED},
    S.UNCONFIRMED: {E.SUSPECTED: S.UNCONFIRMED, E.CONFIRMED: S.WHOLE, E.FETCHED: S.FETCHED},
    S.FETCHED: {E.SUSPECTED: S.FETCHED, E.FETCHED: S.FETCHED},
}


class LossCheck:
    """Knowledge of one master about data that was acknowledged before its epoch, and may be missing here."""

    def __init__(
        self, *, is_sync: bool = True, knows_in_sync: bool = True, dropped: Iterable[WriterEpoch] = ()
    ) -> None:
        """*is_sync*: slaves must have what is acknowledged. *knows_in_sync*: there is a ZooKeeper that lists those in
        sync. *dropped*: epochs replaced by a tail fetched before.
        """
        self.state = LossState.WHOLE
        self.unconfirmed: frozenset[int] = frozenset()  # one of these slaves must report; empty while WHOLE
        self._is_sync = is_sync
        self._knows_in_sync = knows_in_sync
        self._dropped = frozenset(dropped)
        self._authorities: frozenset[int] = frozenset()  # slaves in sync when this master began
        self._position: JournalPosition | None = None  # ZooKeeper's, of what was acknowledged before this master began
        self._streamed_to: set[int] = set()  # those of them that were accepted
        self._started_empty: set[int] = set()  # their data came from here: they cannot confirm that nothing is missing

    def load(self, node: ReplicationNode | None, *, is_whole: bool, position: JournalPosition | None = None) -> None:
        """Start from the *node* and *position* ZooKeeper had. *is_whole*: everything acknowledged is here, as was
        written down."""
        self._position = position
        if node is not None and node.mode == "sync":
            self._authorities = frozenset(node.in_sync)
            if not is_whole:
                self.suspect(node.in_sync)

    def suspect(self, slaves: Iterable[int]) -> None:
        """Record that acknowledged data may be missing here, and that each of *slaves* has it."""
        self.unconfirmed |= frozenset(slaves)
        if self.unconfirmed:
            self._on(LossEvent.SUSPECTED)

    def decide_start(
        self, handshake: Handshake, identity: JournalIdentity, ours: MasterJournal, acknowledged: Lsn
    ) -> StartStream | StartFetch | StartResync:
        """Decide how to start a slave. Raises LinkRefused, also where it would drop what may be missing here."""
        slave_id = handshake.slave_id
        self._check_newest(handshake)
        found = decide_start(
            handshake,
            identity,
            ours,
            is_authority=self._is_authority(handshake, ours, acknowledged),
            was_streamed=slave_id in self._streamed_to,
            dropped=self._dropped,
        )
        if self.unconfirmed and would_truncate(handshake, found):
            raise LinkRefused(
                f"this master may have lost what that slave has, and nothing is truncated before one of slaves "
                f"{self.names(', ')} connects, which were in sync"
            )
        if isinstance(found, StartResync) and found.is_empty:
            if slave_id in self.unconfirmed:
                # Once fed, it would count as having everything: at its next link, or at this master's next start.
                raise LinkRefused(
                    f"this master may have lost what slave {slave_id} had, which was in sync and has nothing "
                    f"now: bring its directory back, or begin another slave, with a number that was never in sync"
                )
            self._started_empty.add(slave_id)
        return found

    def _check_newest(self, handshake: Handshake) -> None:
        """Check that a slave that is waited for is not an older copy of the one that was in sync: that would confirm
        what it can't know. Raises LinkRefused."""
        position, slave_id = self._position, handshake.slave_id
        if position is None or slave_id not in self.unconfirmed or not handshake.epoch_history:
            return
        if handshake.epoch_history[-1][0] <= position.epoch and handshake.end < position.end:
            raise LinkRefused(
                f"slave {slave_id} was in sync, and has less than was acknowledged: its journal ends at LSN "
                f"{handshake.end}, and ZooKeeper knows LSN {position.end}: its directory is an older copy, start the "
                f"newest one"
            )

    def _is_authority(self, handshake: Handshake, ours: MasterJournal, acknowledged: Lsn) -> bool:
        """Return whether the slave may have acknowledged data that this master lost.

        False once something of this epoch is acknowledged: before that a slave in sync has confirmed that nothing is
        missing, or the set was given up.
        """
        own = ours.epoch_history[-1]
        if not self._is_sync or acknowledged > own.lsn:
            return False
        if self._knows_in_sync:
            return handshake.slave_id in self._authorities
        # Without ZooKeeper the in-sync set is unknown: a slave with all that was recovered here, and more, may be one.
        return handshake.end > own.lsn and handshake.epoch_history[-1:] == tuple(ours.epoch_history[-2:][:1])

    def on_streaming(self, slave_id: int) -> None:
        """Record that the slave was accepted: from now on it may have some of this epoch."""
        if slave_id in self._authorities:
            self._streamed_to.add(slave_id)

    def confirm(self, side: SendProgress) -> bool:
        """Record that the slave has no more than this master. True: nothing is suspected any more."""
        can_tell = side.keeps_own_journal and side.slave_id not in self._started_empty
        if self.state is not LossState.UNCONFIRMED or not can_tell or side.slave_id not in self.unconfirmed:
            return False
        self.unconfirmed = frozenset()
        self._on(LossEvent.CONFIRMED)
        return True

    def on_fetched(self) -> None:
        """Record that the tail is here: this master acknowledges nothing any more."""
        self._on(LossEvent.FETCHED)

    def names(self, separator: str) -> str:
        """Return the slaves of which one must report."""
        return separator.join(map(str, sorted(self.unconfirmed)))

    def _on(self, event: LossEvent) -> None:
        self.state = walk(NEXT, self.state, event)
