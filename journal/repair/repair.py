"""Repairs a corrupt journal: restores records from a copy, and drops those that no copy has.

Planning reads only: `plan_repair` returns everything that `apply_repair` will do, and its cost. A dropped range becomes
LOST records, so that every later LSN and every offset stays as it was; `journal.state.dropped_records` folds them.
Changed bytes are first saved beside the journal, and an interrupted repair leaves a journal that is still refused, and
still repairable.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import msgspec

from journal.checksum import crc32
from journal.errors import InvalidContent, NotRepairable
from journal.records.header import HEADER_BYTES, Lsn, RecordType, pack
from journal.repair.check import CheckReport, check
from journal.repair.damage import Damage
from journal.repair.repair_source import RepairSource
from journal.repair.segment_repair import KEPT_PREFIX, recreate_file
from journal.state.checkpoint import Checkpoint, encode_checkpoint
from journal.wal.scan import EndVerdict
from journal.wal.segments import SEGMENT_HEADER_BYTES, Segments, segment_name

KEPT_BYTES_MAX = 64 * 1024 * 1024  # of one saved file: a gap may be as long as a segment
ZEROS = bytes(1 << 20)


class RepairRange(NamedTuple):
    """Bytes [start, end) of the journal, inside one segment. *writer_epoch*: of the record before."""

    start: Lsn
    end: Lsn
    writer_epoch: tuple[int, int]


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """Actions of a repair, and its cost. Empty if the journal is sound."""

    report: CheckReport
    restored: list[RepairRange] = field(default_factory=list)  # written from the copy
    dropped: list[RepairRange] = field(default_factory=list)  # replaced by LOST records
    rewritten: dict[int, Checkpoint] = field(default_factory=dict)  # checkpoints that hold dropped records
    removed: list[int] = field(default_factory=list)  # checkpoints that are damaged, or older than those
    affected: list[str] = field(default_factory=list)  # live branches removed from such a checkpoint
    recreated: list[Lsn] = field(default_factory=list)  # base LSNs of segments that cannot be read whole

    @property
    def damage(self) -> Damage:
        """Permanent damage after the repair."""
        return self.report.damage if self.dropped else Damage()

    @property
    def is_empty(self) -> bool:
        return not (self.restored or self.dropped or self.rewritten or self.removed or self.recreated)


def plan_repair(
    segments: Segments, checkpoints: dict[int, Checkpoint | InvalidContent], copy: RepairSource | None
) -> RepairPlan:
    """Plan a repair that makes *segments* sound. *checkpoints* were read before they were opened; changes nothing.

    Raises NotRepairable, and the errors of `check`.
    """
    report = check(segments, checkpoints)
    if report.contradiction is not None:
        raise NotRepairable(
            f"{segments.storage.path}: records that read back contradict one another: {report.contradiction}: "
            f"this is no corruption: keep a copy of the directory and report it"
        )
    refused = [file.number for file in report.checkpoints if file.problems]
    sound = {
        number: found
        for number, found in checkpoints.items()
        if isinstance(found, Checkpoint) and number not in refused
    }
    if segments.start != SEGMENT_HEADER_BYTES and not any(one.lsn >= segments.start for one in sound.values()):
        raise NotRepairable(
            f"{segments.storage.path}: its first records were dropped by retention, and no checkpoint that holds "
            f"them is sound: put one from a slave or a backup there"
        )
    plan = RepairPlan(report, removed=refused)
    if report.verdict is not EndVerdict.CORRUPT:
        return plan
    known = max((Lsn(one.lsn) for one in sound.values()), default=Lsn(0))
    left: list[tuple[Lsn, Lsn, tuple[int, int]]] = []
    since = segments.start
    for gap in report.damage.gaps:
        end = gap.end if gap.end is not None else segments.end  # the content of the last segment is unknown
        reached = gap.start
        if copy is not None:
            reached = copy.reach(segments, gap, end, since)
            plan.restored.extend(_ranges_by_segment(segments, gap.start, reached, gap.writer_epoch, ()))
        if reached < end and (gap.end is not None or not _is_all_there(report.damage, segments, reached, known)):
            left.append((reached, end, gap.writer_epoch))
        since = end
    unreadable = {segments.locate(one.start)[0] for one in report.damage.unreadable}
    plan.recreated.extend(sorted(unreadable))
    if left:
        _forget_in_checkpoints(plan, sound, left)
        cuts = [one.lsn for one in plan.rewritten.values()]
        for start, end, writer_epoch in left:
            plan.dropped.extend(_ranges_by_segment(segments, start, end, writer_epoch, cuts))
    return plan


def _is_all_there(damage: Damage, segments: Segments, reached: int, known: int) -> bool:
    """Return True if nothing shows that there were more records: those up to *reached* are there, and none after the
    last gap of *damage*. Unreadable bytes where a record may have begun count as lost records."""
    if damage.gaps[-1].is_unreadable and any(one.end > reached for one in damage.unreadable):
        return False
    bases = [base for base, _ in segments]
    return reached >= known and reached > bases[-1]


def _ranges_by_segment(
    segments: Segments, start: int, end: int, writer_epoch: tuple[int, int], cuts: Sequence[int]
) -> Iterator[RepairRange]:
    """Yield [start, end) by segment, without segment headers, and split at *cuts*."""
    for base, file in segments:
        first, last = max(start, base + SEGMENT_HEADER_BYTES), min(end, base + file.size)
        edges = [first, *sorted(cut for cut in cuts if first < cut < last), last]
        yield from (RepairRange(Lsn(low), Lsn(high), writer_epoch) for low, high in pairwise(edges) if low < high)


def _forget_in_checkpoints(
    plan: RepairPlan, sound: dict[int, Checkpoint], left: list[tuple[Lsn, Lsn, tuple[int, int]]]
) -> None:
    """Rewrite the newest checkpoint beyond the dropped ranges without them; remove older ones beyond."""
    beyond = sorted(number for number, one in sound.items() if one.lsn > left[0][0])
    if not beyond:
        return
    *older, newest = beyond
    plan.removed.extend(older)
    checkpoint = sound[newest]

    def is_hurt(lsn: int, size: int) -> bool:
        return any(lsn < end and lsn + size > start for start, end, _ in left)

    affected = [
        branch
        for branch in checkpoint.branches
        if is_hurt(branch.first_lsn, 1) or any(is_hurt(extent.lsn, extent.bytes) for extent in branch.extents)
    ]
    plan.affected.extend(branch.key for branch in affected)
    plan.rewritten[newest] = msgspec.structs.replace(
        checkpoint,
        partitions=[msgspec.structs.replace(entry, index=None) for entry in checkpoint.partitions],
        branches=[branch for branch in checkpoint.branches if branch not in affected],
        lost=max(min(end, checkpoint.lsn) for start, end, _ in left if start < checkpoint.lsn),
    )


def apply_repair(plan: RepairPlan, segments: Segments, copy: RepairSource | None) -> None:
    """Carry out *plan*; durable on return. *segments* are open for writing, without another writer.

    Begins with the segments that cannot be read whole: a write to part of a block has to read the rest of it. Raises
    StorageFailed: the journal is then still refused, and a new plan can repair it.
    """
    storage = segments.storage
    for base in plan.recreated:
        recreate_file(storage, segment_name(base))
        segments.reopen(base)
    _keep(plan, segments)
    for part in plan.restored:
        assert copy is not None
        base, file = segments.locate(part.start)
        for start in range(part.start, part.end, len(ZEROS)):
            file.write(start - base, [copy.read(start, min(len(ZEROS), part.end - start))])
        file.sync()
    # Before the records: a start from a checkpoint that holds dropped records would not read that range.
    for number, checkpoint in plan.rewritten.items():
        storage.replace(f"checkpoint.{number}", encode_checkpoint(checkpoint))
    # Backwards: the proof that the first range was fsynced goes last.
    for part in reversed(plan.dropped):
        _drop(segments, part)
    for number in plan.removed:
        storage.remove(f"checkpoint.{number}")


def _keep(plan: RepairPlan, segments: Segments) -> None:
    """Save copies of everything that is about to change. An existing copy is of an interrupted repair, and valid."""
    storage = segments.storage
    there = set(storage.names())

    def keep(name: str, data: bytes) -> None:
        if KEPT_PREFIX + name not in there:
            storage.replace(KEPT_PREFIX + name, data)

    for number in [*plan.rewritten, *plan.removed]:
        keep(f"checkpoint.{number}", storage.read(f"checkpoint.{number}"))
    for part in [*plan.restored, *plan.dropped]:
        base, file = segments.locate(part.start)
        for start in range(part.start, part.end, KEPT_BYTES_MAX):
            end = min(start + KEPT_BYTES_MAX, part.end)
            data = file.reader().read(start - base, end - start)
            if data.count(0) != len(data):
                keep(f"{start:020d}-{end:020d}", data)


def _drop(segments: Segments, part: RepairRange) -> None:
    base, file = segments.locate(part.start)
    position, size = part.start - base, part.end - part.start
    body_bytes = size - HEADER_BYTES
    if body_bytes < 0:  # no room for a record at the end of a segment, where none is expected
        file.write(position, [bytes(size)])
    else:
        crc, left = 0, body_bytes
        while left > 0:
            zeros = ZEROS[:left]
            crc, left = crc32(zeros, crc), left - len(zeros)
        header = pack(RecordType.LOST, 0, b"", body_bytes, crc, *part.writer_epoch, part.start, part.start, 0)
        for start in range(position + HEADER_BYTES, position + size, len(ZEROS)):
            file.write(start, [ZEROS[: position + size - start]])
        file.write(position, [header])
    file.sync()
