"""The master's side of a handshake: where a slave's copy starts, and how far it has got. Pure; no socket, no clock."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from journal.records.epoch_history import WriterEpoch, divergence_lsn
from journal.records.header import HEADER_BYTES, Lsn
from journal.wal.segments import JournalIdentity
from meta_broker.replication.link_protocol import CHUNK_BYTES_MAX, VERSION, Handshake, LinkRefused

PROOF_BYTES_MAX: Final = 4096


class MasterJournal(NamedTuple):
    """The master's journal: bytes [start, end), written in *epoch_history*. *start*: of its first segment."""

    epoch_history: Sequence[WriterEpoch]
    start: Lsn
    end: Lsn


@dataclass(frozen=True, slots=True)  # and those below: as tuples they would be equal to one another
class StartStream:
    """The journals diverge at *divergence_lsn*; the stream begins there."""

    divergence_lsn: Lsn


@dataclass(frozen=True, slots=True)
class StartFetch:
    """The slave has more of one of the master's epochs than the master: from *divergence_lsn* to the slave's end."""

    divergence_lsn: Lsn


@dataclass(frozen=True, slots=True)
class StartResync:
    """The slave's data is unusable. *is_empty*: it has none, so nothing is lost."""

    reason: str
    is_empty: bool


def decide_start(
    handshake: Handshake,
    identity: JournalIdentity,
    ours: MasterJournal,
    *,
    is_authority: bool = False,
    was_streamed: bool = False,
    dropped: Collection[WriterEpoch] = (),
) -> StartStream | StartFetch | StartResync:
    """Decide how to start the slave that sent *handshake*. Raises LinkRefused if it must not follow this master.

    *is_authority*: the slave has everything acknowledged before this master's newest epoch, and nothing of that epoch
    is acknowledged; such a slave is never told to drop data. *was_streamed*: it was sent some of that epoch. *dropped*:
    epochs in which nothing was acknowledged and of which the master has nothing any more.
    """
    if handshake.version != VERSION:
        raise LinkRefused(
            f"the slave speaks version {handshake.version} of the link, the master {VERSION}: update the older"
        )
    theirs = JournalIdentity(handshake.cluster, handshake.broker_id)
    if theirs != identity:
        raise LinkRefused(f"the slave's journal is of {theirs}, the master's of {identity}: name another master")
    epoch_history = [WriterEpoch(epoch, incarnation, Lsn(lsn)) for epoch, incarnation, lsn in handshake.epoch_history]
    if any(later <= earlier for earlier, later in pairwise(epoch_history)):
        raise LinkRefused("the slave's epochs are not in order: check its journal with `metaq journal check`")
    if not epoch_history:
        return StartResync("it has no journal yet", is_empty=True)
    newest = ours.epoch_history[-1]
    if is_authority and epoch_history[-1].epoch == newest.epoch:
        missing = _lacking(handshake, epoch_history, ours, was_streamed=was_streamed, dropped=dropped)
        if missing is not None:
            return missing
    if epoch_history[-1].epoch > newest.epoch:
        raise LinkRefused(
            f"the slave follows epoch {epoch_history[-1].epoch}, "
            f"this master has epoch {newest.epoch}: it was superseded"
        )
    if epoch_history[-1] == newest and handshake.end > ours.end:
        raise LinkRefused(
            f"the slave claims to have LSN {handshake.end} of the master's own epoch, which ends at {ours.end}: "
            f"check its journal with `metaq journal check`"
        )
    shared = divergence_lsn(ours.epoch_history, ours.end, epoch_history, handshake.end)
    if shared is None:
        return StartResync("no epoch of its journal is known here", is_empty=False)
    if shared < ours.start:
        return StartResync(
            f"its journal diverges at LSN {shared}, and the master's begins at {ours.start}", is_empty=False
        )
    if shared < handshake.start:
        return StartResync(
            f"the journals diverge at LSN {shared}, before its own begins, at {handshake.start}", is_empty=False
        )
    return StartStream(shared)


def check_cluster_id(handshake: Handshake, ours: str | None) -> None:
    """Raise LinkRefused if the slave's directory is of another cluster than the master's; either may be unknown."""
    if handshake.cluster_id and ours and handshake.cluster_id != ours:
        raise LinkRefused(
            f"the slave is of the cluster with id {handshake.cluster_id}, the master of that with {ours}: name another "
            f"master"
        )


def would_truncate(handshake: Handshake, found: StartStream | StartFetch | StartResync) -> bool:
    """Return whether the slave that sent *handshake* would drop data."""
    match found:
        case StartStream(lsn):
            return lsn < handshake.end
        case StartResync(_, is_empty):
            return not is_empty
        case StartFetch():
            return False


def _lacking(
    handshake: Handshake,
    epoch_history: Sequence[WriterEpoch],
    ours: MasterJournal,
    *,
    was_streamed: bool,
    dropped: Collection[WriterEpoch],
) -> StartFetch | None:
    """Return what the slave has and this master lost; None: nothing. Raises LinkRefused if it cannot be fetched from
    there.
    """
    own = ours.epoch_history[-1]
    if was_streamed and own in epoch_history:
        return None
    # A slave that knows this epoch without having been sent it means another one with the same numbers: ours is an
    # older copy.
    shared = divergence_lsn(ours.epoch_history[:-1], own.lsn, epoch_history, handshake.end)
    # Two in-sync slaves may diverge: an epoch dropped for one slave's tail must not be fetched back from the other.
    end = min([handshake.end, *(epoch.lsn for epoch in epoch_history if epoch in dropped)])
    if shared is not None and end - shared < HEADER_BYTES:
        return None  # shorter than any record
    if shared is None or shared < max(ours.start, handshake.start):
        where, then = f"the journal up to LSN {shared}", "and this one will follow it"
        if shared is None:
            where, then = "nothing", "and start this one with an empty directory: it will follow"
        raise LinkRefused(
            f"slave {handshake.slave_id} was in sync and shares {where} with this master, which lost the rest: stop "
            f"this master, make that slave the master with `metaq promote`, {then}"
        )
    return StartFetch(shared)


class SendProgress:
    """Progress of one accepted slave. Invariant: reported <= sent <= the master's end."""

    __slots__ = ("keeps_own_journal", "reported", "sent", "slave_id")

    def __init__(self, slave_id: int, begin: Lsn, *, keeps_own_journal: bool = False) -> None:
        """*keeps_own_journal*: the slave's own journal is valid up to *begin*; else its data was unusable."""
        self.slave_id = slave_id
        self.keeps_own_journal = keeps_own_journal
        self.sent = begin  # the next byte to send
        self.reported: Lsn | None = None  # everything below is fsynced there; None: unknown

    def next_bytes(self, written: Lsn, segment_end: Lsn) -> int:
        """Return how many of the bytes *written* to send next, from `sent` on; 0: none for now.

        *segment_end*: end of the segment that `sent` lies in; a piece never crosses it.
        """
        return max(min(written, segment_end, self.sent + CHUNK_BYTES_MAX) - self.sent, 0)

    def advance(self, size: int) -> None:
        self.sent = Lsn(self.sent + size)

    def report(self, flushed: Lsn) -> None:
        """Record what the slave has fsynced. Raises LinkRefused if that is more than it was sent, or less than
        before.
        """
        if flushed > self.sent:
            raise LinkRefused(f"slave {self.slave_id} claims to have LSN {flushed}, and was sent {self.sent}")
        if self.reported is not None and flushed < self.reported:
            raise LinkRefused(f"slave {self.slave_id} has LSN {flushed}, and had {self.reported} before")
        self.reported = flushed
