"""`spark.read.format("metaq-journal").option("path", DIR).load()`: a journal as a DataFrame of records.

Options: path, a directory of segment files that every worker sees at the same place; frames (true or false, the
default), whether message frames are counted and their checksums verified. Header, meta and body checksums always
are. The result is a prefix of the journal; a live broker's may grow from one read to the next, never change.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from journal.errors import StorageFailed
from journal.segments import segment_name
from journal.storage import DirectoryStorage
from spark_jobs.directory import Piece, Stretch, plan
from spark_jobs.filters import RowFilter
from spark_jobs.rows import bad_row, record_row
from spark_jobs.schemas import RECORD_ARROW, RECORD_SCHEMA, RecordRow
from spark_jobs.walk import Walk

FORMAT: Final = "metaq-journal"
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
# A row is some hundred bytes in Arrow, a take some fifty: a batch stays in the low megabytes.
BATCH_ROWS_MAX = 8192
BATCH_TAKES_MAX = 32_768


def register(spark: SparkSession) -> None:
    """Make the format known to *spark*, and turn on filter pushdown, which Spark demands of sources that use it."""
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(JournalDataSource)


class JournalPartition(InputPartition):
    """One segment, or one hole where a segment should be."""

    def __init__(self, piece: Piece) -> None:
        super().__init__(piece)
        self.piece = piece


class JournalDataSource(DataSource):
    """What Spark instantiates for `format("metaq-journal")`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return RECORD_SCHEMA

    def reader(self, schema: StructType) -> "JournalReader":
        if schema != RECORD_SCHEMA:
            raise ValueError(f"{FORMAT} has a schema of its own: read without .schema(), then select")
        if (path := self.options.get("path")) is None:
            raise ValueError(f'{FORMAT} needs option "path": the data directory of a broker, or an archive')
        frames = self.options.get("frames", "false").lower()
        if frames not in ("true", "false"):
            raise ValueError(f'{FORMAT} option "frames" is {frames!r}: use true or false')
        return JournalReader(Path(path), with_frames=frames == "true")


class JournalReader(DataSourceReader):
    """Plans on the driver, reads on the workers; pickled from one to the others."""

    def __init__(self, path: Path, *, with_frames: bool) -> None:
        self._path = path
        self._with_frames = with_frames
        self._filter = RowFilter()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - the API's name
        return [pushed for pushed in filters if not self._filter.take(pushed)]

    def partitions(self) -> list[InputPartition]:
        """One a segment. Raises StorageFailed, ForeignJournal."""
        return [JournalPartition(piece) for piece in plan(self._path) if self._filter.may_match(piece)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises StorageFailed when retention has deleted the segment since it was planned: read again."""
        assert isinstance(partition, JournalPartition)
        matches = self._filter.compiled()
        rows: list[RecordRow] = []
        takes = 0
        for row in self._rows(partition.piece):
            if not matches(row):
                continue
            rows.append(row)
            takes += len(row.takes or ())
            if len(rows) >= BATCH_ROWS_MAX or takes >= BATCH_TAKES_MAX:
                yield _batch(rows)
                rows, takes = [], 0
        if rows:
            yield _batch(rows)

    def _rows(self, piece: Piece) -> Iterator[RecordRow]:
        for stretch in piece.stretches:
            yield bad_row(piece.base, stretch)
        if piece.size == 0:
            return
        file = DirectoryStorage.open_for_reading(self._path).open(segment_name(piece.base), writable=False)
        try:
            if file.size < piece.size:
                raise StorageFailed(f"{self._path / segment_name(piece.base)}: shrank while it was read: read again")
            for found in Walk(file, piece.size, piece.base, is_last=piece.is_last, fsynced=piece.fsynced):
                if isinstance(found, Stretch):
                    yield bad_row(piece.base, found)
                else:
                    yield record_row(piece.base, found, with_frames=self._with_frames)
        finally:
            file.close()


def _batch(rows: list[RecordRow]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, RECORD_ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_ARROW)
