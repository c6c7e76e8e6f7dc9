"""Applies those of a query's filters that it can apply exactly as Spark would. Pure.

Only comparisons of a plain column with a constant of its type; Spark applies the others. A null never satisfies a
comparison. Filters on LSN also exclude whole segments.
"""

import operator
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

from spark_jobs.source.directory import LSN_MAX, SegmentSlice
from spark_jobs.source.schemas import RECORD_SCHEMA, RecordRow

Test = Callable[[Any], bool]  # of a column's value that is not null
_COLUMNS: Final = {name: (index, RECORD_SCHEMA[name].dataType) for index, name in enumerate(RecordRow._fields)}
_PYTHON_TYPES: Final[dict[type[DataType], type]] = {LongType: int, StringType: str, TimestampType: datetime}
# Spark orders strings as UTF-8 bytes, Python as code points: the same order.
COMPARE: Final[dict[type[Filter], Callable[[Any, Any], Any]]] = {
    EqualTo: operator.eq,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
}
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
    first, beyond = (segment.base, segment.end) if attribute == ("lsn",) else (segment.base + 1, segment.end + 1)
    values = value if isinstance(pushed, In) else [value]
    bounds = [bounds_of(type(pushed), one) for one in values if one is not None]
    return any(max(first, low) < min(beyond, high) for low, high in bounds)


def bounds_of(kind: type[Filter], number: int) -> tuple[int, int]:
    """Return the numbers [low, high) that a filter of *kind* with *number* lets pass, none of them negative."""
    low = {EqualTo: number, In: number, GreaterThan: number + 1, GreaterThanOrEqual: number}.get(kind, 0)
    high = {EqualTo: number + 1, In: number + 1, LessThan: number, LessThanOrEqual: number + 1}.get(kind, LSN_MAX)
    return low, high


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
    if isinstance(pushed, StringStartsWith):
        return lambda value: bool(value.startswith(constant))
    if (compare := COMPARE.get(type(pushed))) is None:
        return None
    return lambda value: bool(compare(value, constant))


def constant_of(value: Any, data_type: DataType) -> Any:
    """Convert *value* to its form in a row; None if it is not of the column's type."""
    expected = _PYTHON_TYPES.get(type(data_type))
    if expected is None or type(value) is not expected:
        return None
    if isinstance(value, datetime):
        # Without a zone it is a TIMESTAMP_NTZ, which Spark would have to interpret.
        return None if value.tzinfo is None else (value - _EPOCH) // _MICROSECOND
    return value
