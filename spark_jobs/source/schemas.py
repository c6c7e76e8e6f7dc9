"""The schema of a record as a row. One definition, from which Spark's and Arrow's schemas are derived.

One row a record, in LSN order within a segment. A range of bytes that does not read back is a row too, of kind BAD,
with its place and reason. Columns that a kind does not have are null.
"""

from types import NoneType
from typing import Annotated, Any, Final, NamedTuple, get_args, get_type_hints

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

BAD: Final = "BAD"  # the one kind that is no journal.records.header.RecordType

Long = Annotated[int, LongType()]
MaybeLong = Annotated[int | None, LongType()]
Text = Annotated[str, StringType()]
MaybeText = Annotated[str | None, StringType()]
MaybeFlag = Annotated[bool | None, BooleanType()]
MaybeTime = Annotated[int | None, TimestampType()]  # microseconds since 1970, as Arrow keeps it


class OffsetAssignmentRow(NamedTuple):
    """Offsets [base, base + bytes) of a partition that a COMMIT assigns."""

    topic: Text
    partition: Long
    base: Long
    bytes: Long
    messages: Long


class RelocatedExtentRow(NamedTuple):
    """An extent that a CARRY copied: it stood at *lsn* before."""

    lsn: Long
    bytes: Long
    messages: Long


def spark_schema(row: Any) -> StructType:
    """Return the Spark schema of a NamedTuple with fields annotated as above. A type with None is nullable."""
    hints = get_type_hints(row, include_extras=True)
    return StructType([StructField(name, *_spark_type(hints[name])) for name in row._fields])


def _spark_type(hint: Any) -> tuple[DataType, bool]:
    python_type, data_type = get_args(hint)
    return data_type, NoneType in get_args(python_type)


TAKES: Final = ArrayType(spark_schema(OffsetAssignmentRow), containsNull=False)
MaybeOffsetAssignments = Annotated[tuple[OffsetAssignmentRow, ...] | None, TAKES]
MaybeRelocatedExtents = Annotated[
    tuple[RelocatedExtentRow, ...] | None, ArrayType(spark_schema(RelocatedExtentRow), containsNull=False)
]
MaybeLongs = Annotated[tuple[int, ...] | None, ArrayType(LongType(), containsNull=False)]


class RecordRow(NamedTuple):
    """One record, or one BAD range [lsn, end). The defaults are for kinds without the column."""

    segment: Long  # base LSN of the segment file
    lsn: Long  # of its first byte
    end: Long  # LSN after its last byte
    kind: Text  # a name of journal.records.header.RecordType, or BAD, also for an unknown number
    epoch: MaybeLong = None
    incarnation: MaybeLong = None
    durable_lsn: MaybeLong = None  # the journal was known durable below it when this was written
    time_ms: MaybeLong = None
    time: MaybeTime = None  # the same, as a timestamp
    key: MaybeText = None  # transaction key as on the wire; of every record of a branch
    branch_lsn: MaybeLong = None  # LSN of the branch's first record, that record's own included
    topic: MaybeText = None  # PUT, PUT_BATCH, TX_PUT, CARRY, TOPIC; a COMMIT's are in `assignments`
    partition: MaybeLong = None
    base_offset: MaybeLong = None  # PUT, PUT_BATCH: where in the partition its first frame stands
    messages: MaybeLong = None  # of the body, or promised by a PREPARE, or that a HEURISTIC decided about
    bytes: MaybeLong = None  # as messages
    body_lsn: MaybeLong = None  # PUT, PUT_BATCH, TX_PUT, CARRY: where the message frames begin
    assignments: MaybeOffsetAssignments = None  # COMMIT; LOST: where partitions go on, without messages
    one_phase: MaybeFlag = None  # COMMIT
    producer: MaybeText = None  # PUT_BATCH: whose batch it is
    sequence: MaybeLong = None  # PUT_BATCH: its number among those of its producer to the partition
    first_extent: MaybeLong = None  # CARRY: extents of the branch in the partition before those in `extents`
    extents: MaybeRelocatedExtents = None  # CARRY: what it copied, in put order
    reason: MaybeText = None  # of a ROLLBACK, of a BAD range; the decision of HEURISTIC, the change of TOPIC
    checkpoint: MaybeLong = None  # CHECKPOINT: number of the file
    checkpoint_lsn: MaybeLong = None  # CHECKPOINT: what the file covers
    version: MaybeText = None  # EPOCH: the metaq that wrote from here on
    frames: MaybeLong = None  # message frames found whole in the body; only with option frames=true
    frames_error: MaybeText = None  # what is wrong with the first that is not
    compressed: MaybeLong = None  # how many of the frames hold a compressed payload; only with option frames=true
    # PUT, PUT_BATCH, TX_PUT, with option frames=true: ids rise by one from `first_id` on, or else are all in `ids`.
    first_id: MaybeLong = None
    ids: MaybeLongs = None


class FindingRow(NamedTuple):
    """One finding of a check; see findings.py."""

    problem: Text
    since: Long
    lsn: Long
    subject: Text
    detail: Text


class StartRow(NamedTuple):
    topic: Text
    partition: Long
    start: Long


class CheckpointRow(NamedTuple):
    number: Long
    at: Long  # the LSN it was taken at
    epoch: Long
    incarnation: Long


class PartitionRow(NamedTuple):
    """One partition in one checkpoint: offsets [start, end)."""

    number: Long
    at: Long
    topic: Text
    partition: Long
    start: Long
    end: Long


class BranchRow(NamedTuple):
    """One live branch in one checkpoint."""

    number: Long
    at: Long
    branch_lsn: Long
    key: Text
    state: Text
    runs: Long
    messages: Long
    bytes: Long
    oldest_lsn: Long  # where the first of its messages stand now


def arrow_type(data_type: DataType) -> pa.DataType:
    """Return the Arrow type in which Spark expects *data_type* from a data source."""
    match data_type:
        case LongType():
            return pa.int64()
        case StringType():
            return pa.string()
        case BinaryType():
            return pa.binary()
        case BooleanType():
            return pa.bool_()
        case TimestampType():
            return pa.timestamp("us", tz="UTC")
        case ArrayType(elementType=element, containsNull=nullable):
            return pa.list_(pa.field("element", arrow_type(element), nullable=nullable))
        case StructType(fields=fields):
            return pa.struct([_arrow_field(field) for field in fields])
    raise TypeError(f"no Arrow type is defined for {data_type}")


def _arrow_field(field: StructField) -> pa.Field:
    return pa.field(field.name, arrow_type(field.dataType), nullable=field.nullable)


def arrow_schema(row: Any) -> pa.Schema:
    """Return the Arrow schema that matches `spark_schema(row)`."""
    return pa.schema([_arrow_field(field) for field in spark_schema(row).fields])


RECORD_SCHEMA: Final = spark_schema(RecordRow)
RECORD_ARROW: Final = arrow_schema(RecordRow)


def arrow_table(row: Any, rows: list[Any]) -> pa.Table:
    """Return *rows* of the NamedTuple *row* as an Arrow table, which `createDataFrame` accepts without pandas."""
    schema = arrow_schema(row)
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.Table.from_arrays(
        [pa.array(list(column), type=field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
