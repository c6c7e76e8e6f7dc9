"""The formats that Spark finds by name: `metaq`, messages as rows and back, and `metaq-journal`, records as rows.

`metaq` reads committed messages only, in order of offset within a partition.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from spark_jobs.messages.cluster import Cluster
from spark_jobs.messages.columns import message_schema, wanted_columns
from spark_jobs.messages.journal import plan_tasks
from spark_jobs.messages.journal_stream import JournalStream
from spark_jobs.messages.options import ReadOptions, read_options
from spark_jobs.messages.planning import check_offered, fetch_tasks, read_messages, starting_offsets
from spark_jobs.messages.stream import MessageStream
from spark_jobs.sink.options import write_options
from spark_jobs.sink.writers import BatchWriter, StreamWriter
from spark_jobs.source import data_source as records
from spark_jobs.source.directory import LSN_MAX

FORMAT: Final = "metaq"


def register(spark: SparkSession) -> None:
    """Register both formats with *spark*, and turn on filter pushdown, which Spark requires for sources that use it."""
    records.register(spark)
    spark.dataSource.register(MetaqDataSource)


class MetaqDataSource(DataSource):
    """The data source that Spark instantiates for `format("metaq")`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return message_schema(with_headers=self.options.get("includeHeaders", "false").lower() == "true")

    def reader(self, schema: StructType) -> "MetaqReader":
        options = read_options(self.options, is_stream=False)
        return (FilteringMetaqReader if options.pushes_filters else MetaqReader)(options, wanted_columns(schema))

    def streamReader(self, schema: StructType) -> MessageStream | JournalStream:  # noqa: N802 - the API's name
        options, columns = read_options(self.options, is_stream=True), wanted_columns(schema)
        return JournalStream(options, columns) if options.cluster is None else MessageStream(options, columns)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter.begin(write_options(self.options, schema, overwrite=overwrite, is_stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - the API's name
        return StreamWriter(write_options(self.options, schema, overwrite=overwrite, is_stream=True))


class MetaqReader(DataSourceReader):
    """Plans on the driver and reads on the workers; pickled in between."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        if options.cluster is None:  # here, since Spark pickles the reader before it asks for partitions
            options.selection.limit(options.start, options.end, options.start_ms, options.end_ms)

    def partitions(self) -> list[InputPartition]:
        """Return a task a segment, or a range of a partition. Raises JournalError, MetaError, ZooKeeperError."""
        options = self._options
        if options.cluster is None:
            return [*plan_tasks(options.paths, options.selection)]
        with Cluster(options.cluster) as cluster:
            cut = cluster.cut(options.selection)
            starts = starting_offsets(options, cluster, cut)
            by_time = None if options.end_ms is None else cluster.cut(options.selection, options.end_ms)
        ends = dict.fromkeys(cut.ranges, LSN_MAX)
        if by_time is not None:
            ends |= {name: found.at for name, found in by_time.ranges.items()}
        elif not isinstance(options.end, str):
            check_offered("endingOffsets", options.end, options, cut)
            ends |= {name: end for name, end in options.end.items() if name in ends}
        bounded = {name: min(end, cut.ranges[name].end) for name, end in ends.items()}
        return [*fetch_tasks(cut, starts, bounded, options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task. Raises JournalError, MetaError."""
        return read_messages(partition, self._options, self._columns)


class FilteringMetaqReader(MetaqReader):
    """Applies the filters of a query. Spark 4.3 gives every other query of the same `load()` this reader, too, so it is
    for one that is asked once."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - the API's name
        return [pushed for pushed in filters if not self._options.selection.push_filter(pushed)]
