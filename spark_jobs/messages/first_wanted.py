"""Finds where a journal begins to hold what a selection wants, by its newest checkpoint, the index files beside it, and
the times of its records.

A message is published at or after the place of its bytes, which an index tells, and after every message before it in
its partition. Nothing tells how far behind: a COMMIT publishes what was put long before.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from journal.errors import StorageFailed
from journal.records.header import HEADER_BYTES, RecordType, kind_and_time
from journal.wal.record_window import read_some
from journal.wal.segments import SEGMENT_HEADER_BYTES
from spark_jobs.audit.checkpoint_files import read_checkpoints
from spark_jobs.audit.index_files import index_file_rows, lsn_of
from spark_jobs.messages.selection import Selection
from spark_jobs.source.directory import SegmentSlice
from spark_jobs.source.locations import JournalLocation, open_segment

_META_BYTES: Final = 4096  # of a first record, read with its header: a longer one is passed over
_PUTS: Final = frozenset({RecordType.PUT, RecordType.PUT_BATCH, RecordType.TX_PUT})


def first_wanted(place: JournalLocation, broker_id: int, slices: Sequence[SegmentSlice], selection: Selection) -> int:
    """Return an LSN below which nothing is published that *selection* wants; 0 if that is unknown, as it is of an
    object store. Raises StorageFailed."""
    if not isinstance(place, Path):
        return 0
    return max(_by_offsets(place, broker_id, selection), _by_time(place, slices, selection.earliest_us()))


def _by_offsets(place: Path, broker_id: int, selection: Selection) -> int:
    checkpoints = read_checkpoints(place)
    if checkpoints.newest is None:
        return 0
    checkpoint = checkpoints.valid[checkpoints.newest]
    files = {(row.topic, row.partition): row for row in index_file_rows(checkpoint)}
    first = checkpoint.lsn  # of a partition that the checkpoint does not know nothing was published before
    for known in checkpoint.partitions:
        span = selection.span(known.topic, f"{broker_id}-{known.partition}")
        if span is None or span.start >= min(span.end, known.end):
            continue
        # Of what retention or a deletion took out of the index segments may still have the bytes.
        row = files.get((known.topic, known.partition)) if span.start >= known.start else None
        first = 0 if row is None else min(first, lsn_of(place / "index", row, span.start))
        if not first:
            break
    return first


def _by_time(place: Path, slices: Sequence[SegmentSlice], earliest_us: int) -> int:
    """Return the base of a segment whose first message was put before that time: so were all those published before it.
    Any such segment will do; clocks that were set back make another one of it, and not a wrong one."""
    before, after = 0, len(slices)
    while earliest_us and after - before > 1:
        middle = (before + after) // 2
        put_ms = _first_put_ms(place, slices[middle])
        if put_ms is not None and put_ms * 1000 < earliest_us:
            before = middle
        else:
            after = middle
    return slices[before].base


def _first_put_ms(place: Path, segment: SegmentSlice) -> int | None:
    """Return the time of the segment's first record, if that is a message's. Then the ids of all messages before it
    have that time or an earlier one, which is not so of a record written at a start."""
    try:
        file = open_segment(place, segment)
    except StorageFailed:  # there is none, or retention has just taken it
        return None
    with contextlib.closing(file):
        end = min(segment.size, SEGMENT_HEADER_BYTES + HEADER_BYTES + _META_BYTES)
        data, _ = read_some(file.reader(), SEGMENT_HEADER_BYTES, end)
    found = kind_and_time(memoryview(data), 0, segment.base + SEGMENT_HEADER_BYTES)
    return found[1] if found is not None and found[0] in _PUTS else None
