"""Selects messages by topic, offset, time, transaction, and those of Spark's filters that can be applied exactly. Pure.

Filters are conjunctions: each narrows the selection. A filter that is not exactly expressed here stays Spark's.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    StringStartsWith,
)
from pyspark.sql.types import DataType, LongType, StringType, TimestampType

from spark_jobs.messages.batches import PartitionId, timestamps_us
from spark_jobs.messages.frames import Frames
from spark_jobs.messages.names import OffsetSpan
from spark_jobs.source.directory import LSN_MAX
from spark_jobs.source.filters import COMPARE, bounds_of, constant_of

_TEXTS: Final = ("topic", "partition", "xid")
_TYPES: Final[dict[str, DataType]] = {
    "topic": StringType(),
    "partition": StringType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "xid": StringType(),
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One filter: *values* are constants in the column's form; more than one only for `In`."""

    column: str
    kind: type[Filter]
    values: tuple[Any, ...]

    def of_text(self, value: str) -> bool:
        if self.kind is In:
            return value in self.values
        if self.kind is StringStartsWith:
            return value.startswith(self.values[0])
        return bool(COMPARE[self.kind](value, self.values[0]))

    def of_numbers(self, column: NDArray[Any]) -> NDArray[np.bool_]:
        if self.kind is In:
            return np.isin(column, self.values)
        found: NDArray[np.bool_] = COMPARE[self.kind](column, self.values[0])
        return found

    def narrow(self, span: OffsetSpan) -> OffsetSpan:
        """Return the part of *span* where it may hold, for a condition on offsets."""
        bounds = [bounds_of(self.kind, value) for value in self.values] or [(0, 0)]
        return OffsetSpan(max(span.start, min(bounds)[0]), min(span.end, max(high for _, high in bounds)))


def condition_of(pushed: Filter) -> Condition | None:
    """Return *pushed* if it can be applied exactly, else None."""
    attribute: tuple[str, ...] = getattr(pushed, "attribute", ())
    if len(attribute) != 1 or (data_type := _TYPES.get(attribute[0])) is None:
        return None
    column, kind = attribute[0], type(pushed)
    if isinstance(pushed, In):
        values = tuple(constant_of(value, data_type) for value in pushed.value if value is not None)
        return None if None in values else Condition(column, In, values)
    if kind not in COMPARE and not (kind is StringStartsWith and column in _TEXTS):
        return None
    value = constant_of(getattr(pushed, "value", None), data_type)
    return None if value is None else Condition(column, kind, (value,))


@dataclass(slots=True)
class Selection:
    """Topics by name or pattern; offsets by partition, else [0, end); times in microseconds. Pickled with a reader."""

    topics: frozenset[str] | None = None  # None: by the pattern
    pattern: str = ".*"
    starts: Mapping[PartitionId, int] = field(default_factory=dict)
    ends: Mapping[PartitionId, int] = field(default_factory=dict)
    start_us: int | None = None
    end_us: int | None = None
    conditions: list[Condition] = field(default_factory=list)

    def push_filter(self, pushed: Filter) -> bool:
        """Apply *pushed* from here on. Returns False to have Spark apply it, too: to rows of brokers, which do not tell
        the transaction."""
        if (condition := condition_of(pushed)) is None:
            return False
        self.conditions.append(condition)
        return condition.column != "xid"

    def limit(
        self,
        start: str | Mapping[PartitionId, int],
        end: str | Mapping[PartitionId, int],
        start_ms: int | None,
        end_ms: int | None,
    ) -> None:
        """Leave out what comes before *start* and *start_ms*, and from *end* and *end_ms* on; a text is no limit."""
        self.starts = {} if isinstance(start, str) else start
        self.ends = {} if isinstance(end, str) else end
        self.start_us = None if start_ms is None else start_ms * 1000
        self.end_us = None if end_ms is None else end_ms * 1000

    def is_subscribed(self, topic: str) -> bool:
        """True if *topic* is named, or fits the pattern; whatever filters leave of it."""
        return re.fullmatch(self.pattern, topic) is not None if self.topics is None else topic in self.topics

    def wants_topic(self, topic: str) -> bool:
        """True if a message of *topic* may be wanted."""
        return self.is_subscribed(topic) and all(
            each.of_text(topic) for each in self.conditions if each.column == "topic"
        )

    def earliest_us(self) -> int:
        """Return a time before which no message is wanted; 0: none."""
        from_values = (EqualTo, In, GreaterThan, GreaterThanOrEqual)
        times = [each for each in self.conditions if each.column == "timestamp" and each.kind in from_values]
        return max([self.start_us or 0, *(min(each.values, default=0) for each in times)])

    def wants_xid(self, xid: str | None) -> bool:
        """True if a message of that transaction may be wanted; None: outside of one, which meets no condition."""
        return all(xid is not None and each.of_text(xid) for each in self.conditions if each.column == "xid")

    def span(self, topic: str, partition: str) -> OffsetSpan | None:
        """Return the offsets wanted of a partition, None if there are none."""
        if not self.wants_topic(topic):
            return None
        span = OffsetSpan(self.starts.get((topic, partition), 0), self.ends.get((topic, partition), LSN_MAX))
        for each in self.conditions:
            if each.column == "partition" and not each.of_text(partition):
                return None
            if each.column == "offset":
                span = each.narrow(span)
        return span if span.start < span.end else None

    def mask(self, frames: Frames, *, has_times: bool = True) -> NDArray[np.bool_] | None:
        """Return which frames meet the conditions on single messages; None: all. *has_times*: ids hold times; without
        them the timestamp is null, which meets none."""
        masks = [each.of_numbers(frames.offset) for each in self.conditions if each.column == "offset"]
        times = [each for each in self.conditions if each.column == "timestamp"]
        if times or (self.start_us, self.end_us) != (None, None):
            if not has_times:
                return np.zeros(len(frames.at), np.bool_)
            stored_us = timestamps_us(frames.headers["id"])
            masks += [each.of_numbers(stored_us) for each in times]
            masks += [] if self.start_us is None else [stored_us >= self.start_us]
            masks += [] if self.end_us is None else [stored_us < self.end_us]
        return np.logical_and.reduce(masks) if masks else None
