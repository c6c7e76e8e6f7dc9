"""The segment files of one journal, opened as they are needed. One task's own."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from errno import ENOENT
from pathlib import Path
from typing import Self

from journal.archive.download import ObjectDamaged, ObjectMissing
from journal.errors import JournalError, StorageFailed
from journal.wal.segments import SEGMENT_HEADER_BYTES
from journal.wal.storage_file import StorageFile
from spark_jobs.source.directory import MissingRange, SegmentSlice
from spark_jobs.source.locations import JournalLocation, lost_range, open_segment, plan
from spark_jobs.source.record_block import RecordBlock
from spark_jobs.source.segment_reader import SegmentReader


class DataLost(JournalError):
    """Messages that the query wants are not stored any more, or do not read back. Read with failOnDataLoss=false to go
    on without them."""


class SegmentFiles:
    """Reads *slices* of the journal in *place*. A context manager, which closes what was opened."""

    def __init__(self, place: JournalLocation, slices: Sequence[SegmentSlice]) -> None:
        self.slices = slices
        self._place = place
        self._bases = [each.base for each in slices]
        self._open: dict[int, StorageFile] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def index_of(self, lsn: int) -> int:
        """Return the index of the slice that holds *lsn*; -1 before the first."""
        return bisect_right(self._bases, lsn) - 1

    def blocks(self, index: int, start: int | None = None) -> Iterator[RecordBlock | MissingRange]:
        """Yield the records of a slice, from LSN *start* on, and what does not read back. Raises StorageFailed."""
        each = self.slices[index]
        yield from each.unreadable
        if each.size == 0:
            return
        position = SEGMENT_HEADER_BYTES if start is None else start - each.base
        try:
            file = self._file(index)
        except (ObjectMissing, ObjectDamaged) as error:
            yield lost_range(each, error)
            return
        except StorageFailed as error:
            if error.errno != ENOENT or not self._is_retained_from(each.end):
                raise
            yield MissingRange(each.base, each.end, "retention has deleted it since the read was planned")
            return
        reader = SegmentReader(file, each.size, each.base, is_last=each.is_last, fsynced=each.fsynced, start=position)
        for found in reader.blocks():
            yield found if isinstance(found, RecordBlock | MissingRange) else RecordBlock.of(found)

    def read(self, lsn: int, size: int) -> bytes:
        """Return the bytes at *lsn*. Raises DataLost if the journal does not hold them, StorageFailed."""
        if (index := self.index_of(lsn)) < 0 or lsn + size > self.slices[index].base + self.slices[index].size:
            raise DataLost(f"{self._place}: the journal does not hold LSNs {lsn} to {lsn + size}")
        return self._file(index).reader().read(lsn - self.slices[index].base, size)

    def _is_retained_from(self, lsn: int) -> bool:
        """True if the directory holds nothing below *lsn* any more, and has what comes then: retention takes the oldest
        first. A directory that is not mounted here is none. Raises StorageFailed."""
        assert isinstance(self._place, Path)
        return plan(self._place)[0].base >= lsn

    def _file(self, index: int) -> StorageFile:
        each = self.slices[index]
        if (file := self._open.get(each.base)) is None:
            file = self._open[each.base] = open_segment(self._place, each)
        return file
