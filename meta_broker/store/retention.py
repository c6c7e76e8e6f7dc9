"""How much of the journal's front may go, and where every partition begins then.

A promise is about messages: none is deleted that is younger than `hours`, or among the newest `bytes`. The cut is
at a segment's base, and below it stands nothing that is still needed: no record of a live branch, nothing that
the newest two checkpoints start from, and no message that a promise covers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from journal.frame import Header, Lsn
from journal.records import PartitionName
from journal.scan import record_at
from journal.segments import SEGMENT_HEADER_BYTES, Segments
from meta_broker.config import RetentionSection
from meta_broker.store.index_file import IndexDamaged
from meta_broker.store.index_survey import Survey
from meta_broker.store.partition_index import Covered

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Cut:
    """The segments that end at or below *lsn* may go once *starts*, each partition's new first offset, are durable."""

    lsn: Lsn
    starts: dict[PartitionName, int] = field(default_factory=dict)


def floor_of(segments: Segments, end: int, age_ms: Callable[[int], int], section: RetentionSection) -> Lsn:
    """The LSN below which no promise holds: a segment's base. *end*: where the journal ends for this purpose. *age_ms*:
    how old a record of a time is, at least."""
    files = list(segments)
    floor = first = files[0][0]
    bytes_floor = first if section.bytes is None else end - section.bytes
    for base, _ in files[1:]:
        is_old = False
        if section.hours is not None:
            # The first record of a segment is as young as the youngest of the segment before it.
            header = record_at(segments, base + SEGMENT_HEADER_BYTES)
            is_old = isinstance(header, Header) and age_ms(header.time_ms) >= section.hours * HOUR_MS
        if not is_old and base > bytes_floor:
            break
        floor = base
    return floor


class CutUnknown(Exception):
    """The index of the partition *name* does not read back: nobody knows what a cut would take of it."""

    def __init__(self, name: PartitionName, error: IndexDamaged) -> None:
        super().__init__(str(error))
        self.name = name


def cut_at(
    segments: Segments,
    floor: int,
    needed: int,
    indexes: Mapping[PartitionName, Covered],
    ends: Mapping[PartitionName, int],
) -> Cut | None:
    """The largest cut at or below *floor* and *needed*; None when no segment can go.

    *indexes*: every partition's, as of a checkpoint; *ends*: where it ends there. Looks into all of them: a worker's
    job. Raises CutUnknown.
    """
    bases = [base for base, _ in segments]
    limit, starts, surveys = min(floor, needed), dict[PartitionName, int](), dict[PartitionName, Survey]()
    for name, index in indexes.items():
        try:
            survey = surveys[name] = Survey(index)
            limit = min(limit, survey.lowest_kept(floor))
        except IndexDamaged as error:
            raise CutUnknown(name, error) from error
    cut = max((base for base in bases if base <= limit), default=bases[0])
    if cut == bases[0]:
        return None
    for name, survey in surveys.items():
        try:
            if lost := survey.entries_lost(cut):
                starts[name] = survey.offset_behind(lost, ends[name])
        except IndexDamaged as error:
            raise CutUnknown(name, error) from error
    return Cut(cut, starts)
