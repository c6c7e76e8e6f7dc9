"""Reports what corruption destroyed: the ranges that do not read back, and the offsets and branches affected.

The records after a gap show what it held: a PUT or COMMIT names its base offset, so that offsets between the last known
one and that were in the gap; a record of an unknown branch means that the branch began in the gap.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from journal.errors import InvalidRecord
from journal.records.codec import decode
from journal.records.header import Lsn, Offset
from journal.records.heuristics import HeuristicDecision
from journal.records.record import (
    NO_BRANCH,
    Commit,
    Heuristic,
    PartitionName,
    Prepare,
    PutBatch,
    PutRecord,
    Relocate,
    Rollback,
    TxPut,
)
from journal.records.xid import BranchKey, parse_key
from journal.state.checkpoint import Checkpoint
from journal.state.journal_state import JournalState
from journal.wal.record_window import unreadable_ranges
from journal.wal.scan import EndVerdict, ScanEnd, ScannedRecord, Scanner
from journal.wal.segments import Segments


class Gap(NamedTuple):
    """Bytes [start, end) of the journal that do not read back as records; *end* None: to the end of the journal."""

    start: Lsn
    end: Lsn | None
    reason: str
    writer_epoch: tuple[int, int]  # epoch and incarnation of the last good record before it
    is_unreadable: bool = False  # a record may begin there


class UnreadableBytes(NamedTuple):
    """Bytes [start, end) of the journal that the disk cannot read. *text* names file and error."""

    start: Lsn
    end: Lsn
    text: str


class LostOffsets(NamedTuple):
    """Offsets [start, end) of a partition, some or all of them in a gap; *end* None: unknown."""

    name: PartitionName
    start: Offset
    end: Offset | None
    why: str


class AffectedBranch(NamedTuple):
    """A branch with records that stood, or may have stood, in a gap."""

    key: BranchKey
    why: str


class UnknownLoss(NamedTuple):
    """Losses that nothing left can name: *bytes* at most, of *names* and perhaps of other partitions."""

    bytes: int
    names: tuple[PartitionName, ...]
    why: str


@dataclass(slots=True)
class Damage:
    """Losses by corruption, as far as the remaining records show.

    *unreadable*: unreadable bytes of the gaps; whole blocks, which may extend beyond them. *unknown*: what the other
    lists may lack.
    """

    gaps: list[Gap] = field(default_factory=list)
    unreadable: list[UnreadableBytes] = field(default_factory=list)
    offsets: list[LostOffsets] = field(default_factory=list)
    branches: list[AffectedBranch] = field(default_factory=list)
    unknown: list[UnknownLoss] = field(default_factory=list)


def assess(segments: Segments, end: ScanEnd, state: JournalState | None, checkpoint: Checkpoint | None) -> Damage:
    """Return the damage of the corruption that begins at *end*.

    *state*: the fold of every record before it; None if there is none: retention dropped the records before the first
    segment, and no checkpoint lies between, or records contradict one another. Then the records of the segments before
    it are read again, and *checkpoint* tells where partitions begin. *checkpoint*: the newest one, if it holds records
    after *end*.
    """
    survey = _Survey(state, Lsn(0)) if state is not None else _survey_before(segments, end.end, checkpoint)
    stop = end
    while True:
        survey.add_gap(Gap(stop.end, stop.next_valid_lsn, stop.reason, stop.writer_epoch, stop.is_unreadable))
        survey.damage.unreadable += _unreadable(segments, stop.end, stop.next_valid_lsn or segments.end)
        if stop.next_valid_lsn is None:
            break
        scanner = Scanner(segments, stop.next_valid_lsn)
        for entry in scanner:
            survey.add(entry)
        stop = scanner.judge_end()
        if stop.verdict is not EndVerdict.CORRUPT:
            break
    if checkpoint is not None:
        survey.add_checkpoint(checkpoint)
    survey.add_unresolved()
    if state is None:
        survey.add_unknown(segments, checkpoint)
    return survey.damage


def _survey_before(segments: Segments, end: Lsn, checkpoint: Checkpoint | None) -> "_Survey":
    """Return a survey of the records before *end*, without a fold of those that retention dropped."""
    survey = _Survey(JournalState(), segments.start)
    for entry in checkpoint.partitions if checkpoint is not None else ():
        survey.begin(PartitionName(entry.topic, entry.partition), Offset(entry.start))
    for record in Scanner(segments, segments.start):
        if record.header.lsn >= end:
            break
        survey.add(record)
    survey.damage = Damage()  # it began with what the first records assume, which is not lost
    return survey


def _unreadable(segments: Segments, start: int, end: int) -> Iterator[UnreadableBytes]:
    for base, file in segments:
        first, last = max(start - base, 0), min(end - base, file.size)
        for one in unreadable_ranges(file.reader(), first, last):
            yield UnreadableBytes(Lsn(base + one.position), Lsn(base + one.end), str(one))


class _Survey:
    """Survey of the records after the first gap."""

    def __init__(self, state: JournalState, start: Lsn) -> None:
        """*start*: branches that began below it are unknown to *state*."""
        self.damage = Damage()
        self._start = start
        self._ends = {name: offset_range.end for name, offset_range in state.offset_ranges.items()}
        self._unconfirmed: set[PartitionName] = set()  # partitions not named after the last gap
        # By first LSN of a branch, before or after the gap: its key and its bytes in each partition.
        self._branches = {
            lsn: (
                branch.key,
                {name: sum(extent.bytes for extent in extents) for name, extents in branch.extents.items()},
            )
            for lsn, branch in state.branches.items()
        }
        self._undecided: set[Lsn] = set()  # those that were live before it

    def begin(self, name: PartitionName, start: Offset) -> None:
        """Record where a partition begins."""
        self._ends[name] = start

    def add_gap(self, gap: Gap) -> None:
        self.damage.gaps.append(gap)
        self._unconfirmed.update(self._ends)
        self._undecided.update(self._branches)

    def add(self, entry: ScannedRecord) -> None:
        header = entry.header
        try:
            record = decode(header, entry.meta)
        except InvalidRecord:
            return  # whole, but of a newer metaq: its content is unknown
        match record:
            case PutRecord(name, base, _) | PutBatch(name, base, _):
                self._advance(name, base, header.body_bytes)
            case TxPut(key, branch_lsn, name, _) if branch_lsn == NO_BRANCH:
                self._branches[header.lsn] = key, {name: header.body_bytes}
            case TxPut(key, branch_lsn, name, _):
                put = self._bytes_put(key, branch_lsn)
                put[name] = put.get(name, 0) + header.body_bytes
            case Prepare(key, branch_lsn, _, _) | Relocate(key, branch_lsn, _, _, _, _):
                self._bytes_put(key, branch_lsn)
            case Rollback(key, branch_lsn, _):
                self._bytes_put(key, branch_lsn)
                self._ended(branch_lsn)
            case Heuristic(key, branch_lsn, decision):
                self._bytes_put(key, branch_lsn)
                if decision is HeuristicDecision.COMPLETE:
                    self._ended(branch_lsn)
            case Commit(key, branch_lsn, _, assignments):
                put = self._bytes_put(key, branch_lsn)
                is_affected = any(put.get(assignment.name, 0) != assignment.bytes for assignment in assignments)
                for assignment in assignments:
                    self._advance(assignment.name, assignment.base, assignment.bytes)
                    if is_affected:  # all of it: a branch is never published in part
                        end = Offset(assignment.base + assignment.bytes)
                        stood = "may have stood" if branch_lsn < self._start else "stood"
                        why = f"committed by {key}, some of whose messages {stood} there"
                        self.damage.offsets.append(LostOffsets(assignment.name, assignment.base, end, why))
                self._ended(branch_lsn)

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        is_behind_all = all(gap.end is not None and gap.end <= checkpoint.lsn for gap in self.damage.gaps)
        for entry in checkpoint.partitions:
            name = PartitionName(entry.topic, entry.partition)
            is_open = name in self._unconfirmed and not is_behind_all
            self._advance(name, Offset(entry.end), 0)
            if is_open:
                self._unconfirmed.add(name)
        if is_behind_all:
            self._undecided.difference_update(Lsn(live.first_lsn) for live in checkpoint.branches)
        for live in checkpoint.branches:
            if any(self._is_in_gap(extent.lsn, extent.bytes) for extent in live.extents):
                self.damage.branches.append(AffectedBranch(parse_key(live.key), "messages of it stood there"))

    def _is_in_gap(self, lsn: int, size: int) -> bool:
        return any((gap.end is None or lsn < gap.end) and lsn + size > gap.start for gap in self.damage.gaps)

    def add_unresolved(self) -> None:
        for name in sorted(self._unconfirmed):
            why = "no later record tells whether more was put"
            self.damage.offsets.append(LostOffsets(name, self._ends[name], None, why))
        for lsn in sorted(self._undecided):
            self._affects(self._branches[lsn][0], "live before it; its outcome may stand there")

    def add_unknown(self, segments: Segments, checkpoint: Checkpoint | None) -> None:
        """Record what the survey can't name, since there is no fold of the records before it."""
        size = sum((segments.end if gap.end is None else gap.end) - gap.start for gap in self.damage.gaps)
        if checkpoint is None:
            why = "no checkpoint behind it tells which partitions there are, and where they begin"
            self.damage.unknown.append(UnknownLoss(size, tuple(sorted(self._ends)), why))
        why = f"a branch that began before LSN {self._start}, or a decision about it, may have stood there unseen"
        self.damage.unknown.append(UnknownLoss(size, (), why))

    def _advance(self, name: PartitionName, base: Offset, size: int) -> None:
        known = self._ends.get(name, Offset(0))
        if base > known:
            self.damage.offsets.append(LostOffsets(name, known, base, "stood there, or was committed there"))
        self._ends[name] = Offset(max(known, base + size))
        self._unconfirmed.discard(name)

    def _bytes_put(self, key: BranchKey, branch_lsn: Lsn) -> dict[PartitionName, int]:
        """Return the bytes known to have been put to a branch, by partition; an unknown branch began in a gap."""
        if branch_lsn not in self._branches:
            if branch_lsn < self._start:
                self._affects(key, f"began before LSN {self._start}; messages of it may have stood there")
            else:
                self._affects(key, "began there")
            self._branches[branch_lsn] = key, {}
        return self._branches[branch_lsn][1]

    def _ended(self, branch_lsn: Lsn) -> None:
        self._branches.pop(branch_lsn, None)
        self._undecided.discard(branch_lsn)

    def _affects(self, key: BranchKey, why: str) -> None:
        self.damage.branches.append(AffectedBranch(key, why))
