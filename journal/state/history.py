"""Reads back all index updates below an LSN from the journal, to rebuild a lost partition index."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from journal.errors import ContradictoryRecord, CorruptJournal
from journal.records.codec import decode
from journal.records.extents import Extent
from journal.records.header import Lsn, Offset, RecordHeader
from journal.records.heuristics import HeuristicDecision
from journal.records.index_updates import IndexUpdate
from journal.records.record import (
    Commit,
    DroppedRecords,
    Heuristic,
    OffsetAssignment,
    PartitionName,
    PutBatch,
    PutRecord,
    Record,
    Relocate,
    Rollback,
    TxPut,
)
from journal.state.fold import apply
from journal.state.journal_state import JournalState
from journal.wal.scan import Scanner
from journal.wal.segments import SEGMENT_HEADER_BYTES, Segments


def history(
    segments: Segments, until: Lsn, names: set[PartitionName], is_stopped: Callable[[], bool] = lambda: False
) -> Iterator[IndexUpdate]:
    """Yield the updates of records below *until* in the partitions *names*, in offset order per partition.

    Starts at the journal's birth, or at the first record that retention has left. Ends early once *is_stopped* returns
    True. Raises CorruptJournal if the records do not read back that far, InvalidRecord if they contradict one another.
    """
    if not names:
        return
    updates = index_updates_from(segments.start, names)
    scanner = Scanner(segments, segments.start)
    for entry in scanner:
        if entry.header.lsn >= until or is_stopped():
            return
        for update in updates.of(entry.header, decode(entry.header, entry.meta)):
            if update.name in names:
                yield update
    if scanner.end < until:
        end = scanner.judge_end()
        raise CorruptJournal(end.end, end.next_valid_lsn or until, end.reason, segments.storage.path)


def published_in(
    segments: Segments,
    until: Lsn,
    offset_ranges: Mapping[PartitionName, tuple[int, int]],
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[IndexUpdate]:
    """Yield updates that fill the offsets [start, end) of each partition in *offset_ranges*, gaps closed; end once all
    are there. Reads the records below *until*, and raises the errors of `history`."""
    missing = {name for name, (start, end) in offset_ranges.items() if start < end}
    found = history(segments, until, set(missing), is_stopped)
    for update in without_gaps(found, {name: offset_ranges[name] for name in missing}):
        name, base, extent = update
        start, end = offset_ranges[name]
        if name in missing and (start <= base < end or not extent.bytes):
            yield update
            if base + extent.bytes >= end:
                missing.discard(name)
                if not missing:
                    return


def index_updates_from(start: Lsn, names: set[PartitionName]) -> "_FromBirth | _FromRetention":
    """Return an object that gives the updates of successive records, of a journal whose first record is at *start*."""
    return _FromBirth(start) if start == SEGMENT_HEADER_BYTES else _FromRetention(names)


def without_gaps(
    updates: Iterable[IndexUpdate], offset_ranges: Mapping[PartitionName, tuple[int, int]]
) -> Iterator[IndexUpdate]:
    """Yield *updates*, and an empty extent after every gap that they leave in *offset_ranges*: a repair dropped
    that."""
    gaps = OffsetGaps(offset_ranges)
    for update in updates:
        yield from gaps.fill(update)
    yield from gaps.fill_rest()


class OffsetGaps:
    """Closes gaps as `without_gaps` does, for callers that get updates one by one."""

    def __init__(self, offset_ranges: Mapping[PartitionName, tuple[int, int]]) -> None:
        self._spans = offset_ranges
        self.reached = {name: start for name, (start, _) in offset_ranges.items()}

    def fill(self, update: IndexUpdate) -> list[IndexUpdate]:
        """Return *update*, preceded by the end of a gap if it leaves one."""
        name, base, extent = update
        if not extent.bytes:
            return []
        reached = self.reached[name]
        self.reached[name] = max(reached, base + extent.bytes)
        if base > reached:
            return [update._replace(extent=Extent(extent.lsn, 0, 0, extent.time_ms)), update]
        return [update]

    def fill_rest(self) -> Iterator[IndexUpdate]:
        """Yield the ends of the gaps after the last updates."""
        for name, (_, end) in self._spans.items():
            if end > self.reached[name]:
                yield IndexUpdate(name, Offset(end), Extent(Lsn(0), 0, 0, 0))


class _FromBirth:
    """The fold, from the first record on."""

    def __init__(self, start: Lsn) -> None:
        self._state = JournalState(start)

    def of(self, header: RecordHeader, record: Record) -> Sequence[IndexUpdate]:
        return apply(self._state, header, record)


class _FromRetention:
    """Updates without the dropped records: branches may have begun there, and ends of partitions are unknown."""

    def __init__(self, names: set[PartitionName]) -> None:
        self._names = names
        self._left: dict[Lsn, dict[PartitionName, _RemainingExtents]] = {}  # by first LSN, of the branches seen
        self._lost = Lsn(0)  # LSN of the last records dropped by a repair

    def of(self, header: RecordHeader, record: Record) -> Sequence[IndexUpdate]:
        match record:
            case PutRecord(name, base, count) | PutBatch(name, base, count):
                return [IndexUpdate(name, base, Extent(header.body_lsn, header.body_bytes, count, header.time_ms))]
            case TxPut(_, branch_lsn, name, count) if name in self._names:
                extent = Extent(header.body_lsn, header.body_bytes, count, header.time_ms)
                self._left_in(branch_lsn or header.lsn, name).put[extent.lsn] = extent
            case Relocate(_, branch_lsn, name) as relocate if name in self._names:
                self._left_in(branch_lsn, name).relocate(relocate, header.body_lsn)
            case DroppedRecords():
                self._lost = header.lsn
            case Rollback(_, branch_lsn, _) | Heuristic(_, branch_lsn, HeuristicDecision.COMPLETE):
                self._left.pop(branch_lsn, None)
            case Commit(_, branch_lsn, _, assignments):
                left = self._left.pop(branch_lsn, {})
                if branch_lsn < self._lost and any(
                    assignment.name in self._names
                    and (assignment.name not in left or left[assignment.name].bytes != assignment.bytes)
                    for assignment in assignments
                ):
                    return []  # messages of it were dropped: a branch is never published in part
                return [
                    each
                    for assignment in assignments
                    if assignment.name in left
                    for each in left[assignment.name].taken(header.lsn, assignment)
                ]
        return []

    def _left_in(self, branch_lsn: Lsn, name: PartitionName) -> "_RemainingExtents":
        return self._left.setdefault(branch_lsn, {}).setdefault(name, _RemainingExtents())


class _RemainingExtents:
    """Remaining extents of a branch in one partition, each at its newest copy."""

    def __init__(self) -> None:
        self.put: dict[Lsn, Extent] = {}  # never relocated, by LSN: the last ones in put order
        self._relocated: dict[int, Extent] = {}  # by the bytes that the branch put before them

    @property
    def bytes(self) -> int:
        return sum(extent.bytes for extent in [*self.put.values(), *self._relocated.values()])

    def relocate(self, record: Relocate, lsn: Lsn) -> None:
        position = record.position
        for extent in record.extents:
            self.put.pop(extent.lsn, None)
            self._relocated[position] = Extent(lsn, extent.bytes, extent.messages, extent.time_ms)
            position, lsn = position + extent.bytes, Lsn(lsn + extent.bytes)

    def taken(self, lsn: Lsn, assignment: OffsetAssignment) -> Iterator[IndexUpdate]:
        """Yield the updates of the COMMIT at *lsn*, as far as their bytes remain. Raises ContradictoryRecord."""
        position = assignment.bytes - sum(extent.bytes for extent in self.put.values())
        extents = dict(sorted(self._relocated.items()))
        for extent in self.put.values():
            extents[position] = extent
            position += extent.bytes
        end = 0
        for position, extent in extents.items():
            if position < end or position + extent.bytes > assignment.bytes:
                raise ContradictoryRecord(
                    f"LSN {lsn}: COMMIT takes less in {assignment.name} than the branch put there"
                )
            yield IndexUpdate(assignment.name, Offset(assignment.base + position), extent)
            end = position + extent.bytes
