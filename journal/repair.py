"""Mending a rotten journal: from a copy that has the records, and by dropping what no copy has.

Deciding reads only: `plan_repair` says everything that `carry_out` will do and what that costs. A dropped stretch
becomes LOST records, so that every LSN behind it, and every offset, stays what it was; `journal.loss` says what the
fold makes of them. What is changed is kept beside the journal first, and a repair that is cut short leaves a
journal that is still refused, and still repairable.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import msgspec

from journal.chain_repair import KEPT_PREFIX, write_anew
from journal.check import Report, check
from journal.checkpoint import Checkpoint, encode_checkpoint
from journal.checksum import crc32
from journal.damage import Damage
from journal.errors import NotRepairable
from journal.frame import HEADER_BYTES, Kind, Lsn, pack
from journal.repair_source import Copy
from journal.scan import Verdict
from journal.segments import SEGMENT_HEADER_BYTES, Segments, segment_name

KEPT_BYTES_MAX = 64 * 1024 * 1024  # of one such file: a hole may be as long as a segment
ZEROS = bytes(1 << 20)


class Stretch(NamedTuple):
    """Bytes [start, end) of the journal, inside one segment. *life*: epoch and incarnation of what was before."""

    start: Lsn
    end: Lsn
    life: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a repair will do, and what it costs. Nothing to do: the journal is sound."""

    report: Report
    restored: list[Stretch] = field(default_factory=list)  # written from the copy
    dropped: list[Stretch] = field(default_factory=list)  # replaced by LOST records
    rewritten: dict[int, Checkpoint] = field(default_factory=dict)  # checkpoints that knew of what is dropped
    removed: list[int] = field(default_factory=list)  # checkpoints that are damaged, or older than those
    hurt: list[str] = field(default_factory=list)  # live branches that such a checkpoint named and now does not
    written_anew: list[Lsn] = field(default_factory=list)  # base LSNs of segments that cannot be read whole

    @property
    def damage(self) -> Damage:
        """What is lost for good."""
        return self.report.damage if self.dropped else Damage()

    @property
    def is_empty(self) -> bool:
        return not (self.restored or self.dropped or self.rewritten or self.removed or self.written_anew)


