"""The columns of a message, and which of them a query wants. Pure.

Spark does not tell a Python source which columns a query uses. Name those you need with `.schema("topic STRING, offset
BIGINT")`: the others are then neither decoded nor copied.
"""

from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_jobs.source.schemas import arrow_type

HEADERS: Final = "headers"
_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES: Final[dict[str, DataType]] = {
    "topic": StringType(),
    "partition": StringType(),  # `broker-number`, as everywhere in metaq: numbers alone repeat on every broker
    "offset": LongType(),
    "timestamp": TimestampType(),  # when a metaq broker stored it, from the id; null for another broker's
    "id": LongType(),
    "key": StringType(),  # the message's attribute, without trace context
    "payload": BinaryType(),  # decompressed
    "xid": StringType(),  # the transaction that published it, from a journal; null outside of one, and from brokers
    "error": StringType(),  # why key and payload could not be decoded; payload is the stored data part then
    HEADERS: ArrayType(_HEADER),  # the trace context, `traceparent`, if it has one
}
DECODED: Final = frozenset({"key", "payload", "error", HEADERS})  # columns that need the data part


class UnknownColumn(ValueError):
    """A column that messages do not have, or of another type."""


def message_schema(*, with_headers: bool = False) -> StructType:
    return StructType([StructField(name, kind) for name, kind in _TYPES.items() if with_headers or name != HEADERS])


def wanted_columns(schema: StructType) -> tuple[str, ...]:
    """Return the names in *schema*, in its order. Raises UnknownColumn."""
    for field in schema.fields:
        if (expected := _TYPES.get(field.name)) is None:
            raise UnknownColumn(f"messages have no column {field.name[:80]!r}: they have {', '.join(_TYPES)}")
        if field.dataType != expected:
            raise UnknownColumn(
                f"column {field.name} is {expected.simpleString()}, not {field.dataType.simpleString()}: cast it later"
            )
    return tuple(schema.fieldNames())


def arrow_fields(columns: tuple[str, ...]) -> pa.Schema:
    """Return the Arrow schema of *columns*, as Spark expects it."""
    return pa.schema([pa.field(name, arrow_type(_TYPES[name])) for name in columns])
