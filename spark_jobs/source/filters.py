"""Applies those of a query's filters that it can apply exactly as Spark would. Pure.

Only comparisons of a plain column with a constant of its type; Spark applies the others. A null never satisfies a
comparison. Filters on LSN also exclude whole segments.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.types import DataType, LongType, StringType, TimestampType

from spark_jobs.source.directory import SegmentSlice
from spark_jobs.source.schemas import RECORD_SCHEMA, RecordRow

Test = Callable[[Any], bool]  # of a column's value that is not null
_COLUMNS: Final = {name: (index, RECORD_SCHEMA[name].dataType) for index, name in enumerate(RecordRow._fields)}
_PYTHON_TYPES: Final[dict[type[DataType], type]] = {LongType: int, StringType: str, TimestampType: datetime}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class RowFilter:
    """Conjunction of the filters that `push_filter` accepted. Pickled with the reader."""

    def __init__(self) -> None:
        self._pushed: list[Filter] = []

    def push_filter(self, pushed: Filter) -> bool:
        """Accept *pushed* if this class can apply it exactly. Returns False to leave it to Spark."""
        if compile_test(pushed) is None:
            return False
        self._pushed.append(pushed)
        return True

    def compiled(self) -> Callable[[RecordRow], bool]:
        """Return a predicate over rows."""
        tests = [test for pushed in self._pushed if (test := compile_test(pushed)) is not None]

        def matches(row: RecordRow) -> bool:
            return all(test(row) for test in tests)

        return matches

    def may_match(self, segment: SegmentSlice) -> bool:
        """Return True if a row of *segment* may satisfy the filters on LSN: every row there starts in [base, end)."""
        return all(_may_match(pushed, segment) for pushed in self._pushed)


def _may_match(pushed: Filter, segment: SegmentSlice) -> bool:
    attribute, value = getattr(pushed, "attribute", None), getattr(pushed, "value", None)
    if attribute not in (("lsn",), ("end",)) or value is None:
        return True
    first = segment.base if attribute == ("lsn",) else segment.base + 1  # the least and the
    beyond = segment.end if attribute == ("lsn",) else segment.end + 1  # first impossible value
    match pushed:
        case EqualTo():
            return bool(first <= value < beyond)
        case In():
            return any(one is not None and first <= one < beyond for one in value)
        case LessThan():
            return bool(first < value)
        case LessThanOrEqual():
            return bool(first <= value)
        case GreaterThan():
            return bool(value < beyond - 1)
        case GreaterThanOrEqual():
            return bool(value < beyond)
    return True


def compile_test(pushed: Filter) -> Callable[[RecordRow], bool] | None:
    """Return a predicate over rows that is equivalent to *pushed*, or None."""
    attribute: tuple[str, ...] = getattr(pushed, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in _COLUMNS:
        return None
    index, data_type = _COLUMNS[attribute[0]]
    column: Callable[[RecordRow], Any] = itemgetter(index)
    match pushed:
        case IsNull():
            return lambda row: column(row) is None
        case IsNotNull():
            return lambda row: column(row) is not None
    if (test := _value_test(pushed, data_type)) is None:
        return None

    def holds(row: RecordRow) -> bool:
        value = column(row)
        return value is not None and test(value)

    return holds


def _value_test(pushed: Filter, data_type: DataType) -> Test | None:
    if isinstance(pushed, In):
        wanted = [constant_of(value, data_type) for value in pushed.value if value is not None]
        return None if None in wanted else frozenset(wanted).__contains__
    constant = constant_of(getattr(pushed, "value", None), data_type)
    if constant is None:
        return None
    match pushed:
        case EqualTo():
            return lambda value: bool(value == constant)
        case StringStartsWith():
            return lambda value: bool(value.startswith(constant))
        # Spark orders strings as UTF-8 bytes, Python as code points: the same order.
        case LessThan():
            return lambda value: bool(value < constant)
        case LessThanOrEqual():
            return lambda value: bool(value <= constant)
        case GreaterThan():
            return lambda value: bool(value > constant)
        case GreaterThanOrEqual():
            return lambda value: bool(value >= constant)
    return None


def constant_of(value: Any, data_type: DataType) -> Any:
    """Convert *value* to its form in a row; None if it is not of the column's type."""
    expected = _PYTHON_TYPES.get(type(data_type))
    if expected is None or type(value) is not expected:
        return None
    if isinstance(value, datetime):
        # Without a zone it is a TIMESTAMP_NTZ, which Spark would have to interpret.
        return None if value.tzinfo is None else (value - _EPOCH) // _MICROSECOND
    return value
