"""Rows that Spark's workers read, a task each of what the driver has planned."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

T = TypeVar("T")
ReadTask = Callable[[T], Iterator[pa.RecordBatch]]


class TaskReader(DataSourceReader):
    """Plans on the driver and reads on the workers; pickled in between."""

    def __init__(self, tasks: Sequence[T], read: ReadTask[T]) -> None:
        self._tasks = tasks
        self._read = read

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition.value)


def worker_rows(
    spark: SparkSession, format_name: str, tasks: Sequence[T], read: ReadTask[T], schema_of_rows: StructType
) -> DataFrame:
    """Return what *read* yields for each of *tasks*, one at least. What it raises fails the query."""

    class TaskSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> StructType:
            return schema_of_rows

        def reader(self, schema: StructType) -> TaskReader:
            return TaskReader(tasks, read)

    spark.dataSource.register(TaskSource)
    return spark.read.format(format_name).load()
