"""Positions of a stream in a journal: an LSN, and a checksum of the bytes before it.

The checksum tells a journal that was truncated, restored or promoted elsewhere since from the one that was read. A
broker's directory may grow meanwhile: what is read of it is fsynced here first, and acknowledged by its slaves in mode
sync, so that no crash takes back what a stream has read.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from journal.archive.manifest import NAME
from journal.checksum import crc32
from journal.errors import StorageFailed
from journal.wal.marks import read_watermark
from journal.wal.record_window import read_some
from journal.wal.segments import SEGMENT_HEADER_BYTES
from journal.wal.storage import DirectoryStorage
from meta_client.protocol.messages import DATA_BYTES_MAX, HEADER_BYTES
from spark_jobs.messages import stream
from spark_jobs.messages.journal import Began, JournalTask, PlannedJournal
from spark_jobs.messages.segments import DataLost
from spark_jobs.source.directory import MissingRange, SegmentSlice
from spark_jobs.source.locations import JournalLocation, open_segment
from spark_jobs.source.record_block import RecordBlock
from spark_jobs.source.segment_reader import SegmentReader

# That the checksum covers, in one segment: the header of a message, with its id, or of a record is always among them.
# Payloads may be alike in both journals.
_BEFORE_BYTES: Final = DATA_BYTES_MAX + HEADER_BYTES
_ARCHIVE_MARK: Final = 16  # characters of a mark of an archive at a URL
_SLAVE: Final = "slave.json"

BEGAN: Final = "began"  # where the query did, beside its positions

StreamPositions = dict[str, dict[str, Any]]  # by broker id, as a checkpoint has them


class StreamPosition(NamedTuple):
    """A boundary of records. *mark*: checksum of what stands before it, blank where nothing does."""

    lsn: int
    mark: str = ""


def first_position(journal: PlannedJournal) -> StreamPosition:
    """Return the beginning of what the journal has."""
    return position_at(journal, journal.slices[0].base)


def position_at(journal: PlannedJournal, lsn: int) -> StreamPosition:
    """Return the position of a record boundary. Raises StorageFailed."""
    before = next((each for each in journal.slices if each.base < lsn <= each.end), None)
    if before is None or before.size == 0:
        return StreamPosition(lsn)
    if not isinstance(journal.place, Path):
        return StreamPosition(lsn, before.sha256[:_ARCHIVE_MARK] if lsn == before.end else "")
    at, data = min(lsn - before.base, before.size), b""
    with contextlib.closing(open_segment(journal.place, before)) as file:
        while at > 0 and not any(data):  # the rest of a segment, behind a PAD
            end, at = at, max(0, at - _BEFORE_BYTES)
            data, _ = read_some(file.reader(), at, end)
        return StreamPosition(lsn, f"{crc32(data):08x}")


def check_position(journal: PlannedJournal, position: StreamPosition) -> None:
    """Raise DataLost if *position* is not one of this journal any more; StorageFailed if it is of an archive that does
    not hold it yet. A segment that retention has deleted is no loss if it ends there."""
    slices = journal.slices
    if position.lsn < slices[0].base:
        raise DataLost(
            f"{journal.place} begins at LSN {slices[0].base}, and was read up to {position.lsn}: retention has deleted "
            f"what comes between; read it from the archive, and the rest with failOnDataLoss=false"
        )
    end = slices[-1].end
    if position.lsn > end and _is_archive(journal.place) and len(position.mark) != _ARCHIVE_MARK:
        raise StorageFailed(
            f"{journal.place} ends at LSN {end}, and was read up to {position.lsn} elsewhere: wait until retention has "
            f"archived the rest, or name the directory of the broker"
        )
    mark = position_at(journal, position.lsn).mark
    # Marks of a directory and of an archive differ in length: they do not compare.
    if position.lsn > end or (mark != position.mark and len(mark) == len(position.mark)):
        raise DataLost(
            f"{journal.place} is not the journal that was read up to LSN {position.lsn}: it was truncated, restored or "
            f"promoted since; compare with `metaq journal check`, then start with another checkpoint"
        )


def _is_archive(place: JournalLocation) -> bool:
    return not isinstance(place, Path) or NAME in DirectoryStorage.open_for_reading(place).names()


def readable_end(journal: PlannedJournal, begin: int) -> int:
    """Return the LSN up to which everything is durable and acknowledged; not below *begin*, a boundary of records.
    Raises StorageFailed."""
    place, last = journal.place, journal.slices[-1]
    if not isinstance(place, Path):
        return max(begin, last.end)
    storage = DirectoryStorage.open_for_reading(place)
    if _SLAVE in storage.names():
        raise StorageFailed(
            f"{place} is a slave's, which may be truncated: stream its master's directory, or promote it"
        )
    # Read before the records: what it names is there.
    watermark = read_watermark(storage)
    end = _last_boundary(journal, last, begin, last.base + last.size, is_synced=True)
    if watermark is not None and watermark.lsn < end:
        holding = next((each for each in journal.slices if each.base < watermark.lsn <= each.end), None)
        end = begin if holding is None else _last_boundary(journal, holding, begin, watermark.lsn)
    return max(begin, end)


def boundary_from(journal: PlannedJournal, begin: int, wanted: int, end: int) -> int:
    """Return the last boundary of records up to *wanted*, or the next one that is known; at most *end*. Raises
    StorageFailed."""
    holding = next((each for each in journal.slices if each.base < wanted <= each.end), None)
    if holding is None or holding.size == 0 or not isinstance(journal.place, Path):
        return end if holding is None else min(end, holding.end)
    if found := [*_blocks(journal, holding, begin, wanted)]:
        return found[-1]
    return next(_blocks(journal, holding, begin, end), min(end, holding.end))


def tasks_between(journal: PlannedJournal, begin: int, end: int, began: Began) -> Iterator[JournalTask]:
    """Yield a task a segment, for what is published by records in [begin, end). *began*: where the stream did."""
    for index, each in enumerate(journal.slices):
        if each.base < end and begin < each.end:
            until = min(end, each.end)
            unreadable = tuple(one for one in each.unreadable if one.lsn < until and one.end > begin)
            size = min(each.size, until - each.base)
            cut = replace(each, end=until, size=size, is_last=False, unreadable=unreadable)
            is_whole = begin <= each.base + SEGMENT_HEADER_BYTES
            yield journal.task([*journal.slices[:index], cut], None if is_whole else begin, began)


def _last_boundary(
    journal: PlannedJournal, segment: SegmentSlice, begin: int, until: int, *, is_synced: bool = False
) -> int:
    """Return the end of the last whole record below *until*. *is_synced*: make them durable."""
    return max([begin, segment.base, *_blocks(journal, segment, begin, until, is_synced=is_synced)])


def _blocks(
    journal: PlannedJournal, segment: SegmentSlice, begin: int, until: int, *, is_synced: bool = False
) -> Iterator[int]:
    """Yield the ends of records in *segment*, some of them, from *begin* on and below *until*. *is_synced*: they are
    durable once all are yielded."""
    assert isinstance(journal.place, Path)
    start = max(begin - segment.base, SEGMENT_HEADER_BYTES)
    if segment.size <= start:
        return
    with contextlib.closing(open_segment(journal.place, segment)) as file:
        size = min(segment.size, until - segment.base)
        reader = SegmentReader(file, size, segment.base, is_last=True, fsynced=segment.fsynced, start=start)
        for found in reader.blocks():
            if not isinstance(found, MissingRange):  # what does not read back ends at no boundary that is known
                yield found.end if isinstance(found, RecordBlock) else found.header.end
        if is_synced:
            file.sync()


def as_json(positions: Mapping[int, StreamPosition]) -> StreamPositions:
    """Return *positions* as a checkpoint has them."""
    return {str(broker): {"lsn": at.lsn, "mark": at.mark} for broker, at in sorted(positions.items())}


def from_json(positions: StreamPositions) -> dict[int, StreamPosition]:
    """Return what `as_json` has written. Raises DataLost."""
    try:
        return {
            int(broker): StreamPosition(int(at["lsn"]), str(at["mark"]))
            for broker, at in positions.items()
            if broker != BEGAN
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataLost("the checkpoint is not of a stream from journals: start with another checkpoint") from error


def began_in(positions: StreamPositions) -> Began:
    """Return where the query began whose checkpoint has *positions*."""
    found = positions.get(BEGAN, {"offsets": {}, "ms": None})
    return Began(stream.from_json(found["offsets"]), found["ms"])
