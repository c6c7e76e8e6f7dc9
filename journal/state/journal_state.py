"""The state of a journal: what its records add up to. Pure.

It holds references to message bytes (LSN, length), never the bytes. Only `fold.apply` adds a record to it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from journal.records.epoch_history import WriterEpoch
from journal.records.extents import Extent, ExtentList
from journal.records.header import Lsn, Offset, RecordHeader
from journal.records.heuristics import HeuristicDecision, HeuristicEnd
from journal.records.ledger import Ledger
from journal.records.outcomes import Outcomes
from journal.records.producer_state import ProducerState
from journal.records.record import NO_BRANCH, OffsetAssignment, PartitionName
from journal.records.states import BranchState
from journal.records.topic_changes import TopicChange
from journal.records.xid import BranchKey, XaKey

ZERO = Offset(0)
# Its bookkeeping takes memory however few bytes an extent holds.
EXTENT_ACCOUNTED_BYTES_MIN = 4096


def accounted_bytes(extent_bytes: int) -> int:
    """Return the bytes that an extent of a live branch counts against the limit of open transactions."""
    return max(extent_bytes, EXTENT_ACCOUNTED_BYTES_MIN)


@dataclass(slots=True)
class OffsetRange:
    """A partition's offsets: [start, end). Invariant: start <= end; end only grows."""

    start: Offset = ZERO
    end: Offset = ZERO

    def append(self, base: int, size: int) -> None:
        """Move the end by *size* bytes that begin at *base*. Raises ValueError unless that is the end."""
        if base != self.end:
            raise ValueError(f"offsets [{base}, {base + size}) do not follow the end {self.end}")
        self.end = Offset(base + size)

    def skip_to(self, end: int) -> bool:
        """Move the end to *end*, since the bytes below were lost. Returns False if it is there already. Raises
        ValueError if it is beyond."""
        if end < self.end:
            raise ValueError(f"{end} is below the end {self.end}")
        is_behind, self.end = end > self.end, Offset(end)
        return is_behind


class Branch(msgspec.Struct, eq=False):
    """A transaction branch that has put something. Its extents are kept per partition, in put order."""

    key: BranchKey
    first_lsn: Lsn
    began_ms: int
    state: BranchState = BranchState.IN_USE
    prepared_ms: int = 0
    extents: dict[PartitionName, ExtentList] = msgspec.field(default_factory=dict)
    messages: int = 0
    bytes: int = 0
    accounted_bytes: int = 0
    decision: HeuristicDecision | None = None  # an operator's, carried out by the next record about the branch
    captured_by: object = None  # token of the last snapshot that captured it (snapshot.py)

    def add(self, name: PartitionName, extent: Extent) -> None:
        if (extents := self.extents.get(name)) is None:
            extents = self.extents[name] = ExtentList()
        extents.append(extent)
        self.messages += extent.messages
        self.bytes += extent.bytes
        self.accounted_bytes += accounted_bytes(extent.bytes)

    @property
    def oldest_lsn(self) -> Lsn:
        """Lowest LSN this branch still needs: that of its first extent, except during a relocation."""
        return next(iter(self.extents.values()))[0].lsn

    def assign_offsets(self, offset_ranges: dict[PartitionName, OffsetRange]) -> tuple[OffsetAssignment, ...]:
        """Return the offsets that a commit assigns now: each partition's extents contiguously from that partition's
        end."""
        return tuple(
            OffsetAssignment(
                name, offset_ranges[name].end if name in offset_ranges else ZERO, extents.bytes, extents.messages
            )
            for name, extents in self.extents.items()
        )


@dataclass(frozen=True, slots=True)
class UnresolvedLoss:
    """Unknowns that dropped records leave.

    *lsn*: after the last of them. *bytes*: upper bound on their message bytes. *names*: partitions whose end no later
    record has named; *is_open*: there may have been others.
    """

    lsn: Lsn
    bytes: int = 0
    names: set[PartitionName] = field(default_factory=set)
    is_open: bool = False
    branches: dict[BranchKey, Branch] = field(default_factory=dict)  # live before it; their ends may be lost

    @classmethod
    def after(cls, state: "JournalState", header: RecordHeader) -> "UnresolvedLoss":
        """Return the unresolved loss of *state* once the LOST record of *header* is added."""
        size = header.body_bytes + (state.unresolved_loss.bytes if state.unresolved_loss else 0)
        branches = {branch.key: branch for branch in state.branches.values()}
        return cls(header.end, size, set(state.offset_ranges), is_open=True, branches=branches)


@dataclass(slots=True)
class JournalState:
    """The fold of every record below *lsn*."""

    lsn: Lsn = NO_BRANCH
    epoch: int = 0
    incarnation: int = 0
    time_ms: int = 0  # the latest time any record carries
    checkpoint: int = 0  # number of the newest checkpoint file that a record mentions
    offset_ranges: dict[PartitionName, OffsetRange] = field(default_factory=dict)
    producers: ProducerState = field(default_factory=ProducerState)  # stored batches: a retry is stored once
    # By first LSN; the one with the oldest first extent comes first.
    branches: dict[Lsn, Branch] = field(default_factory=dict)
    outcomes: Outcomes = field(default_factory=Outcomes)  # how XA branches ended
    heuristics: dict[XaKey, HeuristicEnd] = field(default_factory=dict)  # ended by operators, until forgotten
    ledger: Ledger = field(default_factory=Ledger)  # findings about transactions, until forgotten
    branches_accounted_bytes: int = 0  # of all branches together
    topics: dict[str, TopicChange] = field(default_factory=dict)  # run-time decisions in force, by topic
    epoch_history: list[WriterEpoch] = field(default_factory=list)  # oldest first, at most EPOCH_HISTORY_MAX
    unresolved_loss: UnresolvedLoss | None = None  # left by dropped records, until a start resolves it
    before_change: Callable[[Branch], None] | None = None  # called before a record changes a live branch

    def end_of(self, name: PartitionName) -> Offset:
        """Return the offset of the partition's next message; makes no entry for a partition without messages."""
        return offset_range.end if (offset_range := self.offset_ranges.get(name)) is not None else ZERO

    def drop(self, branch: Branch) -> None:
        """Drop a live branch, publishing nothing."""
        del self.branches[branch.first_lsn]
        self.branches_accounted_bytes -= branch.accounted_bytes

    def branch_with(self, topic: str) -> Branch | None:
        """Return a live branch that has messages for *topic*, or None."""
        branches = self.branches.values()
        return next((one for one in branches if any(name.topic == topic for name in one.extents)), None)

    def offset_range(self, name: PartitionName) -> OffsetRange:
        """Return the partition's offsets; made on first use."""
        if (offset_range := self.offset_ranges.get(name)) is None:
            offset_range = self.offset_ranges[name] = OffsetRange()
        return offset_range
