"""Finds where a journal begins to hold what a selection wants, by its newest checkpoint and the index files beside it.

A message is published at or after the place of its bytes, which an index tells, and after every message before it in
its partition. Nothing tells how far behind: a COMMIT publishes what was put long before.
"""

from pathlib import Path

from spark_jobs.audit.checkpoint_files import read_checkpoints
from spark_jobs.audit.index_files import index_file_rows, lsn_of
from spark_jobs.messages.selection import Selection
from spark_jobs.source.places import Place


def first_wanted(place: Place, broker_id: int, selection: Selection) -> int:
    """Return an LSN below which nothing is published that *selection* wants; 0 if that is unknown, as it is of an
    object store. Raises StorageFailed."""
    checkpoints = read_checkpoints(place)
    if checkpoints.newest is None or not isinstance(place, Path):
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
