"""What rot took: the stretches that do not read back, and the offsets and branches that stood in them.

The records behind a hole tell by what they assume: a PUT or COMMIT names the offset it begins at, so that
offsets between what was known before and that were in the hole; a record of a branch that nobody has seen began
there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from journal.checkpoint import Checkpoint
from journal.errors import InvalidRecord
from journal.fold import JournalState
from journal.frame import Lsn, Offset
from journal.heuristics import HeuristicDecision
from journal.record_codec import decode
from journal.record_window import unreadable_ranges
from journal.records import NO_BRANCH, Carry, Commit, Heuristic, PartitionName, Prepare, Put, PutBatch, Rollback, TxPut
from journal.scan import Entry, ScanEnd, Scanner, Verdict
from journal.segments import Segments
from journal.xid import BranchKey


class Hole(NamedTuple):
    """Bytes [start, end) of the journal that do not read back as records; *end* None: to the end of the journal."""

    start: Lsn
    end: Lsn | None
    reason: str
    life: tuple[int, int]  # epoch and incarnation of the last good record before it
    is_unreadable: bool = False  # whether a record begins there, nobody can tell


class UnreadableBytes(NamedTuple):
    """Bytes [start, end) of the journal that the disk does not give back. *text* names file and error."""

    start: Lsn
    end: Lsn
    text: str


class LostOffsets(NamedTuple):
    """Offsets [start, end) of a partition of which some or all stood in a hole; *end* None: nothing tells how far."""

    name: PartitionName
    start: Offset
    end: Offset | None
    why: str


class HurtBranch(NamedTuple):
    """A branch some of whose records stood, or may have stood, in a hole."""

    key: BranchKey
    why: str


@dataclass(slots=True)
class Damage:
    """Everything that rot took, as far as what is left can tell.

    *unreadable*: what the disk does not give back of the holes; whole blocks, which may reach beyond them.
    """

    holes: list[Hole] = field(default_factory=list)
    unreadable: list[UnreadableBytes] = field(default_factory=list)
    offsets: list[LostOffsets] = field(default_factory=list)
    branches: list[HurtBranch] = field(default_factory=list)


def assess(segments: Segments, end: ScanEnd, state: JournalState | None, checkpoint: Checkpoint | None) -> Damage:
    """What the rot that begins at *end* took.

    *state*: the fold of every record before it; None, when there is none, and then only the holes are told.
    *checkpoint*: the newest one, if it holds records behind *end*.
    """
    survey = _Survey(state or JournalState())
    stop = end
    while True:
        survey.add_hole(Hole(stop.end, stop.resumes, stop.reason, stop.life, stop.is_unreadable))
        survey.damage.unreadable += _unreadable(segments, stop.end, stop.resumes or segments.end)
        if stop.resumes is None:
            break
        scanner = Scanner(segments, stop.resumes)
        for entry in scanner:
            survey.add(entry)
        stop = scanner.finish()
        if stop.verdict is not Verdict.ROTTEN:
            break
    if state is None:
        return Damage(survey.damage.holes, survey.damage.unreadable)
    if checkpoint is not None:
        survey.add_checkpoint(checkpoint)
    survey.finish()
    return survey.damage


def _unreadable(segments: Segments, start: int, end: int) -> Iterator[UnreadableBytes]:
    for base, file in segments:
        first, last = max(start - base, 0), min(end - base, file.size)
        for one in unreadable_ranges(file.reader(), first, last):
            yield UnreadableBytes(Lsn(base + one.position), Lsn(base + one.end), str(one))


class _Survey:
    """Walks the records behind the first hole."""

    def __init__(self, state: JournalState) -> None:
        self.damage = Damage()
        self._ends = {name: span.end for name, span in state.spans.items()}
        self._unconfirmed: set[PartitionName] = set()  # partitions that nothing behind the last hole has spoken of
        # Per branch that began before the hole, or behind it, its key and its bytes in each partition.
        self._branches = {
            lsn: (branch.key, {name: sum(run.bytes for run in runs) for name, runs in branch.runs.items()})
            for lsn, branch in state.branches.items()
        }
        self._undecided: set[Lsn] = set()  # those that were live before it

    def add_hole(self, hole: Hole) -> None:
        self.damage.holes.append(hole)
        self._unconfirmed.update(self._ends)
        self._undecided.update(self._branches)

    def add(self, entry: Entry) -> None:
        header = entry.header
        try:
            record = decode(header, entry.meta)
        except InvalidRecord:
            return  # whole, but of a newer metaq: what it tells is not for us to guess
        match record:
            case Put(name, base, _) | PutBatch(name, base, _):
                self._take(name, base, header.body_bytes)
            case TxPut(key, branch_lsn, name, _) if branch_lsn == NO_BRANCH:
                self._branches[header.lsn] = key, {name: header.body_bytes}
            case TxPut(key, branch_lsn, name, _):
                put = self._bytes_put(key, branch_lsn)
                put[name] = put.get(name, 0) + header.body_bytes
            case Prepare(key, branch_lsn, _, _) | Carry(key, branch_lsn, _, _, _, _):
                self._bytes_put(key, branch_lsn)
            case Rollback(key, branch_lsn, _):
                self._bytes_put(key, branch_lsn)
                self._decided(branch_lsn)
            case Heuristic(key, branch_lsn, decision):
                self._bytes_put(key, branch_lsn)
                if decision is HeuristicDecision.COMPLETE:
                    self._decided(branch_lsn)
            case Commit(key, branch_lsn, _, takes):
                put = self._bytes_put(key, branch_lsn)
                is_hurt = any(put.get(take.name, 0) != take.bytes for take in takes)
                for take in takes:
                    self._take(take.name, take.base, take.bytes)
                    if is_hurt:  # all of it: half of a branch is never to be had
                        end = Offset(take.base + take.bytes)
                        why = f"committed by {key}, some of whose messages stood there"
                        self.damage.offsets.append(LostOffsets(take.name, take.base, end, why))
                self._decided(branch_lsn)

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        is_behind_all = all(hole.end is not None and hole.end <= checkpoint.lsn for hole in self.damage.holes)
        for mark in checkpoint.partitions:
            name = PartitionName(mark.topic, mark.partition)
            is_open = name in self._unconfirmed and not is_behind_all
            self._take(name, Offset(mark.end), 0)
            if is_open:
                self._unconfirmed.add(name)
        if is_behind_all:
            self._undecided.difference_update(Lsn(live.first_lsn) for live in checkpoint.branches)

    def finish(self) -> None:
        for name in sorted(self._unconfirmed):
            why = "no later record tells whether more was put"
            self.damage.offsets.append(LostOffsets(name, self._ends[name], None, why))
        for lsn in sorted(self._undecided):
            self._hurts(self._branches[lsn][0], "live before it; its outcome may stand there")

    def _take(self, name: PartitionName, base: Offset, size: int) -> None:
        known = self._ends.get(name, Offset(0))
        if base > known:
            self.damage.offsets.append(LostOffsets(name, known, base, "stood there, or was committed there"))
        self._ends[name] = Offset(max(known, base + size))
        self._unconfirmed.discard(name)

    def _bytes_put(self, key: BranchKey, branch_lsn: Lsn) -> dict[PartitionName, int]:
        """What is known to have been put to a branch, in each partition; a branch nobody has seen began in a hole."""
        if branch_lsn not in self._branches:
            self._hurts(key, "began there")
            self._branches[branch_lsn] = key, {}
        return self._branches[branch_lsn][1]

    def _decided(self, branch_lsn: Lsn) -> None:
        self._branches.pop(branch_lsn, None)
        self._undecided.discard(branch_lsn)

    def _hurts(self, key: BranchKey, why: str) -> None:
        self.damage.branches.append(HurtBranch(key, why))
