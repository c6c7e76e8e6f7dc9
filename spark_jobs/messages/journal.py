"""Messages from journals: the directories of brokers, live or dead, or archives. No broker is asked.

One Spark task a segment. In a batch query a live broker's last messages, written but not yet acknowledged, are read,
too: they are lost only if the machine loses power before the broker's next fsync.

Segments before those that can hold what a selection wants are not read: the newest checkpoint, the index files beside
it, and the times of records tell. A message is published at or after the place of its bytes, which an index tells, and
after every message before it in its partition. Nothing tells how far behind: a COMMIT publishes what was put long
before.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from journal.errors import StorageFailed
from journal.records.header import HEADER_BYTES, RecordType, kind_and_time
from journal.wal.record_window import read_some
from journal.wal.segments import SEGMENT_HEADER_BYTES, read_header, segment_name
from journal.wal.storage import DirectoryStorage
from spark_jobs.audit.checkpoint_files import read_checkpoints
from spark_jobs.audit.index_files import index_file_rows, lsn_of
from spark_jobs.messages.batches import PartitionId, message_batch
from spark_jobs.messages.frames import InvalidFrames, find_frames
from spark_jobs.messages.names import Names
from spark_jobs.messages.published import PublishedBatch, PublishedMessages
from spark_jobs.messages.segments import DataLost, SegmentFiles
from spark_jobs.messages.selection import Selection
from spark_jobs.source.directory import SUFFIX, SegmentSlice
from spark_jobs.source.locations import JournalLocation, location_of, open_segment, owner_of, plan

SLICES_MAX: Final = 64  # of a task: brokers keep what a transaction has put within a few segments of its COMMIT

_log = logging.getLogger(__name__)


class Began(NamedTuple):
    """Beginning of a stream: what is below *offsets*, or before *ms*, is no part of it."""

    offsets: Mapping[PartitionId, int]
    ms: int | None


class JournalTask(InputPartition):
    """The last of *slices*, from LSN *start* on; the others are those before it. *began*: where its stream did."""

    def __init__(
        self,
        path: str,
        broker_id: int,
        slices: list[SegmentSlice],
        start: int | None = None,
        began: Began | None = None,
    ) -> None:
        super().__init__((path, slices[-1].base, start))
        self.path = path
        self.broker_id = broker_id
        self.slices = slices
        self.start = start
        self.began = began


class PlannedJournal(NamedTuple):
    """The journal in one place, as it was planned."""

    place: JournalLocation
    broker_id: int
    slices: list[SegmentSlice]

    def task(self, slices: list[SegmentSlice], start: int | None = None, began: Began | None = None) -> JournalTask:
        """Return a task for the last of *slices*."""
        return JournalTask(str(self.place), self.broker_id, slices[-SLICES_MAX:], start, began)


def journal_places(paths: Sequence[str]) -> list[JournalLocation]:
    """Return *paths*, and for a directory that holds no segments those of its folders that do; each once. Raises
    StorageFailed."""
    found: list[JournalLocation] = []
    for path in map(location_of, paths):
        if isinstance(path, str):
            found.append(path)
            continue
        try:
            below = [path] if _has_segments(path) else sorted(each for each in path.iterdir() if _has_segments(each))
        except OSError as error:
            raise StorageFailed(f"{path}: {error.strerror}: name the data directory of a broker") from error
        if not below:
            raise StorageFailed(f"{path}: holds no journal: name the data directory of a broker, or a folder of such")
        found += below
    return list(dict.fromkeys(found))  # a folder, and one that is in it


def _has_segments(path: Path) -> bool:
    return path.is_dir() and any(each.name.endswith(SUFFIX) for each in path.iterdir())


def plan_tasks(paths: Sequence[str], selection: Selection) -> list[JournalTask]:
    """Return a task a segment, from the first one on that can hold what *selection* wants. Raises StorageFailed,
    ForeignJournal."""
    tasks: list[JournalTask] = []
    for journal in journals(paths):
        slices = journal.slices
        first = first_wanted(journal.place, journal.broker_id, slices, selection)
        tasks += [journal.task(slices[: index + 1]) for index, each in enumerate(slices) if each.end > first]
    return tasks


def journals(paths: Sequence[str]) -> list[PlannedJournal]:
    """Return the journals at *paths*, one a broker. Raises StorageFailed, ForeignJournal."""
    found: list[PlannedJournal] = []
    owners: dict[int, JournalLocation] = {}
    for path in journal_places(paths):
        slices = plan(path)
        broker_id = _broker_id(path, slices)
        if (other := owners.setdefault(broker_id, path)) != path:
            raise StorageFailed(f"{other} and {path} are both of broker {broker_id}: read one copy of each broker")
        found.append(PlannedJournal(path, broker_id, slices))
    return found


def _broker_id(path: JournalLocation, slices: list[SegmentSlice]) -> int:
    """Return the broker whose journal it is, by the manifest, or the last segment whose header reads, which retention
    does not take meanwhile. Raises StorageFailed."""
    if isinstance(path, str):
        return owner_of(path).broker_id
    for each in reversed(slices):
        if each.size and not any(one.lsn == each.base for one in each.unreadable):
            file = DirectoryStorage.open_for_reading(path).open(segment_name(each.base), writable=False)
            with contextlib.closing(file):
                return read_header(file, str(path)).identity.broker_id
    raise StorageFailed(f"{path}: no segment names its broker: see `metaq journal check {path}`")


def read_task(
    task: JournalTask, selection: Selection, columns: tuple[str, ...], *, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """Read one segment's messages. Raises StorageFailed, DataLost, InvalidRecord."""

    def on_missing(reason: str) -> None:
        text = f"{task.path}: {reason}"
        if fail_on_data_loss:
            raise DataLost(f"{text}: see `metaq journal check`, or read with failOnDataLoss=false")
        _log.warning("messages left out %s", text)

    names = Names(task.broker_id, selection.span)
    with SegmentFiles(location_of(task.path), task.slices) as files:
        found = PublishedMessages(files, len(task.slices) - 1, names, on_missing, task.start, selection.wants_xid)
        for batch in found:
            try:
                rows = _rows(batch, names, selection, columns)
            except InvalidFrames as error:
                on_missing(str(error))
                continue
            if rows.num_rows:
                yield rows


def _rows(batch: PublishedBatch, names: Names, selection: Selection, columns: tuple[str, ...]) -> pa.RecordBatch:
    extents = batch.extents
    frames = find_frames(batch.data, extents)
    mask = selection.mask(frames)
    spans = np.array(names.spans, np.int64).reshape(-1, 2)[extents.name]
    if (extents.base < spans[:, 0]).any() or (extents.base + extents.size > spans[:, 1]).any():
        here = spans[frames.extent]
        inside = (frames.offset >= here[:, 0]) & (frames.offset < here[:, 1])
        mask = inside if mask is None else mask & inside
    if mask is not None:
        frames = frames.select(np.flatnonzero(mask))
    return message_batch(frames, extents, names.names, batch.keys, columns)


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