def plan_repair(segments: Segments, checkpoints: dict[int, Checkpoint | str], copy: Copy | None) -> Plan:
    """What makes *segments* sound again. *checkpoints* were read before they were opened; nothing is changed.

    Raises NotRepairable, and what `check` raises.
    """
    report = check(segments, checkpoints)
    if report.contradiction is not None:
        raise NotRepairable(
            f"{segments.storage.path}: records that read back contradict one another: {report.contradiction}: "
            f"this is no rot: keep a copy of the directory and report it"
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
    plan = Plan(report, removed=refused)
    if report.verdict is not Verdict.ROTTEN:
        return plan
    known = max((Lsn(one.lsn) for one in sound.values()), default=Lsn(0))
    left: list[tuple[Lsn, Lsn, tuple[int, int]]] = []
    since = segments.start
    for hole in report.damage.holes:
        end = hole.end if hole.end is not None else segments.end  # nothing tells what the last segment held
        reached = hole.start
        if copy is not None:
            reached = copy.reach(segments, hole, end, since)
            plan.restored.extend(_pieces(segments, hole.start, reached, hole.life, ()))
        if reached < end and (hole.end is not None or not _is_all_there(report.damage, segments, reached, known)):
            left.append((reached, end, hole.life))
        since = end
    unreadable = {segments.locate(one.start)[0] for one in report.damage.unreadable}
    plan.written_anew.extend(sorted(unreadable))
    if left:
        _forget_in_checkpoints(plan, sound, left)
        cuts = [one.lsn for one in plan.rewritten.values()]
        for start, end, life in left:
            plan.dropped.extend(_pieces(segments, start, end, life, cuts))
    return plan


def _is_all_there(damage: Damage, segments: Segments, reached: int, known: int) -> bool:
    """With records up to *reached* and none behind the last hole of *damage*: is there nothing to say that there were
    more? What cannot be read where one may have begun may have been any."""
    if damage.holes[-1].is_unreadable and any(one.end > reached for one in damage.unreadable):
        return False
    bases = [base for base, _ in segments]
    return reached >= known and reached > bases[-1]


def _pieces(segments: Segments, start: int, end: int, life: tuple[int, int], cuts: Sequence[int]) -> Iterator[Stretch]:
    """[start, end) by segment, headers of segments left out, and cut at *cuts*."""
    for base, file in segments:
        first, last = max(start, base + SEGMENT_HEADER_BYTES), min(end, base + file.size)
        edges = [first, *sorted(cut for cut in cuts if first < cut < last), last]
        yield from (Stretch(Lsn(low), Lsn(high), life) for low, high in pairwise(edges) if low < high)


def _forget_in_checkpoints(
    plan: Plan, sound: dict[int, Checkpoint], left: list[tuple[Lsn, Lsn, tuple[int, int]]]
) -> None:
    """The newest checkpoint beyond what is dropped goes on without it; older ones beyond it are removed."""
    beyond = sorted(number for number, one in sound.items() if one.lsn > left[0][0])
    if not beyond:
        return
    *older, newest = beyond
    plan.removed.extend(older)
    checkpoint = sound[newest]

    def is_hurt(lsn: int, size: int) -> bool:
        return any(lsn < end and lsn + size > start for start, end, _ in left)

    hurt = [
        branch
        for branch in checkpoint.branches
        if is_hurt(branch.first_lsn, 1) or any(is_hurt(run.lsn, run.bytes) for run in branch.runs)
    ]
    plan.hurt.extend(branch.key for branch in hurt)
    plan.rewritten[newest] = msgspec.structs.replace(
        checkpoint,
        partitions=[msgspec.structs.replace(mark, index=None) for mark in checkpoint.partitions],
        branches=[branch for branch in checkpoint.branches if branch not in hurt],
        lost=max(min(end, checkpoint.lsn) for start, end, _ in left if start < checkpoint.lsn),
    )


def carry_out(plan: Plan, segments: Segments, copy: Copy | None) -> None:
    """Do what *plan* says; durable on return. *segments* are open for writing, and nobody else writes to them.

    First come the segments that cannot be read whole: a write to part of a block has to read the rest of it. Raises
    StorageFailed: the journal is then still refused, and can be repaired by the same plan made anew.
    """
    storage = segments.storage
    for base in plan.written_anew:
        write_anew(storage, segment_name(base))
        segments.reopen(base)
    _keep(plan, segments)
    for stretch in plan.restored:
        assert copy is not None
        base, file = segments.locate(stretch.start)
        for start in range(stretch.start, stretch.end, len(ZEROS)):
            file.write(start - base, [copy.read(start, min(len(ZEROS), stretch.end - start))])
        file.sync()
    # Before the records: a start from a checkpoint that knows what is gone would not look there.
    for number, checkpoint in plan.rewritten.items():
        storage.replace(f"checkpoint.{number}", encode_checkpoint(checkpoint))
    # From the back: what proves that the first bytes were fsynced goes last.
    for stretch in reversed(plan.dropped):
        _drop(segments, stretch)
    for number in plan.removed:
        storage.remove(f"checkpoint.{number}")


def _keep(plan: Plan, segments: Segments) -> None:
    """Copies of everything that is about to change. One that is there is from a repair cut short, and is right."""
    storage = segments.storage
    there = set(storage.names())

    def keep(name: str, data: bytes) -> None:
        if KEPT_PREFIX + name not in there:
            storage.replace(KEPT_PREFIX + name, data)

    for number in [*plan.rewritten, *plan.removed]:
        keep(f"checkpoint.{number}", storage.read(f"checkpoint.{number}"))
    for stretch in [*plan.restored, *plan.dropped]:
        base, file = segments.locate(stretch.start)
        for start in range(stretch.start, stretch.end, KEPT_BYTES_MAX):
            end = min(start + KEPT_BYTES_MAX, stretch.end)
            data = file.reader().read(start - base, end - start)
            if data.count(0) != len(data):
                keep(f"{start:020d}-{end:020d}", data)


def _drop(segments: Segments, stretch: Stretch) -> None:
    base, file = segments.locate(stretch.start)
    position, size = stretch.start - base, stretch.end - stretch.start
    body_bytes = size - HEADER_BYTES
    if body_bytes < 0:  # where a segment ends there may be no room for a record, and nothing looks for one
        file.write(position, [bytes(size)])
    else:
        crc, left = 0, body_bytes
        while left > 0:
            zeros = ZEROS[:left]
            crc, left = crc32(zeros, crc), left - len(zeros)
        header = pack(Kind.LOST, 0, b"", body_bytes, crc, *stretch.life, stretch.start, stretch.start, 0)
        for start in range(position + HEADER_BYTES, position + size, len(ZEROS)):
            file.write(start, [ZEROS[: position + size - start]])
        file.write(position, [header])
    file.sync()
