"""`spark.read.format("metaq-journal").option("path", DIR).load()`: a journal as a DataFrame of records.

Options: path, a directory of segment files at the same place on every worker, or the URL of an archive, which every
worker reads by itself; frames (true or false, the default), to count message frames and verify their checksums;
pushFilters (the same), to apply filters where bytes are read, for a DataFrame that is queried once.
Checksums of header, meta and body are always verified, and an archive's files against its manifest. The result is a
prefix of the journal; a live broker's may grow from one read to the next, but never changes.
"""

import contextlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from journal.archive.download import ObjectDamaged, ObjectMissing
from spark_jobs.source.directory import MissingRange, SegmentSlice
from spark_jobs.source.filters import RowFilter
from spark_jobs.source.locations import JournalLocation, location_of, lost_range, open_segment, plan
from spark_jobs.source.rows import bad_row, record_row
from spark_jobs.source.schemas import RECORD_ARROW, RECORD_SCHEMA, RecordRow
from spark_jobs.source.segment_reader import SegmentReader

FORMAT: Final = "metaq-journal"
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
# A row is some hundred bytes in Arrow, an item of a list at most some fifty: a batch stays in the low megabytes.
BATCH_ROWS_MAX = 8192
BATCH_ITEMS_MAX = 32_768
PARTITION_BYTES = 8 * 2**20  # a task reads some 50 MB a second, and costs 10 ms


def register(spark: SparkSession) -> None:
    """Register the format with *spark*, and turn on filter pushdown, which Spark requires for sources that use it."""
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(JournalDataSource)


class JournalPartition(InputPartition):
    """Segments that one task reads: they follow one another, missing ones among them."""

    def __init__(self, segments: tuple[SegmentSlice, ...]) -> None:
        super().__init__(segments)
        self.segments = segments


class JournalDataSource(DataSource):
    """The data source that Spark instantiates for `format("metaq-journal")`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return RECORD_SCHEMA

    def reader(self, schema: StructType) -> "JournalReader":
        if schema != RECORD_SCHEMA:
            raise ValueError(f"{FORMAT} has a schema of its own: read without .schema(), then select")
        if (path := self.options.get("path")) is None:
            raise ValueError(f'{FORMAT} needs option "path": the data directory of a broker, or an archive or its URL')
        kind = FilteringJournalReader if self._flag("pushFilters") else JournalReader
        return kind(location_of(path), with_frames=self._flag("frames"))

    def _flag(self, name: str) -> bool:
        text = self.options.get(name, "false").lower()
        if text not in ("true", "false"):
            raise ValueError(f'{FORMAT} option "{name}" is {text!r}: use true or false')
        return text == "true"


class JournalReader(DataSourceReader):
    """Plans on the driver and reads on the workers; pickled in between."""

    def __init__(self, place: JournalLocation, *, with_frames: bool) -> None:
        self._place = place
        self._with_frames = with_frames
        self._filter = RowFilter()

    def partitions(self) -> list[InputPartition]:
        """Return one partition a segment, or for small ones that follow one another. Raises StorageFailed,
        ForeignJournal."""
        wanted = [segment for segment in plan(self._place) if self._filter.may_match(segment)]
        return [JournalPartition(segments) for segments in packed(wanted)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read its segments. Raises StorageFailed if retention has deleted one since it was planned: read again."""
        if not isinstance(partition, JournalPartition):
            return  # Spark's own placeholder: nothing was planned
        matches = self._filter.compiled()
        rows: list[RecordRow] = []
        items = 0
        for row in chain.from_iterable(map(self._rows, partition.segments)):
            if not matches(row):
                continue
            rows.append(row)
            items += sum(map(len, (row.assignments or (), row.extents or (), row.ids or ())))
            if len(rows) >= BATCH_ROWS_MAX or items >= BATCH_ITEMS_MAX:
                yield _batch(rows)
                rows, items = [], 0
        if rows:
            yield _batch(rows)

    def _rows(self, segment: SegmentSlice) -> Iterator[RecordRow]:
        for unreadable in segment.unreadable:
            yield bad_row(segment.base, unreadable)
        if segment.size == 0:
            return
        try:
            file = open_segment(self._place, segment)
        except (ObjectMissing, ObjectDamaged) as error:
            yield bad_row(segment.base, lost_range(segment, error))
            return
        with contextlib.closing(file):
            for found in SegmentReader(
                file, segment.size, segment.base, is_last=segment.is_last, fsynced=segment.fsynced
            ):
                if isinstance(found, MissingRange):
                    yield bad_row(segment.base, found)
                else:
                    yield record_row(segment.base, found, with_frames=self._with_frames)


class FilteringJournalReader(JournalReader):
    """Applies the filters of a query. Spark 4.3 gives every other query of the same `load()` this reader, too, so it is
    for one that is asked once."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - the API's name
        return [pushed for pushed in filters if not self._filter.push_filter(pushed)]


def packed(segments: Iterable[SegmentSlice]) -> Iterator[tuple[SegmentSlice, ...]]:
    """Yield *segments* in pieces of PARTITION_BYTES at most, or of one: a task costs more than a few records."""
    piece: list[SegmentSlice] = []
    size = 0
    for segment in segments:
        if piece and size + segment.size > PARTITION_BYTES:
            yield tuple(piece)
            piece, size = [], 0
        piece.append(segment)
        size += segment.size
    if piece:
        yield tuple(piece)


def _batch(rows: list[RecordRow]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, RECORD_ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_ARROW)
