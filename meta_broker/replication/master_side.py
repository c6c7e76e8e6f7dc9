"""One slave as its master sees it: who it is, what it is sent next, what it has. Pure; no socket, no clock."""

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from journal.frame import HEADER_BYTES, Lsn
from journal.lives import Life, parting
from journal.segments import Identity
from meta_broker.replication.errors import LinkRefused
from meta_broker.replication.frames import VERSION, Hello

# Of the journal in one DATA frame. A slave that catches up is sent so much before the others have their turn, and so
# much stands in the buffer of one that takes nothing.
PIECE_BYTES_MAX: Final = 256 * 1024
PROOF_BYTES_MAX: Final = 4096


class Extent(NamedTuple):
    """What the master has: bytes [start, end) of a journal of these lives. *start*: of its first segment."""

    lives: Sequence[Life]
    start: Lsn
    end: Lsn


class Share(NamedTuple):
    """The logs part at *parting*, where the stream begins."""

    parting: Lsn


class Lacking(NamedTuple):
    """The slave has more of a life of the master's than the master has: from *parting* on, to where the slave ends."""

    parting: Lsn


class FromAnew(NamedTuple):
    """What the slave has is of no use. *is_empty*: it has nothing, so that nothing is lost by it."""

    reason: str
    is_empty: bool


def judge(
    hello: Hello,
    identity: Identity,
    ours: Extent,
    *,
    is_authority: bool = False,
    was_fed: bool = False,
    dropped: Collection[Life] = (),
) -> Share | Lacking | FromAnew:
    """What to begin with for the slave that said *hello*. Raises LinkRefused: it must not follow this master.

    *is_authority*: the slave has everything that was acknowledged before this master's newest life, and of that life
    nothing is acknowledged. It is never told to drop anything. *was_fed*: it was sent some of that life.
    *dropped*: lives of which nothing was acknowledged, and the master has nothing any more.
    """
    if hello.version != VERSION:
        raise LinkRefused(
            f"the slave speaks version {hello.version} of the link, the master {VERSION}: update the older"
        )
    theirs = Identity(hello.cluster, hello.broker_id)
    if theirs != identity:
        raise LinkRefused(f"the slave's journal is of {theirs}, the master's of {identity}: name another master")
    lives = [Life(epoch, incarnation, Lsn(lsn)) for epoch, incarnation, lsn in hello.lives]
    if any(later <= earlier for earlier, later in pairwise(lives)):
        raise LinkRefused("the slave's lives do not rise: check its journal with `metaq journal check`")
    if not lives:
        return FromAnew("it has no journal yet", is_empty=True)
    newest = ours.lives[-1]
    if is_authority and lives[-1].epoch == newest.epoch:
        lacking = _lacking(hello, lives, ours, was_fed=was_fed, dropped=dropped)
        if lacking is not None:
            return lacking
    if lives[-1].epoch > newest.epoch:
        raise LinkRefused(
            f"the slave follows epoch {lives[-1].epoch}, this master has epoch {newest.epoch}: it was superseded"
        )
    if lives[-1] == newest and hello.end > ours.end:
        raise LinkRefused(
            f"the slave claims to have LSN {hello.end} of the master's own life, which ends at {ours.end}: "
            f"check its journal with `metaq journal check`"
        )
    shared = parting(ours.lives, ours.end, lives, hello.end)
    if shared is None:
        return FromAnew("no life of its journal is known here", is_empty=False)
    if shared < ours.start:
        return FromAnew(f"its journal parts at LSN {shared}, and the master's begins at {ours.start}", is_empty=False)
    if shared < hello.start:
        return FromAnew(f"the journals part at LSN {shared}, before its own begins, at {hello.start}", is_empty=False)
    return Share(shared)


def drops(hello: Hello, found: Share | Lacking | FromAnew) -> bool:
    """Would the slave that said *hello* drop some of what it has?"""
    match found:
        case Share(parting):
            return parting < hello.end
        case FromAnew(_, is_empty):
            return not is_empty
        case Lacking():
            return False


def _lacking(
    hello: Hello, lives: Sequence[Life], ours: Extent, *, was_fed: bool, dropped: Collection[Life]
) -> Lacking | None:
    """What the slave has and this master lost; None: nothing. Raises LinkRefused where it can't be taken from there."""
    own = ours.lives[-1]
    if was_fed and own in lives:
        return None
    # Where it was not, and knows this life, that was another one with the same numbers: ours are an older copy's.
    shared = parting(ours.lives[:-1], own.lsn, lives, hello.end)
    # Two slaves in sync may part: what one has in a life that went for the other's tail would take that away again.
    end = min([hello.end, *(life.lsn for life in lives if life in dropped)])
    if shared is not None and end - shared < HEADER_BYTES:
        return None  # no record is so short
    if shared is None or shared < max(ours.start, hello.start):
        where = "nothing" if shared is None else f"the journal up to LSN {shared}"
        raise LinkRefused(
            f"slave {hello.slave_id} was in sync and shares {where} with this master, which lost the rest: stop this "
            f"master, make that slave the master with `metaq promote`, and this one will follow it"
        )
    return Lacking(shared)


class MasterSide:
    """What one slave that was let in has and is sent. Invariant: reported <= sent <= the master's end."""

    __slots__ = ("is_shared", "reported", "sent", "slave_id")

    def __init__(self, slave_id: int, begin: Lsn, *, is_shared: bool = False) -> None:
        """*is_shared*: the slave's own journal goes up to *begin*; else what it had was of no use."""
        self.slave_id = slave_id
        self.is_shared = is_shared
        self.sent = begin  # the next byte to send
        self.reported: Lsn | None = None  # below it, everything is fsynced there; None: it has not said

    def next_bytes(self, written: Lsn, segment_end: Lsn) -> int:
        """How many bytes from `sent` on to send next, of what is *written*; 0: nothing, for now.

        *segment_end*: of the segment that `sent` lies in: a piece never crosses it.
        """
        return max(min(written, segment_end, self.sent + PIECE_BYTES_MAX) - self.sent, 0)

    def went(self, size: int) -> None:
        """*size* bytes from `sent` on were sent."""
        self.sent = Lsn(self.sent + size)

    def report(self, flushed: Lsn) -> None:
        """The slave says what it has. Raises LinkRefused for what it can't have, and for less than it had."""
        if flushed > self.sent:
            raise LinkRefused(f"slave {self.slave_id} claims to have LSN {flushed}, and was sent {self.sent}")
        if self.reported is not None and flushed < self.reported:
            raise LinkRefused(f"slave {self.slave_id} has LSN {flushed}, and had {self.reported} before")
        self.reported = flushed
