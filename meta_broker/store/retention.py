"""Computes how much of the journal's front may be dropped, and where every partition begins then.

No message younger than `hours`, or among the newest `bytes`, is deleted. The cut is at the base of a segment; nothing
below it is still needed: no record of a live branch, nothing the newest two checkpoints start from, and no message to
be kept.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from journal.records.header import Lsn, RecordHeader
from journal.records.record import PartitionName
from journal.wal.scan import record_at
from journal.wal.segments import SEGMENT_HEADER_BYTES, Segments
from meta_broker.config.sections import RetentionSection
from meta_broker.store.index_file import IndexDamaged
from meta_broker.store.index_survey import IndexSurvey
from meta_broker.store.partition_index import Covered

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class RetentionPoint:
    """The segments that end at or below *lsn* may be dropped once *starts*, the partitions' new first offsets, are
    durable.
    """

    lsn: Lsn
    starts: dict[PartitionName, int] = field(default_factory=dict)


def floor_of(segments: Segments, end: int, age_ms: Callable[[int], int], section: RetentionSection) -> Lsn:
    """Return the segment base below which neither limit keeps messages.

    *end*: end of the journal for this purpose. *age_ms*: returns the least age of a record with a given time.
    """
    files = list(segments)
    floor = first = files[0][0]
    bytes_floor = first if section.bytes is None else end - section.bytes
    for base, _ in files[1:]:
        is_old = False
        if section.hours is not None:
            # The first record of a segment is at least as young as all of the segment before it.
            header = record_at(segments, base + SEGMENT_HEADER_BYTES)
            is_old = isinstance(header, RecordHeader) and age_ms(header.time_ms) >= section.hours * HOUR_MS
        if not is_old and base > bytes_floor:
            break
        floor = base
    return floor


class RetentionPointUnknown(Exception):
    """The index of the partition *name* is damaged: the effect of a cut on it is unknown."""

    def __init__(self, name: PartitionName, error: IndexDamaged) -> None:
        super().__init__(str(error))
        self.name = name


def retention_point(
    segments: Segments,
    floor: int,
    needed: int,
    indexes: Mapping[PartitionName, Covered],
    ends: Mapping[PartitionName, int],
    *,
    is_tiered: bool = False,
) -> RetentionPoint | None:
    """Return the largest cut at or below *floor* and *needed*; None: no segment can be dropped.

    *indexes*: every partition's, as of a checkpoint; *ends*: where it ends there. *is_tiered*: messages stay readable,
    so one to be kept may go to the archive with those before it. Reads all indexes: a worker's job. Raises
    RetentionPointUnknown.
    """
    bases = [base for base, _ in segments]
    limit, starts, surveys = min(floor, needed), dict[PartitionName, int](), dict[PartitionName, IndexSurvey]()
    for name, index in indexes.items():
        try:
            survey = surveys[name] = IndexSurvey(index)
            if not is_tiered:
                limit = min(limit, survey.lowest_kept(floor))
        except IndexDamaged as error:
            raise RetentionPointUnknown(name, error) from error
    cut = max((base for base in bases if base <= limit), default=bases[0])
    if cut == bases[0]:
        return None
    for name, survey in surveys.items():
        try:
            if lost := survey.entries_lost(cut):
                starts[name] = survey.offset_behind(lost, ends[name])
        except IndexDamaged as error:
            raise RetentionPointUnknown(name, error) from error
    return RetentionPoint(cut, starts)
