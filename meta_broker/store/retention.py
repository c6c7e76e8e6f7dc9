"""How much of the journal's front may go, and where every partition begins then.

A promise is about messages: none is deleted that is younger than `hours`, or among the newest `bytes`. The cut is
at a segment's base, and below it stands nothing that is still needed: no record of a live branch, nothing that
the newest two checkpoints start from, and no message that a promise covers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from journal.frame import Header, Lsn, unpack
from journal.records import PartitionName
from journal.segments import SEGMENT_HEADER_BYTES, Segments
from journal.storage import Buffer
from meta_broker.config import RetentionSection
from meta_broker.store.index_survey import entries_lost, lowest_kept, lsns_of, offsets_of

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Cut:
    """The segments that end at or below *lsn* may go once *starts*, each partition's new first offset, are durable."""

    lsn: Lsn
    starts: dict[PartitionName, int] = field(default_factory=dict)


def floor_of(segments: Segments, end: int, now_ms: int, section: RetentionSection) -> Lsn:
    """The LSN below which no promise holds: a segment's base. *end*: where the journal ends for this purpose."""
    files = list(segments)
    floor = first = files[0][0]
    bytes_floor = first if section.bytes is None else end - section.bytes
    youngest_ms = None if section.hours is None else now_ms - section.hours * HOUR_MS
    for base, file in files[1:]:
        is_old = False
        if youngest_ms is not None:
            # The first record of a segment is as young as the youngest of the segment before it.
            header = unpack(file.view(), SEGMENT_HEADER_BYTES, base + SEGMENT_HEADER_BYTES)
            is_old = isinstance(header, Header) and header.time_ms <= youngest_ms
        if not is_old and base > bytes_floor:
            break
        floor = base
    return floor


def cut_at(
    segments: Segments,
    floor: int,
    needed: int,
    entries: Mapping[PartitionName, Sequence[Buffer]],
    ends: Mapping[PartitionName, int],
) -> Cut | None:
    """The largest cut at or below *floor* and *needed*; None when no segment can go.

    *entries*: every partition's index, from its start on, as of a checkpoint; *ends*: where it ends there. Reads all
    of them: a worker's job.
    """
    columns = {name: [lsns_of(part) for part in parts] for name, parts in entries.items()}
    limit = min(floor, needed, *(lowest_kept(lsns, floor) for lsns in columns.values()))
    bases = [base for base, _ in segments]
    cut = max((base for base in bases if base <= limit), default=bases[0])
    if cut == bases[0]:
        return None
    starts: dict[PartitionName, int] = {}
    for name, lsns in columns.items():
        if lost := entries_lost(lsns, cut):
            starts[name] = _offset_of(entries[name], lost, ends[name])
    return Cut(cut, starts)


def _offset_of(parts: Sequence[Buffer], entry: int, end: int) -> int:
    for part in parts:
        offsets = offsets_of(part)
        if entry < len(offsets):
            return int(offsets[entry])
        entry -= len(offsets)
    return end
